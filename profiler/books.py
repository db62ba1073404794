"""From readings, census and detail to one step's books on one device. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vramscope.storage.records import MemoryClass, MemoryUse, Phase

from .census import HeldBytes
from .devices.source import AllocatorReading
from .replay import ClassBytes, PhaseBooks

CENSUS = (
    MemoryClass.PARAMETERS,
    MemoryClass.GRADIENTS,
    MemoryClass.OPTIMIZER_STATE,
    MemoryClass.BUFFERS,
)
"""What a census always knows; everything else is known from detail steps only."""

# Between detail steps these are taken from the census of this very step, the rest is carried.
_FRESH = (MemoryClass.PARAMETERS, MemoryClass.OPTIMIZER_STATE, MemoryClass.BUFFERS)


@dataclass(frozen=True, slots=True)
class Interval:
    """A phase as the allocator saw it: its reading at the phase's end, with the phase's peak."""

    phase: Phase
    reading: AllocatorReading


@dataclass(frozen=True, slots=True)
class Profile:
    """What a detail step found, carried to steps of the same kind until the next one."""

    phases: tuple[PhaseBooks, ...] = ()
    end: ClassBytes = field(default_factory=dict)


def use_of(
    classes: ClassBytes, allocated: int | None, reserved: int | None, *, seen: bool
) -> MemoryUse:
    """Closes the books of one instant.

    Args:
        classes: Known classes, in bytes.
        allocated: The allocator's figure; ``None`` where the census is all there is.
        reserved: The allocator's figure, or ``None``.
        seen: Whether classes beyond the census are known; they are unknown otherwise, not 0.
    """
    known = {
        c.value: classes.get(c, 0) if seen or c in CENSUS or c in classes else None
        for c in MemoryClass
    }
    total = sum(classes.values())
    if allocated is None:
        return MemoryUse(**known, unattributed=0, allocated=total, reserved=None)
    return MemoryUse(
        **known, unattributed=allocated - total, allocated=allocated, reserved=reserved
    )


def end_books(held: HeldBytes, profile: Profile | None, reading: AllocatorReading) -> MemoryUse:
    """The instant after the optimizer has stepped: the census, and what else is still alive."""
    classes = dict(profile.end) if profile is not None else {}
    # What frameworks keep for communication is no census's constant: it is there, or it is not.
    classes.pop(MemoryClass.COMMUNICATION, None)
    classes.update(dict.fromkeys(CENSUS, 0) | held.classes)
    return use_of(classes, reading.allocated, reading.reserved, seen=profile is not None)


def phase_books(
    profile: Profile, intervals: Sequence[Interval], held: HeldBytes | None
) -> list[tuple[PhaseBooks, MemoryUse]]:
    """The books at each phase's peak.

    Args:
        profile: Phases of a detail step, this one or one of the same kind.
        intervals: The allocator's view of this step's phases; empty where it has none.
        held: This step's census where the profile is carried; ``None`` where it is its own.
    """
    books = []
    for phase, reading in _with_readings(profile, intervals):
        classes = dict(phase.classes)
        if held is not None:
            for memory_class in _FRESH:
                classes[memory_class] = held.classes.get(memory_class, 0)
        books.append(
            (
                phase,
                use_of(
                    classes,
                    reading.peak_allocated if reading else None,
                    reading.peak_reserved if reading else None,
                    seen=True,
                ),
            )
        )
    return books


def _with_readings(
    profile: Profile, intervals: Sequence[Interval]
) -> list[tuple[PhaseBooks, AllocatorReading | None]]:
    """The profile's phases, each with this step's interval in its place.

    Between detail steps no interval is kept for what is idle. A step with other phases than the
    profile's is matched by the name of the phase, the highest of each.
    """
    if not intervals:
        return [(phase, None) for phase in profile.phases]
    worked = _without_idle(profile.phases)
    for phases in (profile.phases, worked):
        if [p.phase for p in phases] == [i.phase for i in intervals]:
            return [(p, i.reading) for p, i in zip(phases, intervals, strict=True)]
    peaks = _peaks_by_phase(intervals)
    return [(p, peaks[p.phase]) for p in _highest_of_each(worked) if p.phase in peaks]


def _without_idle(phases: Sequence[PhaseBooks]) -> list[PhaseBooks]:
    """As the allocator is asked between detail steps: what is idle counts to the phase before."""
    merged: list[PhaseBooks] = []
    for phase in phases:
        if phase.phase is not Phase.IDLE:
            merged.append(phase)
        elif merged and phase.peak > merged[-1].peak:
            merged[-1] = replace(phase, phase=merged[-1].phase)
    return merged


def _highest_of_each(phases: Sequence[PhaseBooks]) -> list[PhaseBooks]:
    """Of several phases of a kind the one with the highest peak, as of several readings."""
    highest: dict[Phase, PhaseBooks] = {}
    for phase in phases:
        best = highest.get(phase.phase)
        if best is None or phase.peak > best.peak:
            highest[phase.phase] = phase
    return list(highest.values())


def census_books(held: HeldBytes, intervals: Sequence[Interval]) -> list[tuple[Phase, MemoryUse]]:
    """The books of a step of which only census and allocator are known."""
    classes = dict.fromkeys(CENSUS, 0) | held.classes
    peaks = _peaks_by_phase(intervals)
    if not peaks:
        return [(Phase.OPTIMIZER, use_of(classes, None, None, seen=False))]
    return [
        (phase, use_of(classes, reading.peak_allocated, reading.peak_reserved, seen=False))
        for phase, reading in peaks.items()
    ]


def _peaks_by_phase(intervals: Sequence[Interval]) -> dict[Phase, AllocatorReading]:
    """Of each phase the interval with the highest peak; evaluation is not part of a step."""
    highest: dict[Phase, AllocatorReading] = {}
    for interval in intervals:
        peak = interval.reading.peak_allocated
        if peak is None or interval.phase is Phase.EVAL:
            continue
        best = highest.get(interval.phase)
        if best is None or peak > (best.peak_allocated or 0):
            highest[interval.phase] = interval.reading
    return highest
