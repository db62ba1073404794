"""Gradients and growth in real loops on the CPU: accumulation, DDP's buckets, checkpoints kept."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.devices import AllocatorReading, DriverReading
from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    DeviceInfo,
    Event,
    EventKind,
    ModuleRecord,
    Phase,
    PhaseRecord,
    StepRecord,
)

EVERY_STEP = ProfilerConfig(detail_every=1, predict=False)
FIRST = ProfilerConfig(detail_first=1, detail_every=0, predict=False)
MIB = 2**20
BUCKETED = 4_202_496  # four Linear(512, 512)


@dataclass
class Recorded:
    """What the store holds of a run's first device."""

    steps: list[StepRecord]
    phases: list[tuple[PhaseRecord, ...]]
    modules: tuple[ModuleRecord, ...]
    events: list[Event]


def read(path: Path) -> Recorded:
    with RunReader(path) as reader:
        run = reader.runs().rows[0].info.id
        device = reader.devices(run)[0].id
        assert device is not None
        steps = list(reader.iter_steps(run, device))
        return Recorded(
            steps,
            [reader.phases(run, device, s.step) for s in steps],
            reader.modules(run, device, steps[0].step),
            list(reader.events(run)),
        )


def four_layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of one, over gloo."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("views", [True, False])
def test_gradients_under_ddp_count_once_however_they_lie(
    store_path: Path, one_rank: None, views: bool
) -> None:
    model = DistributedDataParallel(four_layers(), gradient_as_bucket_view=views)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients: set[int] = set()
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        for _ in range(3):
            for _ in range(2):
                model(torch.ones(2, 512)).sum().backward()
            optimizer.step()
            gradients = {
                p.grad.untyped_storage()._cdata for p in model.parameters() if p.grad is not None
            }
            optimizer.zero_grad()
    assert len(gradients) == (2 if views else 8)
    steps = read(store_path).steps
    assert [s.micro_steps for s in steps] == [2, 2, 2]
    assert [s.end.parameters for s in steps] == [BUCKETED] * 3
    assert [s.end.gradients for s in steps] == [BUCKETED] * 3


class Scripted:
    """A GPU's allocator that holds what the loop's tensors take, and what they do not explain."""

    device = torch.device("cpu")
    block_bytes = 1

    def __init__(self, model: nn.Module, hidden: int, cached: int) -> None:
        self._model = model
        self.hidden = hidden
        self.cached = cached

    def describe(self, rank: int, host: str) -> DeviceInfo:
        return DeviceInfo(rank=rank, host=host, kind="cuda", uuid="GPU-1", total_bytes=2**30)

    def read(self) -> AllocatorReading:
        tensors = [t for p in self._model.parameters() for t in (p, p.grad) if t is not None]
        held = sum({t.untyped_storage()._cdata: t.nbytes for t in tensors}.values()) + self.hidden
        return AllocatorReading(
            allocated=held,
            reserved=held + self.cached,
            requested=held,
            peak_allocated=held,
            peak_reserved=held + self.cached,
            peak_requested=held,
        )

    def driver(self) -> DriverReading:
        return DriverReading()

    def close(self) -> None:
        pass


