"""Follows every storage that appears and dies during a detail step.

A dispatch mode sees each operator's arguments and results. A storage first seen as an argument
was there before; one first seen as a result is new. Deaths come by weak reference. The result
is a log of births and deaths, replayed at the end of the step, when each storage's class is
known. It keeps no tensor alive.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vramscope.storage.records import MemoryClass

from .storages import shape_of, storages_of

_TO_COPY = torch.ops.aten._to_copy.default
_HALF = (torch.float16, torch.bfloat16)
_HELD = (
    MemoryClass.PARAMETERS,
    MemoryClass.GRADIENTS,
    MemoryClass.OPTIMIZER_STATE,
    MemoryClass.BUFFERS,
)
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_MOST_SURVIVORS = 20_000


class TrackedStorage:
    """One storage during one detail step."""

    __slots__ = (
        "computed",
        "device",
        "dtype",
        "memory_class",
        "outlived",
        "reference",
        "sequence",
        "serial",
        "shape",
        "size",
    )

    def __init__(
        self,
        serial: int,
        size: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.serial = serial
        self.size = size
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.outlived = False
        """Made in an earlier detail step, and still there."""
        self.computed = False
        """Made by the model's forward or backward, not handed to it."""
        self.sequence = -1
        """Autograd sequence number at birth, which tells the module; -1 outside a model."""
        self.memory_class: MemoryClass | None = None
        self.reference: weakref.ref[torch.UntypedStorage] | None = None


Kind: TypeAlias = tuple[tuple[int, ...], torch.dtype]
"""What tensors that are alike have in common."""


class Survivor(NamedTuple):
    """A storage that outlived its detail step, by weak reference, and what was known of it."""

    reference: weakref.ref[torch.UntypedStorage]
    was: TrackedStorage


class LogEntry(NamedTuple):
    """A storage's birth (+1) or death (-1) at an instant of the process's clock."""

    storage: TrackedStorage
    sign: int
    at_ns: int


