"""The summands of a prediction, and how they become the books of each phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vramscope.storage.records import MemoryClass, MemoryUse, Phase, PredictionTerm

from .dtypes import round_up

STEP_PHASES: tuple[Phase, ...] = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.IDLE)
"""The phases of a training step, in order; ``idle`` is its end, before gradients are cleared."""
ALWAYS = frozenset(STEP_PHASES)
BLOCK = 512
"""Bytes that torch's CUDA caching allocator rounds every block up to (``kMinBlockSize``)."""


SMALLEST_SEGMENT = 10 * 2**20
"""From here on a request has a segment of its own (``kMinLargeAlloc``)."""
SEGMENT_STEP = 2 * 2**20
"""What such segments are rounded up to (``kRoundLarge``)."""
SMALLEST_SPLIT = 2**20
"""A rest of at most so many bytes stays with the block (``kSmallSize``)."""


def unsplit_bytes(block: int) -> int:
    """What a block of a fresh segment keeps because its rest is too small to split off.

    Segments of 10 MiB and more are multiples of 2 MiB; a rest of at most 1 MiB is part of the
    block, and so of what is allocated.
    """
    if block < SMALLEST_SEGMENT:
        return 0
    rest = round_up(block, SEGMENT_STEP) - block
    return rest if rest <= SMALLEST_SPLIT else 0


@dataclass(frozen=True, slots=True)
class Term:
    """One summand: so many bytes of one class, alive at the peaks of some phases."""

    name: str
    memory_class: MemoryClass
    nbytes: int
    formula: str
    source: str
    phases: frozenset[Phase] = ALWAYS
    rounding: int = 0
    """Bytes that the allocator adds to reach whole blocks, where it does."""

    def at(self, *phases: Phase) -> Term:
        """The same term, alive at these phases only."""
        return Term(
            self.name,
            self.memory_class,
            self.nbytes,
            self.formula,
            self.source,
            frozenset(phases),
            self.rounding,
        )


@dataclass(frozen=True, slots=True)
class Allocation:
    """Some equal storages: what a term is summed from."""

    nbytes: int
    count: int = 1

    @property
    def total(self) -> int:
        """Bytes asked for."""
        return self.nbytes * self.count

    @property
    def rounding(self) -> int:
        """Bytes added to reach whole blocks, and those too few to be split off again."""
        whole = round_up(self.nbytes, BLOCK)
        return (whole - self.nbytes + unsplit_bytes(whole)) * self.count


def make_term(
    name: str,
    memory_class: MemoryClass,
    allocations: Iterable[Allocation],
    formula: str,
    source: str,
    phases: frozenset[Phase] = ALWAYS,
) -> Term:
    """A term that sums some storages, with what rounding adds to each of them."""
    parts = list(allocations)
    return Term(
        name,
        memory_class,
        sum(a.total for a in parts),
        formula,
        source,
        phases,
        sum(a.rounding for a in parts),
    )


@dataclass(frozen=True, slots=True)
class Ledger:
    """All terms of a prediction, what is unknown, and whether blocks are rounded."""

    terms: tuple[Term, ...]
    unknown: Mapping[MemoryClass, frozenset[Phase]]
    """Classes that could not be predicted, with the phases in which they hold something."""
    rounded: bool

    def alive(self, phase: Phase) -> tuple[Term, ...]:
        """The terms that hold bytes at the peak of a phase."""
        return tuple(t for t in self.terms if phase in t.phases and t.nbytes)

    def use(self, phase: Phase) -> MemoryUse:
        """The books at a phase's own peak; an unknown class leaves ``allocated`` unknown."""
        sums: dict[str, int | None] = {c.value: 0 for c in MemoryClass}
        for term in self.alive(phase):
            held = term.nbytes + (term.rounding if self.rounded else 0)
            sums[term.memory_class.value] = (sums[term.memory_class.value] or 0) + held
        unknown = [c.value for c, phases in self.unknown.items() if phase in phases]
        total = None if unknown else sum(v or 0 for v in sums.values())
        sums.update(dict.fromkeys(unknown))
        return MemoryUse(**sums, unattributed=0 if total is not None else None, allocated=total)

    def known_bytes(self, phase: Phase) -> int:
        """Sum of what is known at a phase's peak."""
        return sum(t.nbytes + (t.rounding if self.rounded else 0) for t in self.alive(phase))

    def for_people(self, peak: Phase) -> tuple[PredictionTerm, ...]:
        """Terms as records: those of the peak, which add up to it, then those of other phases."""
        at_peak = self.alive(peak)
        others = [t for t in self.terms if t.nbytes and peak not in t.phases]
        records = [_record(t, t.name) for t in at_peak]
        records += self._rounding_records(at_peak)
        for term in others:
            when = ", ".join(p.value for p in STEP_PHASES if p in term.phases)
            records.append(_record(term, f"{term.name} (only in {when})"))
        return tuple(records)

    def _rounding_records(self, terms: Sequence[Term]) -> list[PredictionTerm]:
        if not self.rounded:
            return []
        return [
            PredictionTerm(
                name=f"rounding to {BLOCK}-byte blocks and whole segments",
                memory_class=memory_class,
                bytes=added,
                formula=f"Σ ⌈bytes / {BLOCK}⌉·{BLOCK} − bytes, and from 10 MiB on the rest of a "
                "2 MiB step where it is at most 1 MiB",
                source="torch c10/cuda/CUDACachingAllocator.cpp round_size, should_split",
            )
            for memory_class in MemoryClass
            if (added := sum(t.rounding for t in terms if t.memory_class is memory_class))
        ]


def _record(term: Term, name: str) -> PredictionTerm:
    return PredictionTerm(
        name=name,
        memory_class=term.memory_class,
        bytes=term.nbytes,
        formula=term.formula,
        source=term.source,
    )
