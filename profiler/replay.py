"""From a detail step's log to the books at every phase's peak: a pure function of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from vramscope.storage.records import MemoryClass, Phase

from .tracker import TrackedStorage

ClassBytes = dict[MemoryClass, int]


@dataclass(slots=True)
class PhaseMark:
    """Where in the log a phase begins, and what the clock and the allocator said of it."""

    phase: Phase
    log_index: int
    began_ns: int
    ended_ns: int = 0


@dataclass(slots=True)
class PhaseBooks:
    """A phase's peak on one device: total and classes, in bytes."""

    phase: Phase
    duration_s: float
    peak: int = 0
    classes: ClassBytes = field(default_factory=dict)


def replay(
    base: Sequence[TrackedStorage],
    log: Sequence[tuple[TrackedStorage, int]],
    marks: Sequence[PhaseMark],
    device: torch.device,
) -> tuple[list[PhaseBooks], ClassBytes]:
    """Plays the log on one device.

    Args:
        base: Storages alive before the log began.
        log: Births (+1) and deaths (-1) in order.
        marks: Phases in order; the log before the first mark belongs to the first phase.
        device: Whose storages to count.

    Returns:
        The books at each phase's peak, and the books at the end of the log.
    """
    held: ClassBytes = {}
    total = 0
    for tracked in base:
        if tracked.device == device:
            name = tracked.memory_class or MemoryClass.TEMPORARIES
            held[name] = held.get(name, 0) + tracked.size
            total += tracked.size
    books: list[PhaseBooks] = []
    ends = [mark.log_index for mark in marks[1:]] + [len(log)]
    index = 0
    for mark, end in zip(marks, ends, strict=True):
        phase = PhaseBooks(
            phase=mark.phase,
            duration_s=max(0, mark.ended_ns - mark.began_ns) / 1e9,
            peak=total,
            classes=dict(held),
        )
        while index < end:
            tracked, sign = log[index]
            index += 1
            if tracked.device != device:
                continue
            name = tracked.memory_class or MemoryClass.TEMPORARIES
            held[name] = held.get(name, 0) + sign * tracked.size
            total += sign * tracked.size
            if total > phase.peak:
                phase.peak = total
                phase.classes = dict(held)
        books.append(phase)
    return books, held
