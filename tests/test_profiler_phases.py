"""The state machine from signals to phases and steps: no torch, no clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from vramscope.profiler.phases import LoopTracker
from vramscope.storage.records import Phase


class Heard:
    """Notes what the tracker says."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.steps: list[tuple[int, bool]] = []

    def phase_begins(self, phase: Phase) -> None:
        self.phases.append(phase.value)

    def step_ends(self, micro_steps: int, *, skipped: bool) -> None:
        self.steps.append((micro_steps, skipped))


def micro_step(loop: LoopTracker) -> None:
    loop.forward_begins(training=True)
    loop.forward_ends()
    loop.backward_begins()
    loop.backward_ends(accumulates=True)


def update(loop: LoopTracker, optimizer: str = "a") -> None:
    loop.optimizer_begins(optimizer)
    loop.optimizer_ends(optimizer)


def plain(loop: LoopTracker) -> None:
    for _ in range(2):
        micro_step(loop)
        update(loop)


def accumulation(loop: LoopTracker) -> None:
    for _ in range(4):
        micro_step(loop)
    update(loop)


def evaluation_between(loop: LoopTracker) -> None:
    micro_step(loop)
    update(loop)
    for _ in range(3):
        loop.forward_begins(training=False)
        loop.forward_ends()
    micro_step(loop)
    update(loop)


def skipped_by_scaler(loop: LoopTracker) -> None:
    micro_step(loop)
    loop.optimizer_skipped("a")
    micro_step(loop)
    update(loop)


def step_in_backward(loop: LoopTracker) -> None:
    loop.forward_begins(training=True)
    loop.forward_ends()
    loop.backward_begins()
    update(loop, "a")
    loop.backward_ends(accumulates=True)


def closure(loop: LoopTracker) -> None:
    loop.optimizer_begins("a")
    for _ in range(3):
        micro_step(loop)
    loop.optimizer_ends("a")


def super_step(loop: LoopTracker) -> None:
    micro_step(loop)
    loop.optimizer_begins("a")
    loop.optimizer_begins("a")
    loop.optimizer_ends("a")
    loop.optimizer_ends("a")


def after_exception_in_step(loop: LoopTracker) -> None:
    micro_step(loop)
    loop.optimizer_begins("a")  # raises: no end
    micro_step(loop)
    update(loop)


def after_exception_in_forward(loop: LoopTracker) -> None:
    loop.forward_begins(training=True)  # raises, and its hook was not called
    micro_step(loop)
    update(loop)
    micro_step(loop)
    update(loop)


def gradient_penalty(loop: LoopTracker) -> None:
    loop.forward_begins(training=True)
    loop.forward_ends()
    loop.backward_begins()
    loop.backward_ends(accumulates=False)  # torch.autograd.grad
    loop.backward_begins()
    loop.backward_ends(accumulates=True)
    update(loop)


def no_forward_seen(loop: LoopTracker) -> None:
    loop.backward_begins()
    loop.backward_ends(accumulates=True)
    update(loop)


@pytest.mark.parametrize(
    ("signals", "steps"),
    [
        (plain, [(1, False), (1, False)]),
        (accumulation, [(4, False)]),
        (evaluation_between, [(1, False), (1, False)]),
        (skipped_by_scaler, [(1, True), (1, False)]),
        (step_in_backward, [(1, False)]),
        (closure, [(3, False)]),
        (super_step, [(1, False)]),
        (after_exception_in_step, [(2, False)]),
        (after_exception_in_forward, [(1, False), (1, False)]),
        (gradient_penalty, [(1, False)]),
        (no_forward_seen, [(1, False)]),
    ],
)
def test_steps_end_where_the_optimizer_has_stepped(
    signals: Callable[[LoopTracker], None], steps: list[tuple[int, bool]]
) -> None:
    heard = Heard()
    signals(LoopTracker(heard, {"a"}))
    assert heard.steps == steps


def test_phases_follow_each_other() -> None:
    heard = Heard()
    evaluation_between(LoopTracker(heard, {"a"}))
    step = ["forward", "backward", "idle", "optimizer", "idle"]
    assert heard.phases == [*step, *["eval", "idle"] * 3, *step]


def test_a_step_of_two_optimizers_ends_at_the_last() -> None:
    heard = Heard()
    loop = LoopTracker(heard, {"critic", "generator"})
    for _ in range(2):
        for _ in range(5):
            micro_step(loop)
            update(loop, "critic")
        micro_step(loop)
        update(loop, "generator")
    assert heard.steps == [(1, False), (1, False)]


def test_an_optimizer_that_never_steps_is_not_waited_for() -> None:
    heard = Heard()
    loop = LoopTracker(heard, {"a", "unused"})
    for _ in range(30):
        micro_step(loop)
        update(loop, "a")
    assert len(heard.steps) == 10


def test_the_user_says_where_steps_end() -> None:
    heard = Heard()
    loop = LoopTracker(heard, {"a"})
    for _ in range(3):
        micro_step(loop)
        update(loop)
        loop.step()
    assert len(heard.steps) == 3


def test_steps_that_the_user_says_may_hold_several_updates() -> None:
    heard = Heard()
    loop = LoopTracker(heard, {"a"})
    loop.step()
    for _ in range(2):
        for _ in range(2):
            micro_step(loop)
            update(loop)
        loop.step()
    assert heard.steps == [(1, False), (1, False)]


def test_a_phase_that_the_user_says_stands_against_the_signals() -> None:
    heard = Heard()
    loop = LoopTracker(heard, {"a"})
    loop.say(Phase.EVAL)
    loop.forward_begins(training=True)
    loop.forward_ends()
    loop.say(None)
    assert heard.phases == ["eval", "idle"]
    assert heard.steps == []
