"""From signals to facts: what is seen at each step, handed to the thread that keeps the books."""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from vramscope.storage.records import Phase

from .activations import saved_bytes
from .census import Census, HeldBytes
from .config import ProfilerConfig
from .detail import DetailStep
from .device_books import KEPT_KINDS
from .devices.source import MemorySource
from .facts import StepFacts
from .gauges import DeviceGauge
from .heap import HeapSearch
from .phases import LoopTracker
from .schedule import DetailSchedule
from .storages import shape_of, storages_of, tensors_in
from .tracker import Survivor

_KEPT_SHAPES = 1_000


class StepRecorder:
    """Hears signals and hands over, step by step, what was seen.

    Args:
        census: Of the run's models and optimizers.
        models: Root modules, for detail steps; called for the living ones.
        config: When to follow in detail.
        block_bytes: By device type, what an allocation is rounded up to; filled as devices come.
        hand_over: Takes what was seen of a step; must not block.
        on_new_call: Told of a forward call with shapes not seen before, with its arguments.
        on_new_optimizer: Told of an optimizer that takes the place of one that is gone; it is then
            to be expected.
        on_step: Told after every step, with its number of micro-steps.
        on_out_of_memory: Told when memory has run out, with the error; must not keep it.
    """

    def __init__(
        self,
        census: Census,
        models: Callable[[], list[torch.nn.Module]],
        config: ProfilerConfig,
        block_bytes: dict[str, int],
        hand_over: Callable[[StepFacts], None],
        *,
        on_new_call: Callable[[Any, Any], None],
        on_new_optimizer: Callable[[torch.optim.Optimizer], object],
        on_step: Callable[[int], None],
        on_out_of_memory: Callable[[BaseException], None],
    ) -> None:
        self._census = census
        self._models = models
        self._config = config
        self._hand_over = hand_over
        self._on_new_call = on_new_call
        self._on_new_optimizer = on_new_optimizer
        self._on_step = on_step
        self._on_out_of_memory = on_out_of_memory
        self._last_error: int | None = None
        self._shapes: set[Hashable] = set()
        self._gauges: dict[torch.device, DeviceGauge] = {}
        self._followed: OrderedDict[Hashable, None] = OrderedDict()
        self._block_bytes = block_bytes
        self._loop = LoopTracker(self, set())
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] | None = None
        self._step = 0
        self._open = False
        self._detail: DetailStep | None = None
        self._walk = False
        self._survivors: list[Survivor] = []
        self._lingering: DetailStep | None = None
        self._was_compiled = False
        """Whether steps end inside compiled calls: then none is followed any more."""
        self._heap = HeapSearch()
        self._to_search = False
        self._schedule = DetailSchedule(config)
        self._started_ns = 0
        self._began = 0
        self._kind: list[Hashable] = []
        self._first_node = 0
        self._nodes = 0
        self._inputs: set[int] = set()
        self._current: Phase | None = None
        self._driver_due = 0

    # ---- set-up

    @property
    def loop(self) -> LoopTracker:
        """The state machine, for those who say steps and phases themselves."""
        return self._loop

    @property
    def step_number(self) -> int:
        """Number of the step that is open, or of the last one."""
        return self._step

    def add_device(self, source: MemorySource) -> None:
        """Begins to record a device."""
        self._gauges[source.device] = DeviceGauge(source)
        self._block_bytes[source.device.type] = source.block_bytes
        self._census.refresh()
        source.read()

    def expect(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer belongs to the loop; others are then not heard."""
        self._optimizers = {**(self._optimizers or {}), id(optimizer): weakref.ref(optimizer)}
        self._loop.expect(id(optimizer))

    # ---- signals

    def forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A root module is called."""
        training = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        shapes = _shapes(args, kwargs) if training else None
        new = training and shapes not in self._shapes and len(self._shapes) < _KEPT_SHAPES
        if training and self._loop.phase is not Phase.EVAL:
            if new:
                self._schedule.saw_new_kind()
            self._open_step()
        self._loop.forward_begins(training=training)
        if training:
            self._kind.append(shapes)
            if new:
                self._shapes.add(shapes)
                self._on_new_call(args, kwargs)
            if self._detail is not None:
                self._detail.inputs(args, kwargs)
                if self._to_search:
                    self._to_search = False
                    self._detail.search(self._heap, self._survivors)
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
        self._nodes = torch._C._autograd._get_sequence_nr() - self._first_node
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
        if self._optimizers is None:
            return True
        known = self._optimizers.get(id(optimizer))
        if known is not None and known() is optimizer:
            return True
        dead = [key for key, reference in self._optimizers.items() if reference() is None]
        if not dead or not self._census.owns(optimizer):
            return False
        for key in dead:  # One of the loop's optimizers was replaced by another.
            del self._optimizers[key]
            self._loop.forget(key)
        self._on_new_optimizer(optimizer)
        return True

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
        kind = (tuple(self._kind), micro_steps, skipped)
        if self._detail is None:
            held = self._census.held((self._nodes, micro_steps, skipped))
            self._hand_over(self._facts(kind, micro_steps, skipped, ended, held))
            if self._walk:
                self._follows(kind, 0)
            elif kind not in self._followed:
                self._schedule.saw_new_kind()
        else:
            holdings, held = self._census.recount()
            self._detail.end(holdings)
            self._hand_over(self._facts(kind, micro_steps, skipped, ended, held))
            self._follows(kind, self._detail.outlived())
            self._survivors = self._detail.close()
            if not self._detail.leave():
                self._lingering, self._was_compiled = self._detail, True
            self._detail = None
        self._current = None
        self._walk = False
        self._on_step(micro_steps)

    def _follows(self, kind: Hashable, outlived: int) -> None:
        """A step of this kind was followed; steps of its kind can be told from it for a while."""
        self._schedule.was_followed(self._step, outlived)
        self._followed[kind] = None
        self._followed.move_to_end(kind)
        if len(self._followed) > KEPT_KINDS:
            self._followed.popitem(last=False)

    def _open_step(self) -> None:
        if self._open:
            return
        self._open = True
        self._step += 1
        if self._lingering is not None and self._lingering.leave():
            self._lingering = None
        self._kind.clear()
        self._first_node = torch._C._autograd._get_sequence_nr()
        if self._schedule.is_due(self._step):
            self._census.refresh()
            models = self._models()
            if not self._was_compiled and DetailStep.possible(models):
                self._detail = DetailStep(self._census, models, self._block_bytes)
                self._detail.begin(self._survivors)
                self._to_search = self._schedule.leaks
            else:
                self._walk = True
        for gauge in self._gauges.values():
            gauge.begin_step()
        self._started_ns = time.time_ns()
        self._began = time.perf_counter_ns()
        self._current = None

    def _close_interval(self) -> None:
        if self._current is not None:
            for gauge in self._gauges.values():
                gauge.end_interval(self._current)

    def _walk_graph(self, roots: Sequence[Any]) -> None:
        others = {h.storage._cdata for h in self._census.holdings()}
        others.update(self._inputs)
        for device, size in saved_bytes(roots, others).items():
            gauge = self._gauges.get(device)
            if gauge is not None:
                gauge.walked = max(gauge.walked, size)

    def _ask_driver(self, now_ns: int) -> None:
        if now_ns >= self._driver_due:
            self._driver_due = now_ns + int(self._config.driver_every_s * 1e9)
            for gauge in self._gauges.values():
                gauge.driver = gauge.source.driver()

    def _facts(
        self,
        kind: Hashable | None,
        micro_steps: int,
        skipped: bool,
        ended: int,
        held: dict[torch.device, HeldBytes],
    ) -> StepFacts:
        self._ask_driver(ended)
        return StepFacts(
            self._step,
            self._started_ns,
            (ended - self._began) / 1e9,
            micro_steps,
            skipped,
            kind,
            self._current,
            held,
            {device: gauge.facts() for device, gauge in self._gauges.items()},
            None if self._detail is None else self._detail.findings(),
        )

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
        ended = time.perf_counter_ns()
        self._close_interval()
        holdings, held = self._census.recount()
        if self._detail is not None:
            self._detail.take_stock(holdings)
        facts = self._facts(None, 0, skipped=False, ended=ended, held=held)
        if facts.detail is not None:  # The step may go on, and with it what it found.
            facts = facts._replace(detail=facts.detail.frozen())
        self._hand_over(facts)

    def abandon(self) -> None:
        """Training ended in the middle of a step: lets go of everything."""
        if self._detail is not None:
            self._detail.abandon()
            self._detail.close()
            self._detail = None
        if self._lingering is not None:
            self._lingering.leave()
        self._open = False


def _shapes(args: Any, kwargs: Any) -> Hashable:
    """What tells one kind of call from another: shapes and dtypes of all tensors handed in."""
    found: list[Hashable] = []
    for value in (*args, *kwargs.values()):
        if type(value) is torch.Tensor:
            found += (shape_of(value), value.dtype)
        else:
            for tensor in tensors_in(value):
                found += (shape_of(tensor), tensor.dtype)
    return tuple(found)
