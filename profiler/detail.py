"""A detail step: every allocation followed, what backward keeps found, modules named."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from vramscope.storage.records import MemoryClass, Phase

from .activations import saved_for_backward
from .census import Census
from .modules import ModuleRanges
from .replay import ClassBytes, PhaseBooks, PhaseMark, replay
from .storages import storages_of, tensors_in
from .tracker import AllocationTracker

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
        self._tracker = AllocationTracker(block_bytes)
        self._ranges = ModuleRanges(models)
        self._marks: list[PhaseMark] = []
        self._modules: dict[torch.device, dict[str, int]] = {}
        self._walked = False

    @staticmethod
    def possible(models: Sequence[torch.nn.Module]) -> bool:
        """Whether following is without influence here.

        A dispatch mode would make compiled code run uncompiled, and must lie below any mode of
        the user's.
        """
        if _get_current_dispatch_mode_stack():
            return False
        return not any(_is_compiled(model) for model in models)

    def begin(self) -> None:
        """Starts to follow."""
        for holding in self._census.holdings():
            tracked = self._tracker.classify(holding.storage, holding.memory_class)
            if tracked is not None:
                tracked.memory_class = holding.memory_class
        self._ranges.install()
        self._tracker.__enter__()  # type: ignore[no-untyped-call]

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
                    self._tracker.classify(storage, MemoryClass.TEMPORARIES)

    def backward_begins(self, roots: Sequence[Any]) -> None:
        """Finds what backward keeps."""
        first = not self._walked
        self._walked = True
        owner: dict[int, tuple[int, torch.device, int]] = {}
        for saved in saved_for_backward(roots):
            for storage in storages_of(saved.tensor):
                tracked = self._tracker.find(storage)
                if tracked is None:
                    tracked = self._tracker.enter(storage, new=False)
                if tracked is None:
                    continue
                if tracked.memory_class is None:
                    tracked.memory_class = (
                        MemoryClass.ACTIVATIONS if tracked.computed else MemoryClass.TEMPORARIES
                    )
                if first and tracked.memory_class is MemoryClass.ACTIVATIONS:
                    known = owner.get(tracked.serial)
                    if known is None or saved.sequence < known[0]:
                        owner[tracked.serial] = (saved.sequence, tracked.device, tracked.size)
        for sequence, device, size in owner.values():
            by_module = self._modules.setdefault(device, {})
            path = self._ranges.module_of(sequence)
            by_module[path] = by_module.get(path, 0) + size

    def backward_ends(self) -> None:
        """What backward left in ``.grad`` are gradients."""
        self._claim()

    def end(self) -> None:
        """Stops following; what the optimizer made and kept is its state."""
        if self._marks:
            self._marks[-1].ended_ns = time.perf_counter_ns()
        self._claim()
        self.abandon()

    def abandon(self) -> None:
        """Stops following, whatever happened."""
        self._ranges.remove()
        stack = _get_current_dispatch_mode_stack()
        if stack and stack[-1] is self._tracker:
            self._tracker.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        else:
            self._tracker.silent = True

    def _claim(self) -> None:
        for holding in self._census.holdings():
            tracked = self._tracker.find(holding.storage)
            if tracked is not None and tracked.memory_class is not MemoryClass.ACTIVATIONS:
                tracked.memory_class = holding.memory_class

    def books(self, device: torch.device) -> tuple[list[PhaseBooks], ClassBytes]:
        """The books at each phase's peak and at the end, for one device."""
        tracker = self._tracker
        return replay(tracker.base, tracker.log, self._marks, device)

    def modules(self, device: torch.device) -> dict[str, int]:
        """Bytes kept for backward by module path, at the step's first backward."""
        return self._modules.get(device, {})

    def forget(self) -> None:
        """Lets go of every weak reference."""
        self._tracker.forget()


def _is_compiled(model: torch.nn.Module) -> bool:
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        return True
    return any(
        getattr(module, "_compiled_call_impl", None) is not None
        or isinstance(module, torch._dynamo.eval_frame.OptimizedModule)
        for module in model.modules()
    )
