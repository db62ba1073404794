"""What a detail step tells: its timeline, what the peak is made of, and what ran out."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.demo.gpt import GPT, GPTConfig
from vramscope.profiler.replay import DetailLog, PhaseMark, largest_groups, replay, timeline
from vramscope.profiler.tracker import LogEntry, TrackedStorage
from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    EventKind,
    MemoryClass,
    ModuleRecord,
    PeakGroup,
    Phase,
    RunStatus,
    StepRecord,
    TimelinePoint,
)

CPU = torch.device("cpu")
DETAIL = ProfilerConfig(detail_every=1, predict=False)


class Details:
    """All that the store tells of one step."""

    def __init__(self, path: Path, step: int) -> None:
        with RunReader(path) as reader:
            self.run = reader.runs().rows[0].info
            device = reader.devices(self.run.id)[0].id
            assert device is not None
            found = reader.step(self.run.id, device, step)
            assert found is not None
            self.step: StepRecord = found
            self.timeline: tuple[TimelinePoint, ...] = reader.timeline(self.run.id, device, step)
            self.groups: tuple[PeakGroup, ...] = reader.peak_groups(self.run.id, device, step)
            self.modules: tuple[ModuleRecord, ...] = reader.modules(self.run.id, device, step)
            self.events = reader.events(self.run.id)


def storage(serial: int, size: int, kind: MemoryClass | None) -> TrackedStorage:
    made = TrackedStorage(serial, size, (size,), torch.uint8, CPU)
    made.memory_class = kind
    return made


def a_log() -> DetailLog:
    """Weights of 100; forward makes 50 and 30, frees 30; backward makes 20, frees 50."""
    weights = storage(1, 100, MemoryClass.PARAMETERS)
    kept = storage(2, 50, MemoryClass.ACTIVATIONS)
    passing = storage(3, 30, None)
    gradient = storage(4, 20, MemoryClass.GRADIENTS)
    entries = [
        LogEntry(kept, 1, 10),
        LogEntry(passing, 1, 20),
        LogEntry(passing, -1, 30),
        LogEntry(gradient, 1, 110),
        LogEntry(kept, -1, 120),
    ]
    marks = [PhaseMark(Phase.FORWARD, 0, 0, 100), PhaseMark(Phase.BACKWARD, 3, 100, 200)]
    return DetailLog([weights], entries, marks)


def test_replay_gives_each_phase_its_own_peak() -> None:
    books, end = replay(a_log(), CPU)
    assert [(b.phase, b.peak, b.peak_index) for b in books] == [
        (Phase.FORWARD, 180, 2),
        (Phase.BACKWARD, 170, 4),
    ]
    assert books[1].classes[MemoryClass.ACTIVATIONS] == 50
    assert end[MemoryClass.ACTIVATIONS] == 0
    assert end[MemoryClass.GRADIENTS] == 20


@pytest.mark.parametrize("points", [1, 2, 7, 1000])
def test_a_timeline_however_short_keeps_the_peak_and_the_end(points: int) -> None:
    instants = timeline(a_log(), CPU, points)
    assert max(i.total for i in instants) == 180
    assert instants[-1].total == 120
    assert [i.at_ns for i in instants] == sorted(i.at_ns for i in instants)
    assert len(instants) <= points + 1


def test_groups_are_what_was_alive_at_the_place() -> None:
    groups = largest_groups(a_log(), CPU, 2, 10)
    assert [(g.memory_class.value, g.bytes) for g in groups] == [
        ("parameters", 100),
        ("activations", 50),
        ("temporaries", 30),
    ]
    assert len(largest_groups(a_log(), CPU, 2, 1)) == 1


def train(path: Path, model: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    with MemoryProfiler(model, optimizer, store=path, config=DETAIL):
        for _ in range(steps):
            x = torch.randint(0, 256, (4, 32))
            model(x, x)[1].backward()
            optimizer.step()
            optimizer.zero_grad()


def test_the_peak_is_explained(store_path: Path) -> None:
    train(store_path, GPT(GPTConfig(n_layer=2, n_embd=64, n_head=4, block_size=32)))
    details = Details(store_path, 2)
    assert details.step.peak_phase is Phase.BACKWARD
    assert details.step.peak_module == ""  # the loss, in the root's own forward
    assert max(p.use.allocated or 0 for p in details.timeline) == details.step.peak.allocated
    assert {p.phase for p in details.timeline} >= {
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
    }
    assert len(details.groups) == 10
    sizes = [g.bytes for g in details.groups]
    assert sizes == sorted(sizes, reverse=True)
    logits = next(g for g in details.groups if g.memory_class is MemoryClass.TEMPORARIES)
    assert (logits.shape, logits.dtype) in {("128×256", "float32"), ("4×32×256", "float32")}


def test_the_peaks_module_is_named(store_path: Path) -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat(1, 64).exp().sum(dim=1, keepdim=True)

    model = nn.Sequential()
    model.add_module("first", nn.Linear(64, 64))
    model.add_module("wide", Wide())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=DETAIL):
        model(torch.randn(256, 64)).sum().backward()
        optimizer.step()
    assert Details(store_path, 1).step.peak_module == "wide"


def test_modules_are_told_apart_by_dtype(store_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.layer(x)
            return hidden.tanh() + hidden.to(torch.bfloat16).exp()

    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=DETAIL):
        model(torch.randn(8, 32)).sum().backward()
        optimizer.step()
    held = {(m.module, m.dtype): m.activations for m in Details(store_path, 1).modules}
    assert held[("", "bfloat16")] == 8 * 32 * 2
    assert held[("", "float32")] == 8 * 32 * 4


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_recomputes_is_not_kept(store_path: Path, reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 64)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant, preserve_rng_state=False)
            return x

    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=DETAIL):
        model(torch.randn(128, 64)).sum().backward()
        optimizer.step()
    details = Details(store_path, 1)
    one = 128 * 64 * 4
    assert sum(m.activations for m in details.modules) == 3 * one
    assert max(p.use.activations or 0 for p in details.timeline) == 3 * one


class Exhausted(torch.autograd.Function):
    """Runs out of memory where it is told to."""

    where = ""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        if Exhausted.where == "forward":
            raise torch.OutOfMemoryError("no more memory")
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        if Exhausted.where == "backward":
            raise torch.OutOfMemoryError("no more memory")
        return grad


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Exhausted.apply(self.layers(x))


class Descent(torch.optim.SGD):
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if Exhausted.where == "optimizer":
            raise torch.OutOfMemoryError("no more memory")
        super().step()


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_step_that_runs_out_of_memory_is_kept_as_far_as_it_came(
    store_path: Path, where: str, wrapped: bool
) -> None:
    Exhausted.where = ""
    model = Stack()
    optimizer = Descent(model.parameters(), lr=0.1)

    def train_until_exhausted() -> None:
        with MemoryProfiler(model, optimizer, store=store_path, config=DETAIL):
            for Exhausted.where in ("", where):
                try:
                    model(torch.randn(128, 64)).sum().backward()
                    optimizer.step()
                except torch.OutOfMemoryError as error:
                    if wrapped:
                        raise RuntimeError("training failed") from error
                    raise
                optimizer.zero_grad()

    with pytest.raises(RuntimeError if wrapped else torch.OutOfMemoryError):
        train_until_exhausted()
    details = Details(store_path, 2)
    assert details.run.status is RunStatus.OUT_OF_MEMORY
    assert not details.step.complete
    assert details.groups
    if where == "forward":
        assert details.step.peak.activations == 2 * 128 * 64 * 4  # what both tanh keep
    (event,) = details.events
    assert event.kind is EventKind.OOM
    assert event.step == 2
    assert event.phase is Phase(where)
    assert "no more memory" in event.message


def test_a_step_that_was_not_followed_carries_nothing_when_it_breaks_off(store_path: Path) -> None:
    Exhausted.where = ""
    model = Stack()
    optimizer = Descent(model.parameters(), lr=0.1)
    config = ProfilerConfig(detail_first=1, detail_every=0, predict=False)

    def run_out() -> None:
        with MemoryProfiler(model, optimizer, store=store_path, config=config):
            for Exhausted.where in ("", "", "forward"):
                model(torch.randn(128, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(torch.OutOfMemoryError):
        run_out()
    step = Details(store_path, 3).step
    assert (step.complete, step.carried) == (False, False)
    assert step.peak_phase is Phase.FORWARD
    assert step.peak.activations is None
    assert step.peak.parameters == 2 * 4 * (64 * 64 + 64)


def test_an_error_that_was_caught_is_told_once_and_the_step_is_replaced(store_path: Path) -> None:
    Exhausted.where = "backward"
    model = Stack()
    optimizer = Descent(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=DETAIL):
        try:
            model(torch.randn(128, 64)).sum().backward()
        except torch.OutOfMemoryError:
            Exhausted.where = ""
        model(torch.randn(64, 64)).sum().backward()
        optimizer.step()
    details = Details(store_path, 1)
    assert details.step.complete
    assert [e.kind for e in details.events] == [EventKind.OOM]
    assert details.run.status is RunStatus.COMPLETED


def test_nothing_of_ours_keeps_what_the_error_held(store_path: Path) -> None:
    Exhausted.where = ""
    model = Stack()
    optimizer = Descent(model.parameters(), lr=0.1)
    profiler = MemoryProfiler(model, optimizer, store=store_path, config=DETAIL).attach()
    Exhausted.where = "backward"
    held: list[weakref.ref[torch.Tensor]] = []

    def run_out() -> None:
        x = torch.randn(128, 64)
        held.append(weakref.ref(x))
        model(x).sum().backward()

    with pytest.raises(torch.OutOfMemoryError):
        run_out()
    gc.collect()
    assert held[0]() is None
    profiler.close()


def test_what_would_have_taken_less_is_said(store_path: Path) -> None:
    model = GPT(GPTConfig(n_layer=2, n_embd=64, n_head=4, block_size=32))
    optimizer = torch.optim.AdamW(model.parameters())

    def run_out() -> None:
        with MemoryProfiler(model, optimizer, store=store_path):
            x = torch.randint(0, 256, (8, 32))
            model(x, x)[1].backward()
            raise torch.OutOfMemoryError("no more memory")

    with pytest.raises(torch.OutOfMemoryError):
        run_out()
    (event,) = Details(store_path, 1).events
    assert "micro_batch 8 → 4" in event.message
    assert "gradient checkpointing" in event.message
    assert "MiB less" in event.message
