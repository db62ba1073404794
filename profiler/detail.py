"""A detail step: every allocation followed, what backward keeps found, modules named."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from vramscope.storage.records import MemoryClass, Phase

from .activations import saved_for_backward
from .census import Census, Holding
from .facts import DetailFindings, SavedBytes
from .heap import HeapSearch
from .modules import ModuleRanges
from .replay import DetailLog, PhaseMark
from .resizes import watch_resizes
from .storages import storages_of, tensors_in
from .tracker import AllocationTracker, Survivor, TrackedStorage

_COMPILED_CALLS = torch._dynamo.eval_frame.__file__
_WORK = (Phase.FORWARD, Phase.BACKWARD)


class DetailStep:
    """Follows one step from its first signal to the optimizer's last.

    Args:
        census: Says what was there before, and what is a gradient or optimizer state after.
        models: Root modules, for names.
        block_bytes: By device type, what an allocation is rounded up to.
    """

    def __init__(
        self, census: Census, models: Sequence[torch.nn.Module], block_bytes: dict[str, int]
    ) -> None:
        self._census = census
        self._ranges = ModuleRanges(models)
        self._tracker = AllocationTracker(block_bytes, self._ranges.began)
        self._marks: list[PhaseMark] = []
        self._saved: list[SavedBytes] = []
        self._walked = False
        self._unwatch: Callable[[], None] = lambda: None

    @staticmethod
    def possible(models: Sequence[torch.nn.Module]) -> bool:
        """Whether following is without influence here.

        A dispatch mode would make compiled code run uncompiled, and must lie below any mode of
        the user's.
        """
        if _get_current_dispatch_mode_stack():
            return False
        return not any(_is_compiled(model) for model in models)

    def begin(self, survivors: Sequence[Survivor] = ()) -> None:
        """Starts to follow.

        Args:
            survivors: What outlived the detail step before, as :meth:`close` gave it.
        """
        for holding in self._census.holdings():
            tracked = self._tracker.classify(holding.storage, holding.tensor, holding.memory_class)
            _leave_out_if_elsewhere(holding, tracked)
        self._tracker.readmit(survivors)
        self._ranges.install()
        self._unwatch = watch_resizes(self._tracker.resized)
        self._tracker.__enter__()  # type: ignore[no-untyped-call]

    def search(self, heap: HeapSearch, survivors: Sequence[Survivor]) -> None:
        """Looks for what outlived steps that were not followed; the inputs are known by now."""
        alike = {
            (s.was.shape, s.was.dtype): s.was.memory_class or MemoryClass.TEMPORARIES
            for s in survivors
            if s.was.computed or s.was.outlived
        }
        heap.run(self._tracker, alike)

    def phase_begins(self, phase: Phase) -> None:
        """Marks the place in the log."""
        now = time.perf_counter_ns()
        if self._marks:
            self._marks[-1].ended_ns = now
        self._marks.append(PhaseMark(phase, len(self._tracker.log), now))
        self._tracker.computing = phase in _WORK

    def inputs(self, args: Any, kwargs: Any) -> None:
        """What the loop hands to a model is an input, whoever keeps it."""
        for tensor in tensors_in([args, kwargs]):
            for storage in storages_of(tensor):
                tracked = self._tracker.find(storage)
                if tracked is None or not tracked.computed:
                    self._tracker.classify(storage, tensor, MemoryClass.TEMPORARIES)

    def backward_begins(self, roots: Sequence[Any]) -> None:
        """Finds what backward keeps."""
        first = not self._walked
        self._walked = True
        owner: dict[int, SavedBytes] = {}
        for saved in saved_for_backward(roots):
            for storage in storages_of(saved.tensor):
                tracked = self._tracker.find(storage) or self._tracker.enter(
                    storage, saved.tensor, new=False
                )
                if tracked is None:
                    continue
                if tracked.memory_class is None:
                    tracked.memory_class = (
                        MemoryClass.ACTIVATIONS if tracked.computed else MemoryClass.TEMPORARIES
                    )
                if first and tracked.memory_class is MemoryClass.ACTIVATIONS:
                    known = owner.get(tracked.serial)
                    if known is None or saved.sequence < known.sequence:
                        owner[tracked.serial] = SavedBytes(
                            saved.sequence, tracked.device, tracked.dtype, tracked.size
                        )
        self._saved.extend(owner.values())

    def backward_ends(self) -> None:
        """What backward left in ``.grad`` are gradients."""
        for gradient in self._census.gradients():
            for storage in storages_of(gradient):
                _claim(self._tracker.find(storage), MemoryClass.GRADIENTS)

    def end(self, holdings: Iterable[Holding]) -> None:
        """Stops following; what the optimizer made and kept is its state.

        Args:
            holdings: The census of this instant.
        """
        if self._marks:
            self._marks[-1].ended_ns = time.perf_counter_ns()
        self._claim_all(holdings)
        self.abandon()
        if self._tracker.fault is not None:
            raise RuntimeError("an allocation could not be followed") from self._tracker.fault

    def take_stock(self, holdings: Iterable[Holding]) -> None:
        """Memory ran out in the middle of the step: says what is known so far.

        Where backward has not begun, nobody knows what it would have needed: what forward made
        and still holds counts as kept for it.

        Args:
            holdings: The census of this instant.
        """
        if self._marks:
            self._marks[-1].ended_ns = time.perf_counter_ns()
        if not self._walked:
            self._tracker.claim_computed(MemoryClass.ACTIVATIONS)
        self._claim_all(holdings)

    def abandon(self) -> None:
        """Stops following, whatever happened."""
        self._ranges.remove()
        self._unwatch()
        self._tracker.silent = not self.leave()

    def leave(self) -> bool:
        """Takes the dispatch mode off, if it can be taken off here; says whether it is off.

        Inside a compiled call it cannot: torch puts the state of dispatch from before the call
        back after it, with our mode on.
        """
        stack = _get_current_dispatch_mode_stack()
        if self._tracker not in stack:
            return True
        if stack[-1] is not self._tracker or _inside_compiled_call():
            return False
        self._tracker.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return True

    def _claim_all(self, holdings: Iterable[Holding]) -> None:
        for holding in holdings:
            tracked = self._tracker.find(holding.storage)
            _leave_out_if_elsewhere(holding, tracked)
            _claim(tracked, holding.memory_class)
        self._census.recognise(chain(self._tracker.base, (e.storage for e in self._tracker.log)))

    def findings(self) -> DetailFindings:
        """What was found so far; once the step is closed, it stays as it is."""
        log = DetailLog(self._tracker.base, self._tracker.log, self._marks)
        return DetailFindings(log, self._saved, self._ranges.names())

    def outlived(self) -> int:
        """Bytes that models computed, here or in earlier detail steps, and that are still alive."""
        return sum(self._tracker.outlived(device) for device in self._census.devices())

    def close(self) -> list[Survivor]:
        """Lets go of what was followed, and says what is still alive of it."""
        return self._tracker.close()


def _claim(tracked: TrackedStorage | None, memory_class: MemoryClass) -> None:
    """What holds a storage says what it is for, unless backward keeps it.

    What a framework gathered or received is its own, although backward keeps it too.
    """
    if tracked is None:
        return
    communicates = memory_class is MemoryClass.COMMUNICATION
    if communicates or tracked.memory_class is not MemoryClass.ACTIVATIONS:
        tracked.memory_class = memory_class


def _leave_out_if_elsewhere(holding: Holding, tracked: TrackedStorage | None) -> None:
    """Managed and offloaded memory is none of the device's bytes, whatever its tensors say."""
    if tracked is not None and (holding.paged_for or holding.host_for) is not None:
        tracked.size = 0


def _inside_compiled_call() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename == _COMPILED_CALLS:
            return True
        frame = frame.f_back
    return False


def _is_compiled(model: torch.nn.Module) -> bool:
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        return True
    return any(
        getattr(module, "_compiled_call_impl", None) is not None
        or isinstance(module, torch._dynamo.eval_frame.OptimizedModule)
        for module in model.modules()
    )
