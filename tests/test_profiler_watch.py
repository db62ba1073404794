"""The cheap look that tells whether a census must be taken anew."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from vramscope.profiler.watch import Watch

ALIKE = ("alike",)
LONG_ENOUGH = 40


class Loop:
    """A model of many small layers, each of which can be left out of a step."""

    def __init__(self, layers: int) -> None:
        self.model = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.watch = Watch([weakref.ref(self.optimizer)])
        self.watch.begin([])

    def parameter(self, index: int) -> nn.Parameter:
        return self.optimizer.param_groups[0]["params"][index]

    def step(self, left_out: int | None = None, likeness: tuple[str, ...] | None = ALIKE) -> bool:
        """A step with a gradient everywhere but in one layer; whether a change was seen."""
        for index in range(len(self.model)):
            self.parameter(index).grad = None if index == left_out else torch.ones(1, 1)
        self.optimizer.step()
        return self.watch.changed(likeness)


def test_the_first_step_changes_and_those_like_it_do_not() -> None:
    loop = Loop(10)
    assert [loop.step() for _ in range(4)] == [True, False, False, False]


@pytest.mark.parametrize("layers", [10, 60])
def test_in_a_small_model_every_change_is_seen_at_once_however_long_it_was_steady(
    layers: int,
) -> None:
    loop = Loop(layers)
    for _ in range(LONG_ENOUGH):
        loop.step()
    seen = [loop.step(left_out=index) for index in (None, 5, 5, 7, None)]
    assert seen == [False, True, False, True, True]


def test_before_a_large_loop_is_steady_every_change_is_seen_at_once() -> None:
    loop = Loop(300)
    for index in range(10):
        loop.step(left_out=None if index % 2 else 299)
        assert loop.step(left_out=299 if index % 2 else None)


def test_a_change_that_another_kind_of_step_announces_is_seen_at_once() -> None:
    loop = Loop(300)
    for _ in range(LONG_ENOUGH):
        loop.step()
    assert loop.step(left_out=299, likeness=("another",))
    assert loop.step(left_out=None, likeness=ALIKE)


def test_an_unannounced_change_is_seen_within_a_turn_and_from_then_on_at_once() -> None:
    loop = Loop(300)
    for _ in range(LONG_ENOUGH):
        loop.step()
    seen = [loop.step(left_out=299) for _ in range(5)]
    assert seen.count(True) == 1
    for index in range(10):
        assert loop.step(left_out=None if index % 2 == 0 else 299)


def test_a_new_state_beside_the_others_is_seen() -> None:
    loop = Loop(3)
    loop.step()
    loop.optimizer.state[loop.parameter(1)]["copy"] = torch.zeros(1)
    assert loop.step()
    assert not loop.step()


def test_a_state_that_cannot_be_counted_is_a_change_every_time() -> None:
    loop = Loop(3)
    loop.step()
    loop.optimizer.state[torch.nn.Parameter(torch.zeros(1))] = object()
    assert [loop.watch.changed(ALIKE) for _ in range(3)] == [True] * 3


def test_new_parameters_of_the_optimizer_are_looked_at_too() -> None:
    loop = Loop(3)
    loop.step()
    late = nn.Parameter(torch.ones(1))
    loop.optimizer.add_param_group({"params": [late]})
    assert loop.watch.changed(ALIKE)
    assert not loop.watch.changed(ALIKE)
    late.grad = torch.ones(1)
    assert loop.watch.changed(ALIKE)


def test_other_parameters_are_looked_at_though_no_optimizer_has_them() -> None:
    loop, other = Loop(3), nn.Parameter(torch.ones(1))
    loop.watch.begin([weakref.ref(other)])
    loop.step()
    other.grad = torch.ones(1)
    assert loop.watch.changed(ALIKE)


def test_a_head_that_takes_turns_with_another_is_right_at_every_step(store_path: Path) -> None:
    """Two heads of the same depth and another size: nothing but the gradients tells them apart."""
    from vramscope.profiler import MemoryProfiler, ProfilerConfig
    from vramscope.storage.reader import RunReader

    body = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(80)])
    heads = nn.ModuleList([nn.Linear(4, 8, bias=False), nn.Linear(4, 24, bias=False)])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.heads = body, heads

        def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
            return self.heads[head](self.body(x))

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    config = ProfilerConfig(detail_first=1, detail_every=0, predict=False)
    with MemoryProfiler(model, optimizer, store=store_path, config=config):
        for step in range(60):
            model(torch.ones(1, 4), step % 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info.id
        device = reader.devices(run)[0].id
        assert device is not None
        held = [s.end.gradients for s in reader.iter_steps(run, device)]
    shared = 80 * 16 * 4
    assert held == [shared + (4 * 8 if step % 2 == 0 else 4 * 24) * 4 for step in range(60)]
