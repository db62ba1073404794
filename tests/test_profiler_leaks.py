"""Leaks in real loops on the CPU: told by class and by slope, and quiet where nothing leaks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from vramscope.profiler import MemoryProfiler
from vramscope.profiler.config import ProfilerConfig
from vramscope.profiler.schedule import DetailSchedule
from vramscope.storage.reader import RunReader
from vramscope.storage.records import Event, EventKind, StepRecord

KIB = 1024


class Loop:
    """A three-layer network, 256 wide, and what its loop keeps although it should not."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.total: torch.Tensor | float = 0.0
        self.kept: list[torch.Tensor] = []

    def update(self, loss: torch.Tensor, retain: bool = False) -> None:
        loss.backward(retain_graph=retain)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def forward(self) -> torch.Tensor:
        return self.model(torch.randn(64, 256)).sum()


def sums_losses(loop: Loop, profiler: MemoryProfiler) -> None:
    loss = loop.forward()
    loop.total = loop.total + loss
    loop.update(loss, retain=True)


def sums_losses_without_backward(loop: Loop, profiler: MemoryProfiler) -> None:
    loop.total = loop.total + loop.forward()
    profiler.step()


def stashes_outputs(loop: Loop, profiler: MemoryProfiler) -> None:
    output = loop.model(torch.randn(64, 256))
    loop.kept.append(output)
    loop.update(output.sum())


def healthy(loop: Loop, profiler: MemoryProfiler) -> None:
    loop.update(loop.forward())


def record(
    path: Path, body: Callable[[Loop, MemoryProfiler], None], steps: int
) -> tuple[list[StepRecord], list[Event]]:
    loop = Loop()
    with MemoryProfiler(loop.model, loop.optimizer, store=path) as profiler:
        for _ in range(steps):
            body(loop, profiler)
    return stored(path)


def stored(path: Path) -> tuple[list[StepRecord], list[Event]]:
    with RunReader(path) as reader:
        run = reader.runs().rows[0].info.id
        device = reader.devices(run)[0].id
        assert device is not None
        return list(reader.iter_steps(run, device)), list(reader.events(run))


@pytest.mark.parametrize(
    ("body", "slope", "said"),
    [
        (sums_losses, 196_608, "activations grow by 128 KiB a step since step 1"),
        (sums_losses_without_backward, 196_608, "temporaries grow by 192 KiB a step"),
        (stashes_outputs, 65_536, "temporaries grow by 64 KiB a step"),
    ],
)
def test_a_leak_is_told_with_its_class_and_slope(
    store_path: Path,
    body: Callable[[Loop, MemoryProfiler], None],
    slope: int,
    said: str,
) -> None:
    steps, events = record(store_path, body, 20)
    growth = [
        (after.end.allocated or 0) - (before.end.allocated or 0)
        for before, after in itertools.pairwise(steps[2:19])
    ]
    assert set(growth) == {slope}
    leaks = [e.message for e in events if e.kind is EventKind.LEAK]
    assert any(message.startswith(said) for message in leaks)


def test_a_healthy_loop_is_quiet_and_not_followed_more_than_asked(store_path: Path) -> None:
    steps, events = record(store_path, healthy, 60)
    assert events == []
    assert [s.step for s in steps if s.detail] == [1, 2, 3, 50]


def test_adams_state_is_no_leak(store_path: Path) -> None:
    loop = Loop()
    loop.optimizer = torch.optim.AdamW(loop.model.parameters())  # type: ignore[assignment]
    with MemoryProfiler(loop.model, loop.optimizer, store=store_path):
        for _ in range(20):
            loop.update(loop.forward())
    with RunReader(store_path) as reader:
        assert reader.events(reader.runs().rows[0].info.id) == ()


def test_following_growth_has_an_end() -> None:
    schedule = DetailSchedule(ProfilerConfig(detail_first=3, detail_every=50))
    followed = []
    for step in range(1, 400):
        if schedule.is_due(step):
            followed.append(step)
            schedule.was_followed(step, outlived=step * 1000)
    assert followed[:27] == list(range(1, 28))
    assert len(followed) < 40


def test_a_user_who_wants_no_detail_gets_none() -> None:
    schedule = DetailSchedule(ProfilerConfig(detail_first=0, detail_every=0))
    schedule.saw_new_kind()
    assert not any(schedule.is_due(step) for step in range(1, 100))


@pytest.mark.parametrize("detached", [False, True], ids=["output", "detached output"])
def test_what_leaks_between_followed_steps_is_found_at_the_next_followed_one(
    store_path: Path, detached: bool
) -> None:
    """An allocator would show it at every step; on a CPU tensors must be looked for."""
    model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 100))
    optimizer = torch.optim.Adam(model.parameters())
    kept: list[torch.Tensor] = []
    dataset = [torch.randn(64, 100) for _ in range(10)]  # as large as an output, and no leak
    with MemoryProfiler(model, optimizer, store=store_path):
        for step in range(104):
            output = model(dataset[step % 10])
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(output.detach() if detached else output)
    steps, events = stored(store_path)
    followed = [s for s in steps if s.detail]
    assert {s.step for s in followed} >= {1, 2, 3, 50, 100}
    one = 64 * 100 * 4
    for step in followed:
        held = (step.end.activations or 0) + (step.end.temporaries or 0)
        batches = min(step.step, len(dataset))  # those that were met; the loss is beside them
        assert 0 <= held - (step.step + batches) * one < one
    assert {e.kind for e in events} == {EventKind.LEAK}  # told, told again as it grew, never ended


def test_tensors_of_others_that_cannot_be_asked_stop_no_search(store_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 100))
    optimizer = torch.optim.Adam(model.parameters())
    symbolic = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(5, 7))
    assert not isinstance(symbolic.shape[0], int)
    kept: list[torch.Tensor] = []
    config = ProfilerConfig(predict=False)
    with MemoryProfiler(model, optimizer, store=store_path, config=config) as profiler:
        for _ in range(12):
            output = model(torch.ones(64, 100))
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(output)
        assert profiler.steps == 12
    assert len(stored(store_path)[0]) == 12
