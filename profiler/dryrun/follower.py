"""Follows the steps of a dry run as a profiler follows a detail step."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from vramscope.storage.records import MemoryClass, Phase

from ..census import Census
from ..detail import DetailStep
from ..devices.source import DriverReading
from ..facts import DetailFindings, DeviceFacts, StepFacts
from ..phases import LoopTracker
from ..tracker import Survivor, TrackedStorage

FAKE = torch.device("meta")
"""Where the storages of fake tensors say they are."""


class StepFollower:
    """Hears the signals of :class:`~..hooks.Hooks`; every step is followed in detail.

    Args:
        model: Of fake tensors.
        optimizers: Its optimizers; without one, a step is what :meth:`begin` and :meth:`finish`
            enclose.
        block_bytes: What an allocation is rounded up to.
        workspaces: Says at a step's end the bytes of each scratch memory that libraries took.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        block_bytes: int,
        workspaces: Callable[[], Sequence[int]],
    ) -> None:
        self._model = model
        self._workspaces = workspaces
        self._blocks = {FAKE.type: block_bytes}
        self._census = Census([model], optimizers, self._blocks)
        self._loop = LoopTracker(self, set())
        for optimizer in optimizers:
            self._loop.expect(id(optimizer))
        self._trains = bool(optimizers)
        self._detail: DetailStep | None = None
        self._survivors: list[Survivor] = []
        self._kind: list[Hashable] = []
        self._began = 0
        self._phase: Phase | None = None
        self.steps: list[StepFacts] = []
        """What was seen, a step each."""

    def begin(self) -> None:
        """A call of the loop's step function begins."""
        if not self._trains:
            self._open_step()
            self._loop.say(Phase.FORWARD)

    def finish(self) -> None:
        """The step function has returned."""
        if not self._trains:
            self._loop.say(None)
            self.step_ends(0, skipped=False)

    # ---- signals

    def forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """The model is called."""
        training = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if training or not self._trains:
            self._open_step()
        self._loop.forward_begins(training=training)
        if self._detail is not None:
            self._detail.inputs(args, kwargs)

    def forward_ends(self, module: torch.nn.Module) -> None:
        """The model has returned."""
        self._loop.forward_ends()

    def backward_begins(self, roots: Sequence[Any]) -> None:
        """The autograd engine starts."""
        self._open_step().backward_begins(roots)
        self._loop.backward_begins()

    def backward_ends(self, *, accumulates: bool) -> None:
        """The engine is done."""
        if self._detail is not None:
            self._detail.backward_ends()
        self._loop.backward_ends(accumulates=accumulates)

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step starts."""
        self._open_step()
        self._loop.optimizer_begins(id(optimizer))

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""
        self._loop.optimizer_ends(id(optimizer))

    def optimizer_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A gradient scaler did not let the optimizer step."""
        self._loop.optimizer_skipped(id(optimizer))

    def out_of_memory(self, error: BaseException) -> None:
        """Nothing is allocated, so this is an error of the host; it goes on to the caller."""

    # ---- phases and steps

    def phase_begins(self, phase: Phase) -> None:
        """The loop tracker says that a phase begins."""
        self._phase = phase
        if self._detail is not None:
            self._detail.phase_begins(phase)

    def step_ends(self, micro_steps: int, *, skipped: bool) -> None:
        """The loop tracker says that the step ends."""
        detail, self._detail = self._detail, None
        if detail is None:
            return
        holdings, held = self._census.recount()
        detail.end(holdings)
        self.steps.append(
            StepFacts(
                step=len(self.steps) + 1,
                started_ns=time.time_ns(),
                duration_s=(time.perf_counter_ns() - self._began) / 1e9,
                micro_steps=micro_steps,
                skipped=skipped,
                kind=tuple(self._kind),
                phase=self._phase,
                held=held,
                devices={FAKE: DeviceFacts((), 0, DriverReading())},
                detail=self._with_workspaces(detail.findings()),
            )
        )
        self._survivors = detail.close()

    def _with_workspaces(self, found: DetailFindings) -> DetailFindings:
        """Libraries keep their scratch memory: it is there through the whole of a later step."""
        base = list(found.log.base)
        for place, size in enumerate(self._workspaces(), start=1):
            scratch = TrackedStorage(-place, size, (size,), torch.uint8, FAKE)
            scratch.memory_class = MemoryClass.TEMPORARIES
            base.append(scratch)
        return found._replace(log=replace(found.log, base=base))

    def _open_step(self) -> DetailStep:
        if self._detail is None:
            self._kind.clear()
            self._census.refresh()
            self._detail = DetailStep(self._census, [self._model], self._blocks)
            self._detail.begin(self._survivors)
            self._began = time.perf_counter_ns()
        return self._detail

    def abandon(self) -> None:
        """The step raised: lets go of everything."""
        if self._detail is not None:
            self._detail.abandon()
            self._detail.close()
            self._detail = None
