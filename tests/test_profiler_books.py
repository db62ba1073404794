"""One step's books, closed from readings and a detail step's profile."""

from __future__ import annotations

import pytest
from vramscope.profiler.books import Interval, Profile, phase_books
from vramscope.profiler.census import HeldBytes
from vramscope.profiler.devices.source import AllocatorReading
from vramscope.profiler.replay import ClassBytes, PhaseBooks
from vramscope.storage.records import MemoryClass, Phase

WEIGHTS = {MemoryClass.PARAMETERS: 40}
HELD = HeldBytes({**WEIGHTS, MemoryClass.GRADIENTS: 40})


def phase(kind: Phase, peak: int, classes: ClassBytes) -> PhaseBooks:
    assert sum(classes.values()) == peak
    return PhaseBooks(kind, 0.0, peak, classes)


def reading(kind: Phase, peak: int) -> Interval:
    return Interval(kind, AllocatorReading(allocated=80, peak_allocated=peak))


def accumulation() -> Profile:
    """Two micro-steps: gradients are there from the first backward on."""
    saved, grads = {MemoryClass.ACTIVATIONS: 60}, {MemoryClass.GRADIENTS: 40}
    return Profile(
        (
            phase(Phase.FORWARD, 100, {**WEIGHTS, **saved}),
            phase(Phase.BACKWARD, 120, {**WEIGHTS, **saved, MemoryClass.TEMPORARIES: 20}),
            phase(Phase.IDLE, 80, {**WEIGHTS, **grads}),
            phase(Phase.FORWARD, 140, {**WEIGHTS, **grads, **saved}),
            phase(Phase.BACKWARD, 160, {**WEIGHTS, **grads, **saved, MemoryClass.TEMPORARIES: 20}),
            phase(Phase.IDLE, 80, {**WEIGHTS, **grads}),
            phase(Phase.OPTIMIZER, 80, {**WEIGHTS, **grads}),
        )
    )


FOLLOWED = [
    reading(Phase.FORWARD, 100),
    reading(Phase.BACKWARD, 120),
    reading(Phase.FORWARD, 140),
    reading(Phase.BACKWARD, 160),
    reading(Phase.OPTIMIZER, 80),
]


def test_between_detail_steps_each_micro_step_explains_its_own_peak() -> None:
    books = phase_books(accumulation(), FOLLOWED, HELD)
    assert [use.allocated for _, use in books] == [100, 120, 140, 160, 80]
    assert [use.unattributed for _, use in books] == [0] * 5


@pytest.mark.parametrize("intervals", [FOLLOWED[2:], [*FOLLOWED[:2], *FOLLOWED]])
def test_other_micro_steps_than_in_the_profile_are_explained_by_its_highest(
    intervals: list[Interval],
) -> None:
    books = phase_books(accumulation(), intervals, HELD)
    assert [p.phase for p, _ in books] == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert [use.allocated for _, use in books] == [140, 160, 80]
    assert [use.unattributed for _, use in books] == [0] * 3


def test_what_is_idle_counts_to_the_phase_before() -> None:
    clipping = {**WEIGHTS, MemoryClass.GRADIENTS: 40, MemoryClass.TEMPORARIES: 40}
    profile = Profile(
        (
            phase(Phase.FORWARD, 100, {**WEIGHTS, MemoryClass.ACTIVATIONS: 60}),
            phase(Phase.BACKWARD, 110, {**WEIGHTS, MemoryClass.ACTIVATIONS: 70}),
            phase(Phase.IDLE, 120, clipping),
            phase(Phase.OPTIMIZER, 80, {**WEIGHTS, MemoryClass.GRADIENTS: 40}),
        )
    )
    intervals = [reading(Phase.FORWARD, 100), reading(Phase.BACKWARD, 120)]
    books = phase_books(profile, [*intervals, reading(Phase.OPTIMIZER, 80)], HELD)
    name, use = books[1]
    assert name.phase is Phase.BACKWARD
    assert (use.allocated, use.temporaries, use.unattributed) == (120, 40, 0)
    # A device without an allocator's figures keeps its idle phases: nothing was merged there.
    assert [p.phase for p, _ in phase_books(profile, [], HELD)].count(Phase.IDLE) == 1


def test_a_step_of_other_phases_is_matched_by_their_names() -> None:
    books = phase_books(accumulation(), [reading(Phase.BACKWARD, 200)], HELD)
    assert {phase.phase for phase, _ in books} == {Phase.BACKWARD}
    assert all(use.allocated == 200 for _, use in books)


def test_without_an_allocator_the_classes_are_the_sum() -> None:
    books = phase_books(accumulation(), [], None)
    assert [use.allocated for _, use in books] == [100, 120, 80, 140, 160, 80, 80]
    assert all(use.unattributed == 0 for _, use in books)
