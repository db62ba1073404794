"""Where a training loop is: a pure state machine from signals to phases and steps.

It knows neither torch nor the clock. Signals come from :mod:`.hooks`; what follows from them
goes to a :class:`PhaseListener`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from vramscope.storage.records import Phase

# An attached optimizer that has not stepped once while another stepped this often is not waited
# for: it is not part of the loop.
_PATIENCE = 20


class PhaseListener(Protocol):
    """Who is told where the loop is."""

    def phase_begins(self, phase: Phase) -> None:
        """A phase begins; the one before it has ended."""

    def step_ends(self, micro_steps: int, *, skipped: bool) -> None:
        """The last optimizer of the loop has stepped, or was kept from it."""


class LoopTracker:
    """Turns signals into phases and steps.

    A step ends when every optimizer of the loop has stepped since the last end; with one
    optimizer, that is each time it steps. Evaluation is a phase of its own and never part of a
    step. From the first :meth:`step` call on, steps end only there.

    Args:
        listener: Who is told.
        optimizers: Keys of the optimizers of the loop.
    """

    def __init__(self, listener: PhaseListener, optimizers: set[Hashable]) -> None:
        self._listener = listener
        self._expected = set(optimizers)
        self._stepped: dict[Hashable, int] = {}
        self._ever: set[Hashable] = set()
        self._backwards = 0
        self._micro_steps = 0
        self._forward_depth = 0
        self._backward_depth = 0
        self._optimizer_depth = 0
        self._work_inside_optimizer = False
        self._stepped_in_backward = False
        self._skipped = False
        self._manual = False
        self._dirty = False
        self._said: Phase | None = None
        self.phase = Phase.IDLE

    def expect(self, optimizer: Hashable) -> None:
        """A further optimizer belongs to the loop."""
        self._expected.add(optimizer)

    def forget(self, optimizer: Hashable) -> None:
        """An optimizer does not belong to the loop any more."""
        self._expected.discard(optimizer)
        self._ever.discard(optimizer)
        self._stepped.pop(optimizer, None)

    # ---- signals

    def forward_begins(self, *, training: bool) -> None:
        """A root module is called; ``training`` when gradients are being recorded."""
        training = training and self._said is not Phase.EVAL
        self._forward_depth += 1
        if self._forward_depth > 1 or self._backward_depth:
            return
        self._work_inside_optimizer = True
        self._enter(Phase.FORWARD if training else Phase.EVAL)
        self._dirty |= training

    def forward_ends(self) -> None:
        """A root module has returned. What follows up to backward, the loss, is still forward."""
        if self._forward_depth:
            self._forward_depth -= 1
        if self._forward_depth == 0 and self.phase is Phase.EVAL and not self._backward_depth:
            self._enter(self._outside())

    def backward_begins(self) -> None:
        """The autograd engine starts."""
        self._backward_depth += 1
        if self._backward_depth == 1:
            self._forward_depth = 0
            self._work_inside_optimizer = True
            self._dirty = True
            self._enter(Phase.BACKWARD)

    def backward_ends(self, *, accumulates: bool) -> None:
        """The engine is done; ``accumulates`` when it wrote to ``.grad``."""
        self._backward_depth = max(0, self._backward_depth - 1)
        if self._backward_depth:
            return
        if accumulates:
            self._backwards += 1
        self._enter(self._outside())
        if self._stepped_in_backward:
            self._micro_steps = max(self._micro_steps, self._backwards)
            self._end_step()

    def optimizer_begins(self, optimizer: Hashable) -> None:
        """An optimizer's step starts."""
        if self._optimizer_depth and self._work_inside_optimizer and not self._backward_depth:
            self._optimizer_depth = 0  # the step before this one ended in an exception
        self._optimizer_depth += 1
        self._dirty = True
        if self._optimizer_depth == 1:
            self._work_inside_optimizer = False
            if not self._backward_depth:
                self._enter(Phase.OPTIMIZER)

    def optimizer_ends(self, optimizer: Hashable) -> None:
        """An optimizer has stepped. A subclass that calls ``super().step()`` counts once."""
        self._optimizer_depth = max(0, self._optimizer_depth - 1)
        if self._optimizer_depth:
            return
        if self._backward_depth:
            self._stepped_in_backward = True
            return
        self._note_step(optimizer)
        if self._all_have_stepped():
            self._end_step()
        else:
            self._enter(Phase.IDLE)

    def optimizer_skipped(self, optimizer: Hashable) -> None:
        """A gradient scaler found inf or NaN and did not let the optimizer step."""
        self._dirty = True
        self._skipped = True
        self._optimizer_depth = 0  # an engine says that it begins before it finds them
        self._note_step(optimizer)
        if self._all_have_stepped():
            self._end_step()

    def step(self) -> None:
        """The user says that the step ends here."""
        first, self._manual = not self._manual, True
        if not self._dirty and first:
            return  # the hooks had already ended this very step
        self._micro_steps = max(self._micro_steps, self._backwards)
        self._finish()

    def say(self, phase: Phase | None) -> None:
        """The user says which phase this is; ``None`` gives the word back to the signals."""
        self._said = None
        self._enter(phase if phase is not None else Phase.IDLE)
        self._said = phase

    # ---- consequences

    def _outside(self) -> Phase:
        return Phase.OPTIMIZER if self._optimizer_depth else Phase.IDLE

    def _enter(self, phase: Phase) -> None:
        if self._said is None and phase is not self.phase:
            self.phase = phase
            self._listener.phase_begins(phase)
        elif self._said is None and phase in (Phase.FORWARD, Phase.BACKWARD):
            self._listener.phase_begins(phase)

    def _note_step(self, optimizer: Hashable) -> None:
        self._ever.add(optimizer)
        self._expected.add(optimizer)
        self._stepped[optimizer] = self._stepped.get(optimizer, 0) + 1
        self._micro_steps = max(self._micro_steps, self._backwards)
        self._backwards = 0
        self._forward_depth = 0

    def _all_have_stepped(self) -> bool:
        missing = self._expected - self._stepped.keys()
        if missing and max(self._stepped.values()) > _PATIENCE:
            self._expected -= missing - self._ever
            missing &= self._ever
        return not missing

    def _end_step(self) -> None:
        if self._manual:
            self._enter(Phase.IDLE)
        else:
            self._finish()

    def _finish(self) -> None:
        micro_steps, skipped = self._micro_steps, self._skipped
        self._stepped.clear()
        self._micro_steps = 0
        self._backwards = 0
        self._skipped = False
        self._stepped_in_backward = False
        self._dirty = False
        self._listener.step_ends(micro_steps, skipped=skipped)
        self._enter(Phase.IDLE)