class AllocationTracker(TorchDispatchMode):
    """The log of one detail step.

    Args:
        block_bytes: By device type, what an allocation is rounded up to; storages on other
            types of device are not followed.
        call_began: Sequence number at which the innermost module call that runs began, -1
            outside any.
    """

    def __init__(self, block_bytes: dict[str, int], call_began: Callable[[], int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._block_bytes = block_bytes
        self._call_began = call_began
        self._alive: dict[int, TrackedStorage] = {}
        self.computing = False
        """Whether what appears now is made by forward or backward."""
        self.silent = False
        """Set when the mode cannot be taken off yet: operators then pass through unseen."""
        self.fault: Exception | None = None
        """What went wrong here, if anything did; nothing was noted from then on."""
        self._serial = 0
        self.base: list[TrackedStorage] = []
        """Storages that were there before the log began."""
        self.log: list[LogEntry] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiled runs here: torch need not shield every call from the compiler."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs the operator unchanged and notes the storages that it made."""
        if kwargs is None:
            kwargs = {}
        if self.silent:
            return func(*args, **kwargs)
        try:
            self._visit(args, new=False)
            self._visit(kwargs.values(), new=False)
        except Exception as fault:
            self._fail(fault)
        result = func(*args, **kwargs)
        if not self.silent:
            try:
                self._visit((result,), new=True)
                if func is _TO_COPY:
                    self._note_weight_copy(args[0], result)
            except Exception as fault:
                self._fail(fault)
        return result

    def _fail(self, fault: Exception) -> None:
        """A fault of ours must not reach the operator that the user called."""
        self.silent = True
        self.fault = fault

    def _note_weight_copy(self, source: torch.Tensor, copy: torch.Tensor) -> None:
        """A parameter's copy in fewer bits is what autocast keeps."""
        if copy.dtype in _HALF and copy.element_size() < source.element_size():
            for before, after in zip(storages_of(source), storages_of(copy), strict=False):
                tracked = self.find(before)
                if tracked is not None and tracked.memory_class is MemoryClass.PARAMETERS:
                    self.classify(after, copy, MemoryClass.AUTOCAST_CACHE)

    def _visit(self, values: Iterable[Any], *, new: bool) -> None:
        alive = self._alive
        for value in values:
            kind = type(value)
            if (kind is torch.Tensor or kind is torch.nn.Parameter) and (
                value.layout is torch.strided and not _is_wrapped(value)
            ):  # By far the most: without a detour.
                storage = value.untyped_storage()
                if storage._cdata not in alive:
                    self.enter(storage, value, new=new)
            elif isinstance(value, torch.Tensor):
                for storage in storages_of(value):
                    if storage._cdata not in alive:
                        self.enter(storage, value, new=new)
            elif isinstance(value, (list, tuple)):
                self._visit(value, new=new)

    def enter(
        self, storage: torch.UntypedStorage, tensor: torch.Tensor, *, new: bool
    ) -> TrackedStorage | None:
        """Begins to follow a storage; ``None`` where its device is not followed.

        Args:
            storage: Whose bytes count.
            tensor: Through which it was met: its shape and dtype stand for the storage.
            new: It was made just now, not met.
        """
        if storage.device.type not in self._block_bytes:
            return None
        tracked = self._follow(storage, shape_of(tensor), tensor.dtype)
        if new:
            if self.computing:
                tracked.computed = True
                tracked.sequence = self._current_sequence()
            self.log.append(LogEntry(tracked, 1, time.perf_counter_ns()))
        else:
            self.base.append(tracked)
        return tracked

    def _follow(
        self, storage: torch.UntypedStorage, shape: tuple[int, ...], dtype: torch.dtype
    ) -> TrackedStorage:
        block = self._block_bytes[storage.device.type]
        size = -(-storage.nbytes() // block) * block
        self._serial += 1
        tracked = TrackedStorage(self._serial, size, shape, dtype, storage.device)
        key = storage._cdata
        alive, log = self._alive, self.log

        def died(_: object) -> None:
            if alive.get(key) is tracked:
                del alive[key]
            log.append(LogEntry(tracked, -1, time.perf_counter_ns()))

        tracked.reference = weakref.ref(storage, died)
        alive[key] = tracked
        return tracked

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage that is followed has other bytes than before: a death and a birth."""
        was = self._alive.get(storage._cdata)
        if was is None or self.silent:
            return
        was.reference = None  # its death is noted here, not when the storage dies
        now = time.perf_counter_ns()
        tracked = self._follow(storage, was.shape, was.dtype)
        tracked.memory_class, tracked.sequence = was.memory_class, was.sequence
        tracked.computed, tracked.outlived = was.computed, was.outlived
        self.log += [LogEntry(was, -1, now), LogEntry(tracked, 1, now)]

    def find(self, storage: torch.UntypedStorage) -> TrackedStorage | None:
        """The entry of a living storage, or ``None``."""
        return self._alive.get(storage._cdata)

    def classify(
        self, storage: torch.UntypedStorage, tensor: torch.Tensor, memory_class: MemoryClass
    ) -> TrackedStorage | None:
        """Says what a storage is for; the first word stands. Unknown storages are entered."""
        tracked = self.find(storage) or self.enter(storage, tensor, new=False)
        if tracked is not None and tracked.memory_class is None:
            tracked.memory_class = memory_class
        return tracked

    def claim_computed(self, memory_class: MemoryClass) -> None:
        """Says what everything alive that the model computed and nothing claimed is for."""
        for tracked in list(self._alive.values()):
            if tracked.computed and tracked.memory_class is None:
                tracked.memory_class = memory_class

    def close(self) -> list[Survivor]:
        """Lets go of every weak reference; deaths from now on are not noted.

        Returns:
            What is still alive and nobody holds for the model: outputs, inputs, what leaks.
        """
        survivors = []
        for tracked in self._alive.values():
            storage = tracked.reference() if tracked.reference is not None else None
            tracked.reference = None
            if storage is not None and tracked.memory_class not in _HELD:
                survivors.append(Survivor(weakref.ref(storage), tracked))
        self._alive.clear()
        return survivors[-_MOST_SURVIVORS:]

    def readmit(self, survivors: Iterable[Survivor]) -> None:
        """Enters what outlived an earlier detail step, under the class that it had."""
        for survivor in survivors:
            storage = survivor.reference()
            if storage is not None and storage._cdata not in self._alive:
                tracked = self._follow(storage, survivor.was.shape, survivor.was.dtype)
                tracked.memory_class = survivor.was.memory_class
                tracked.outlived = True
                self.base.append(tracked)

    def admit(self, tensor: torch.Tensor, memory_class: MemoryClass) -> None:
        """Enters what outlived steps that were not followed, unless it is known."""
        for storage in storages_of(tensor):
            if self.find(storage) is None:
                tracked = self.enter(storage, tensor, new=False)
                if tracked is not None:
                    tracked.memory_class = memory_class
                    tracked.outlived = True

    def outlived(self, device: torch.device) -> int:
        """Bytes alive on a device that models computed and nobody holds for them."""
        return sum(
            t.size
            for t in self._alive.values()
            if t.device == device and (t.computed or t.outlived) and t.memory_class not in _HELD
        )

    def _current_sequence(self) -> int:
        """Of the node that runs, in backward; in forward, of the operator's own.

        An operator comes here when its node is made already, and the next number is waiting. One
        that makes no node gets the number of another one of the same module call.
        """
        node = torch._C._current_autograd_node()
        if node is not None:
            return int(node._sequence_nr())
        coming, began = int(torch._C._autograd._get_sequence_nr()), self._call_began()
        return coming if began < 0 else max(coming - 1, began)
