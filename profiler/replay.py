"""From a detail step's log to the books at every instant: pure functions of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
from vramscope.storage.records import MemoryClass, Phase

from .tracker import LogEntry, TrackedStorage

ClassBytes = dict[MemoryClass, int]


@dataclass(slots=True)
class PhaseMark:
    """Where in the log a phase begins, and what the clock said of it."""

    phase: Phase
    log_index: int
    began_ns: int
    ended_ns: int = 0


@dataclass(frozen=True, slots=True)
class DetailLog:
    """All that was noted of one detail step.

    Attributes:
        base: Storages alive before the log began.
        entries: Births and deaths in order.
        marks: Phases in order; what comes before the first belongs to the first.
    """

    base: Sequence[TrackedStorage]
    entries: Sequence[LogEntry]
    marks: Sequence[PhaseMark]

    def frozen(self) -> DetailLog:
        """A copy that stays as it is while the step goes on."""
        copies = {id(s): copy(s) for s in (*self.base, *(e.storage for e in self.entries))}
        return DetailLog(
            [copies[id(s)] for s in self.base],
            [e._replace(storage=copies[id(e.storage)]) for e in self.entries],
            [copy(mark) for mark in self.marks],
        )


@dataclass(slots=True)
class PhaseBooks:
    """A phase's peak on one device: total and classes, in bytes."""

    phase: Phase
    duration_s: float
    peak: int = 0
    classes: ClassBytes = field(default_factory=dict)
    peak_index: int = 0
    """How many entries of the log lie before the peak."""


@dataclass(frozen=True, slots=True)
class Instant:
    """The books at one instant of the log."""

    index: int
    at_ns: int
    phase: Phase
    total: int
    classes: ClassBytes


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors of one class, shape and dtype."""

    memory_class: MemoryClass
    shape: tuple[int, ...]
    dtype: torch.dtype
    count: int
    bytes: int


def class_of(storage: TrackedStorage) -> MemoryClass:
    """What a storage is for; one that nothing claimed is a temporary."""
    return storage.memory_class or MemoryClass.TEMPORARIES


def replay(log: DetailLog, device: torch.device) -> tuple[list[PhaseBooks], ClassBytes]:
    """Plays the log on one device.

    Returns:
        The books at each phase's peak, and the books at the end of the log.
    """
    held, total = _at_begin(log, device)
    books: list[PhaseBooks] = []
    ends = [mark.log_index for mark in log.marks[1:]] + [len(log.entries)]
    index = 0
    for mark, end in zip(log.marks, ends, strict=True):
        phase = PhaseBooks(
            phase=mark.phase,
            duration_s=max(0, mark.ended_ns - mark.began_ns) / 1e9,
            peak=total,
            classes=dict(held),
            peak_index=index,
        )
        while index < end:
            storage, sign, _ = log.entries[index]
            index += 1
            if storage.device != device:
                continue
            name = class_of(storage)
            held[name] = held.get(name, 0) + sign * storage.size
            total += sign * storage.size
            if total > phase.peak:
                phase.peak = total
                phase.classes = dict(held)
                phase.peak_index = index
        books.append(phase)
    return books, held


def timeline(log: DetailLog, device: torch.device, points: int) -> list[Instant]:
    """The books through the step, thinned out.

    The step's time is cut into equal parts; of each the instant with the highest total is kept,
    so that no peak is lost, and the last instant of the step.

    Args:
        log: Of the step.
        device: Whose storages to count.
        points: How many parts.
    """
    if not log.marks:
        return []
    began, ended = log.marks[0].began_ns, log.marks[-1].ended_ns
    width = max(1, (ended - began) // max(1, points))
    kept: list[Instant] = []
    part = -1
    last: Instant | None = None
    for instant in _instants(log, device):
        last = instant
        here = min(points - 1, max(0, instant.at_ns - began) // width)
        if here != part:
            kept.append(instant)
            part = here
        elif instant.total > kept[-1].total:
            kept[-1] = instant
    if last is not None and kept[-1] is not last:
        kept.append(last)
    return kept


def _instants(log: DetailLog, device: torch.device) -> Iterator[Instant]:
    held, total = _at_begin(log, device)
    mark = 0
    yield Instant(0, log.marks[0].began_ns, log.marks[0].phase, total, dict(held))
    for index, (storage, sign, at_ns) in enumerate(log.entries):
        while mark + 1 < len(log.marks) and log.marks[mark + 1].log_index <= index:
            mark += 1
        if storage.device != device:
            continue
        name = class_of(storage)
        held[name] = held.get(name, 0) + sign * storage.size
        total += sign * storage.size
        yield Instant(index + 1, at_ns, log.marks[mark].phase, total, dict(held))


def largest_groups(
    log: DetailLog, device: torch.device, index: int, most: int
) -> list[TensorGroup]:
    """What was alive after ``index`` entries of the log, grouped, the largest groups first."""
    alive = {s.serial: s for s in log.base if s.device == device}
    for storage, sign, _ in log.entries[:index]:
        if storage.device != device:
            continue
        if sign > 0:
            alive[storage.serial] = storage
        else:
            alive.pop(storage.serial, None)
    groups: dict[tuple[MemoryClass, tuple[int, ...], torch.dtype], list[int]] = {}
    for storage in alive.values():
        key = (class_of(storage), storage.shape, storage.dtype)
        groups.setdefault(key, []).append(storage.size)
    found = [TensorGroup(*key, len(sizes), sum(sizes)) for key, sizes in groups.items()]
    found.sort(key=lambda g: (-g.bytes, g.memory_class.value, g.shape))
    return found[:most]


def _at_begin(log: DetailLog, device: torch.device) -> tuple[ClassBytes, int]:
    held: ClassBytes = {}
    for storage in log.base:
        if storage.device == device:
            name = class_of(storage)
            held[name] = held.get(name, 0) + storage.size
    return held, sum(held.values())