def scripted(path: Path, hidden: int, cached: int) -> list[StepRecord]:
    model = four_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = Scripted(model, hidden, cached)
    never = ProfilerConfig(detail_first=0, detail_every=0, predict=False)
    with MemoryProfiler(model, optimizer, store=path, config=never, sources=lambda device: source):
        for _ in range(3):
            model(torch.ones(2, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return read(path).steps


def test_a_bucket_that_no_gradient_shows_is_unattributed(store_path: Path) -> None:
    for step in scripted(store_path, hidden=BUCKETED, cached=0):
        assert step.end.gradients == BUCKETED
        assert step.end.unattributed == BUCKETED
        assert step.end.cached == 0


def test_a_checkpoint_kept_after_resuming_is_no_part_of_the_model(
    store_path: Path, tmp_path: Path
) -> None:
    fresh = scripted(store_path, hidden=0, cached=0)
    resumed = scripted(tmp_path / "resumed.db", hidden=3 * BUCKETED, cached=100 * MIB)
    for before, after in zip(fresh, resumed, strict=True):
        differing = {
            name
            for (name, a), (_, b) in zip(before.end.items(), after.end.items(), strict=True)
            if a != b
        }
        assert differing == {"unattributed", "allocated", "reserved"}
        assert after.end.unattributed == 3 * BUCKETED
        assert after.end.cached == 100 * MIB


@pytest.mark.parametrize(("allocated", "reserved"), [(58.2, 139.0), (65.8, 173.4)])
def test_what_the_allocator_keeps_after_tensors_grew_is_cached(
    store_path: Path, allocated: float, reserved: float
) -> None:
    total, kept = round(allocated * 1e6), round(reserved * 1e6)
    steps = scripted(store_path, hidden=total - 2 * BUCKETED, cached=kept - total)
    assert [(s.end.allocated, s.end.reserved, s.end.cached) for s in steps] == [
        (total, kept, kept - total)
    ] * 3


def test_a_resumed_run_that_loads_its_state_is_counted_as_a_fresh_one(
    store_path: Path, tmp_path: Path
) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())

    def train(path: Path) -> list[StepRecord]:
        with MemoryProfiler(model, optimizer, store=path, config=FIRST):
            for _ in range(12):
                model(torch.ones(2, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        recorded = read(path)
        assert recorded.events == []
        return recorded.steps

    fresh = train(store_path)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(saved)
    resumed = train(tmp_path / "resumed.db")
    assert [s.end.optimizer_state for s in resumed] == [s.end.optimizer_state for s in fresh]
    state = [s.peak.optimizer_state for s in resumed]
    assert state == [2 * 4 * (64 * 64 + 64) + 8] * 12


def test_accumulated_gradients_stay_from_the_first_micro_step_on(store_path: Path) -> None:
    model = four_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        for _ in range(2):
            for _ in range(4):
                model(torch.ones(2, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    recorded = read(store_path)
    for phases in recorded.phases:
        forwards = [p.peak.gradients for p in phases if p.phase is Phase.FORWARD]
        backwards = [p.peak.gradients for p in phases if p.phase is Phase.BACKWARD]
        assert forwards == [0, BUCKETED, BUCKETED, BUCKETED]
        assert len(backwards) == 4
        assert all(p.peak.allocated == p.peak.attributed for p in phases)


class Deep(nn.Module):
    """Stages that run one micro-batch after another, all kept until the last has come through."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(2))

    def forward(self, batches: list[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(())
        for x in batches:
            for stage in self.stages:
                x = torch.tanh(stage(x))
            total = total + x.sum()
        return total


@pytest.mark.parametrize("in_flight", [1, 16])
def test_micro_batches_in_flight_are_measured_each(store_path: Path, in_flight: int) -> None:
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        model([torch.randn(8, 64) for _ in range(in_flight)]).backward()
        optimizer.step()
    (phases,) = read(store_path).phases
    assert phases[0].peak.activations == in_flight * 2 * 8 * 64 * 4


def grows(path: Path, leak: str, steps: int = 20) -> tuple[set[int], list[Event]]:
    """Trains with a fault; how the books rise from step to step, and what was said."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stash: list[torch.Tensor] = []
    if leak == "hook":
        model[0].register_forward_hook(lambda module, args, output: stash.append(output))
    total: torch.Tensor | float = 0.0
    with MemoryProfiler(model, optimizer, store=path) as profiler:
        for _ in range(steps):
            x = torch.randn(64, 256)
            loss = model(x).sum()
            if leak in ("sum", "sum, inputs deleted"):
                total = total + loss
                if leak != "sum":
                    del x, loss
                profiler.step()
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    recorded = read(path)
    rises = {
        (after.end.allocated or 0) - (before.end.allocated or 0)
        for before, after in itertools.pairwise(recorded.steps[2 : steps - 1])
    }
    for step in recorded.steps:
        assert step.end.parameters == recorded.steps[0].end.parameters
        assert step.end.optimizer_state == 0
    return rises, [e for e in recorded.events if e.kind is EventKind.LEAK]


@pytest.mark.parametrize(
    ("leak", "slope"), [("sum", 196_608), ("sum, inputs deleted", 196_608), ("hook", 65_536)]
)
def test_deleting_the_inputs_changes_no_slope_and_a_hook_that_stashes_is_seen(
    store_path: Path, leak: str, slope: int
) -> None:
    rises, leaks = grows(store_path, leak)
    assert rises == {slope}
    assert any(f"{slope // 1024} KiB a step" in e.message for e in leaks)


def test_the_same_loop_without_the_fault_rises_by_nothing(store_path: Path) -> None:
    assert grows(store_path, "none") == ({0}, [])


def test_four_more_copies_of_the_state_are_four_jumps_and_no_leak(store_path: Path) -> None:
    """An optimizer that keeps another copy of its state every tenth step, and then no more."""
    model = nn.Linear(256, 256, bias=False)

    class Hoards(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            super().step()
            self.calls = getattr(self, "calls", 0) + 1
            state = self.state[model.weight]
            if self.calls == 1 or (self.calls % 10 == 0 and len(state) < 5):
                state[f"copy{len(state)}"] = torch.zeros(2, 256, 256)

    optimizer = Hoards(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=FIRST):
        for _ in range(70):
            model(torch.ones(1, 256)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    recorded = read(store_path)
    one = 2 * 4 * 256 * 256
    assert sorted({s.end.optimizer_state or 0 for s in recorded.steps}) == [
        copies * one for copies in (1, 2, 3, 4, 5)
    ]
    assert [e.kind for e in recorded.events] == [EventKind.JUMP] * 4
    assert [e.bytes for e in recorded.events] == [one] * 4
