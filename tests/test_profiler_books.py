"""Closing the books: classes of a detail step's profile against what an allocator read."""

from __future__ import annotations

from vramscope.profiler.books import Interval, Profile, phase_books
from vramscope.profiler.census import HeldBytes
from vramscope.profiler.devices.source import AllocatorReading
from vramscope.profiler.replay import PhaseBooks
from vramscope.storage.records import MemoryClass, Phase

FORWARD, BACKWARD, IDLE, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.IDLE, Phase.OPTIMIZER


def interval(phase: Phase, peak: int) -> Interval:
    return Interval(phase, AllocatorReading(allocated=peak, peak_allocated=peak, reserved=peak))


def accumulating() -> Profile:
    """Two micro-steps: gradients of 40 are there in the second."""

    def phase(name: Phase, gradients: int, activations: int) -> PhaseBooks:
        classes = {MemoryClass.GRADIENTS: gradients, MemoryClass.ACTIVATIONS: activations}
        return PhaseBooks(name, 0.1, gradients + activations, classes)

    return Profile(
        (
            phase(FORWARD, 0, 100),
            phase(BACKWARD, 20, 90),
            phase(IDLE, 40, 0),
            phase(FORWARD, 40, 100),
            phase(BACKWARD, 40, 90),
            phase(IDLE, 40, 0),
            phase(OPTIMIZER, 40, 0),
        )
    )


def test_each_micro_step_is_explained_by_its_own() -> None:
    intervals = [
        interval(FORWARD, 100),
        interval(BACKWARD, 110),
        interval(FORWARD, 140),
        interval(BACKWARD, 130),
        interval(OPTIMIZER, 40),
    ]
    books = phase_books(accumulating(), intervals, HeldBytes())
    assert [phase.phase for phase, _ in books] == [
        FORWARD,
        BACKWARD,
        FORWARD,
        BACKWARD,
        OPTIMIZER,
    ]
    assert [use.unattributed for _, use in books] == [0, 0, 0, 0, 0]
    assert [use.gradients for _, use in books] == [0, 20, 40, 40, 40]


def test_a_step_of_other_phases_is_matched_by_their_names() -> None:
    books = phase_books(accumulating(), [interval(BACKWARD, 200)], HeldBytes())
    assert {phase.phase for phase, _ in books} == {BACKWARD}
    assert all(use.allocated == 200 for _, use in books)


def test_without_an_allocator_the_classes_are_the_sum() -> None:
    books = phase_books(accumulating(), [], None)
    assert [use.allocated for _, use in books] == [100, 110, 40, 140, 130, 40, 40]
    assert all(use.unattributed == 0 for _, use in books)
