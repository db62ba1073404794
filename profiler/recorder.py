"""From signals to records: what was measured at each step, handed to the store's writer."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from vramscope.storage.records import (
    Event,
    EventKind,
    MemoryUse,
    Phase,
    Record,
    StepRecord,
)

from .activations import saved_bytes
from .books import CENSUS, Profile
from .census import Census, HeldBytes
from .config import ProfilerConfig
from .detail import DetailStep
from .detail_records import detail_records
from .device_recorder import DeviceRecorder, StepBooks
from .devices.source import MemorySource
from .phases import LoopTracker
from .replay import replay
from .schedule import DetailSchedule
from .storages import storages_of, tensors_in
from .tracker import Survivor

_KEPT_SHAPES = 1_000


class StepEnd(NamedTuple):
    """How a step ended."""

    micro_steps: int
    skipped: bool
    complete: bool
    at_ns: int


class StepRecorder:
    """Hears signals, keeps the books, writes one record a step and device.

    Args:
        census: Of the run's models and optimizers.
        models: Root modules, for detail steps; called for the living ones.
        config: When to follow in detail.
        block_bytes: By device type, what an allocation is rounded up to; filled as devices come.
        write: Takes a finished record; must not block.
        on_new_call: Told of a forward call with shapes not seen before, with its arguments.
        on_step: Told after every step, with its number of micro-steps.
        on_out_of_memory: Told when memory has run out, with the error; must not keep it.
    """

    def __init__(
        self,
        census: Census,
        models: Callable[[], list[torch.nn.Module]],
        config: ProfilerConfig,
        block_bytes: dict[str, int],
        write: Callable[[Record], None],
        *,
        on_new_call: Callable[[Any, Any], None],
        on_step: Callable[[int], None],
        on_out_of_memory: Callable[[BaseException], None],
    ) -> None:
        self._census = census
        self._models = models
        self._config = config
        self._write = write
        self._on_new_call = on_new_call
        self._on_step = on_step
        self._on_out_of_memory = on_out_of_memory
        self._last_error: int | None = None
        self._shapes: set[Hashable] = set()
        self._devices: dict[torch.device, DeviceRecorder] = {}
        self._block_bytes = block_bytes
        self._loop = LoopTracker(self, set())
        self._optimizers: set[int] | None = None
        self._step = 0
        self._open = False
        self._detail: DetailStep | None = None
        self._walk = False
        self._survivors: list[Survivor] = []
        self._schedule = DetailSchedule(config)
        self._started_ns = 0
        self._began = 0
        self._kind: list[Hashable] = []
        self._inputs: set[int] = set()
        self._current: Phase | None = None
        self._driver_read = 0.0

    # ---- set-up

    @property
    def loop(self) -> LoopTracker:
        """The state machine, for those who say steps and phases themselves."""
        return self._loop

    @property
    def step_number(self) -> int:
        """Number of the step that is open, or of the last one."""
        return self._step

    def add_device(self, source: MemorySource, position: int) -> None:
        """Begins to record a device."""
        self._devices[source.device] = DeviceRecorder(source, position)
        self._block_bytes[source.device.type] = source.block_bytes
        self._census.refresh()
        source.read()

    def expect(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer belongs to the loop; others are then not heard."""
        self._optimizers = (self._optimizers or set()) | {id(optimizer)}
        self._loop.expect(id(optimizer))

    # ---- signals

    def forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A root module is called."""
        training = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if training and self._loop.phase is not Phase.EVAL:
            self._open_step()
        self._loop.forward_begins(training=training)
        if training:
            shapes = tuple((t.shape, t.dtype) for t in tensors_in([args, kwargs]))
            self._kind.append(shapes)
            if shapes not in self._shapes and len(self._shapes) < _KEPT_SHAPES:
                self._shapes.add(shapes)
                self._on_new_call(args, kwargs)
            if self._detail is not None:
                self._detail.inputs(args, kwargs)
            elif self._walk:
                self._inputs = {
                    s._cdata for t in tensors_in([args, kwargs]) for s in storages_of(t)
                }

    def forward_ends(self, module: torch.nn.Module) -> None:
        """A root module has returned."""
        self._loop.forward_ends()

    def backward_begins(self, roots: Sequence[Any]) -> None:
        """The autograd engine starts."""
        self._open_step()
        if self._detail is not None:
            self._detail.backward_begins(roots)
        elif self._walk:
            self._walk_graph(roots)
        self._loop.backward_begins()

    def backward_ends(self, *, accumulates: bool) -> None:
        """The autograd engine is done."""
        if self._detail is not None:
            self._detail.backward_ends()
        self._loop.backward_ends(accumulates=accumulates)

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step starts."""
        if self._hears(optimizer):
            self._open_step()
            self._loop.optimizer_begins(id(optimizer))

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""
        if self._hears(optimizer):
            self._loop.optimizer_ends(id(optimizer))

    def optimizer_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A gradient scaler did not let the optimizer step."""
        if self._hears(optimizer):
            self._loop.optimizer_skipped(id(optimizer))

    def _hears(self, optimizer: torch.optim.Optimizer) -> bool:
        return self._optimizers is None or id(optimizer) in self._optimizers

    # ---- phases and steps

    def phase_begins(self, phase: Phase) -> None:
        """The loop tracker says that a phase begins."""
        if phase is Phase.IDLE and self._detail is None:
            return  # a look at the allocator less: what is idle counts to the phase before
        self._close_interval()
        self._current = phase
        if self._detail is not None:
            self._detail.phase_begins(phase)

    def step_ends(self, micro_steps: int, *, skipped: bool) -> None:
        """The loop tracker says that the step ends: the books are closed and handed over."""
        if not self._open:
            return
        self._open = False
        ended = time.perf_counter_ns()
        self._close_interval()
        if self._detail is not None:
            self._detail.end()
        held = self._census.held()
        self._ask_driver()
        kind = (tuple(self._kind), micro_steps, skipped)
        end = StepEnd(micro_steps, skipped=skipped, complete=True, at_ns=ended)
        for device, recorder in self._devices.items():
            self._record(recorder, held.get(device, HeldBytes()), kind, end)
        self._current = None
        if self._detail is not None:
            self._schedule.was_followed(self._step, self._detail.outlived())
            self._survivors = self._detail.close()
            self._detail = None
        elif self._walk:
            self._schedule.was_followed(self._step, 0)
        self._walk = False
        self._on_step(micro_steps)

    def _open_step(self) -> None:
        if self._open:
            return
        self._open = True
        self._step += 1
        self._kind.clear()
        if self._schedule.is_due(self._step):
            self._census.refresh()
            models = self._models()
            if DetailStep.possible(models):
                self._detail = DetailStep(self._census, models, self._block_bytes)
                self._detail.begin(self._survivors)
            else:
                self._walk = True
        for recorder in self._devices.values():
            recorder.begin_step()
        self._started_ns = time.time_ns()
        self._began = time.perf_counter_ns()
        self._current = None

    def _close_interval(self) -> None:
        if self._current is not None:
            for recorder in self._devices.values():
                recorder.end_interval(self._current)

    def _walk_graph(self, roots: Sequence[Any]) -> None:
        others = {h.storage._cdata for h in self._census.holdings()}
        others.update(self._inputs)
        for device, size in saved_bytes(roots, others).items():
            if device in self._devices:
                recorder = self._devices[device]
                recorder.walked = max(recorder.walked, size)

    def _ask_driver(self) -> None:
        now = time.monotonic()
        if now - self._driver_read >= self._config.driver_every_s:
            self._driver_read = now
            for recorder in self._devices.values():
                recorder.driver = recorder.source.driver()

    def _record(
        self,
        recorder: DeviceRecorder,
        held: HeldBytes,
        kind: Hashable | None,
        end: StepEnd,
    ) -> None:
        books = self._close_books(recorder, held, kind)
        self._write(
            StepRecord(
                device=recorder.position,
                step=self._step,
                started_ns=self._started_ns,
                duration_s=(end.at_ns - self._began) / 1e9,
                micro_steps=end.micro_steps,
                skipped=end.skipped,
                complete=end.complete,
                detail=self._detail is not None,
                carried=books.carried,
                end=books.end,
                peak=books.peak,
                peak_phase=books.peak_phase,
                peak_module=self._module_at_peak(recorder, books),
                master_weights=held.master_weights,
                requested=recorder.peak_requested,
                device_used=recorder.driver.device_used,
                process_used=recorder.driver.process_used,
                paged=held.paged or None,
            )
        )
        if end.complete:
            self._watch_growth(recorder, books)
        if self._detail is not None:
            for record in detail_records(self._detail, recorder, books, self._step):
                self._write(record)

    def _watch_growth(self, recorder: DeviceRecorder, books: StepBooks) -> None:
        use = books.end
        if books.carried and use.reserved is None:
            # Without an allocator to ask, what was carried over says nothing about growth.
            use = MemoryUse(**{c.value: use.of(c) for c in CENSUS})
        peak = None if books.carried and use.reserved is None else books.peak.allocated
        for growth in recorder.growth.observe(self._step, use, peak):
            self._write(
                Event(
                    kind=EventKind(growth.kind),
                    at_ns=time.time_ns(),
                    message=growth.message,
                    device=recorder.position,
                    step=growth.step,
                    bytes=growth.bytes,
                )
            )

    def _module_at_peak(self, recorder: DeviceRecorder, books: StepBooks) -> str | None:
        if self._detail is None:
            return None
        return self._detail.module_at(recorder.source.device, books.peak_index)

    def _close_books(
        self, recorder: DeviceRecorder, held: HeldBytes, kind: Hashable | None
    ) -> StepBooks:
        if self._detail is not None:
            phases, end = replay(self._detail.log, recorder.source.device)
            return recorder.close_detail(kind, Profile(tuple(phases), end), held)
        if self._walk and recorder.walked:
            return recorder.close_walked(kind, held)
        if kind is None:
            return recorder.close_partial(held, self._current or Phase.FORWARD)
        if not recorder.knows(kind):
            self._schedule.saw_new_kind()
        return recorder.close_step(kind, held)

    def out_of_memory(self, error: BaseException) -> None:
        """Memory ran out: what is known of the open step is written, and somebody told."""
        if id(error) != self._last_error:
            self._last_error = id(error)
            self.write_partial()
            self._on_out_of_memory(error)

    def write_partial(self) -> None:
        """Writes the open step as far as it has come; a step that ends later replaces it."""
        if not self._open:
            return
        end = StepEnd(0, skipped=False, complete=False, at_ns=time.perf_counter_ns())
        self._close_interval()
        if self._detail is not None:
            self._detail.take_stock()
        held = self._census.held()
        for device, recorder in self._devices.items():
            self._record(recorder, held.get(device, HeldBytes()), None, end)

    def abandon(self) -> None:
        """Training ended in the middle of a step: lets go of everything."""
        if self._detail is not None:
            self._detail.abandon()
            self._detail.close()
            self._detail = None
        self._open = False
