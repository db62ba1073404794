"""The books of one device, closed step by step: what a step did not show is carried over."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from vramscope.storage.records import MemoryClass, MemoryUse, Phase

from .books import Interval, Profile, census_books, end_books, phase_books
from .census import HeldBytes
from .devices.source import AllocatorReading, DriverReading
from .facts import DetailFindings, DeviceFacts
from .growth import GrowthDetector
from .leak_shapes import Leftover, alive_at_end, grown, leftovers
from .replay import PhaseBooks, TensorGroup

KEPT_KINDS = 64
"""Of so many kinds of step the newest detail step is remembered."""


@dataclass(frozen=True, slots=True)
class StepBooks:
    """One step on one device, closed."""

    end: MemoryUse
    peak: MemoryUse
    peak_phase: Phase
    carried: bool
    phases: tuple[tuple[PhaseBooks, MemoryUse], ...] = ()
    """The books at each phase's peak; of detail steps only."""
    peak_index: int = 0
    """How many entries of a detail step's log lie before its peak."""


class DeviceBooks:
    """Closes the books of one device, step by step.

    Between detail steps, what a census cannot see is carried over from the last detail step of
    the same kind (the same shapes, the same number of micro-steps).

    Args:
        device: With its index.
        position: Among the writer's devices.
        capacity: In bytes, if known.
    """

    def __init__(self, device: torch.device, position: int, capacity: int | None) -> None:
        self.device = device
        self.position = position
        self.growth = GrowthDetector(capacity)
        self._profiles: OrderedDict[Hashable, Profile] = OrderedDict()
        self._newest: tuple[HeldBytes, Profile, StepBooks] | None = None
        self._driver = DriverReading()
        self._outside: int | None = None
        self._outlived: Sequence[TensorGroup] | None = None
        self.leftovers: tuple[Leftover, ...] = ()
        """What a followed step left more than the one before, when that happened last."""

    def outside_allocator(self, driver: DriverReading, reserved: int | None) -> int | None:
        """What this process uses beside the allocator, by the driver's newest reading.

        Args:
            driver: The newest reading; until the driver is asked again, the same one.
            reserved: What the allocator holds at the end of this step, in bytes.
        """
        if driver is not self._driver:
            self._driver = driver
            self._outside = driver.outside_allocator(reserved)
        return self._outside

    def note_outliving(self, found: DetailFindings) -> None:
        """Takes a followed step that has ended: what is alive then, beside the one before."""
        alive = alive_at_end(found.log, self.device)
        more = grown(self._outlived, alive) if self._outlived is not None else ()
        if more:
            self.leftovers = leftovers(more, found.log, self.device, found.names.module_of)
        self._outlived = alive

    def close_detail(
        self,
        kind: Hashable | None,
        profile: Profile,
        held: HeldBytes,
        intervals: Sequence[Interval],
    ) -> StepBooks:
        """Closes a detail step and keeps its profile for steps of its kind, if it has one."""
        if kind is not None:
            self._profiles[kind] = profile
            self._profiles.move_to_end(kind)
            if len(self._profiles) > KEPT_KINDS:
                self._profiles.popitem(last=False)
        self._newest = None
        books = phase_books(profile, intervals, None)
        return _books(profile, held, books, intervals, carried=False)

    def close_walked(self, kind: Hashable | None, held: HeldBytes, seen: DeviceFacts) -> StepBooks:
        """Closes a step of which census and graph walk are known."""
        classes = dict(held.classes)
        classes[MemoryClass.ACTIVATIONS] = seen.walked
        forward = PhaseBooks(Phase.FORWARD, 0.0, sum(classes.values()), classes)
        stepping = PhaseBooks(Phase.OPTIMIZER, 0.0, 0, dict(held.classes))
        return self.close_detail(kind, Profile((forward, stepping)), held, seen.intervals)

    def close_step(
        self, kind: Hashable, held: HeldBytes, intervals: Sequence[Interval]
    ) -> StepBooks:
        """Closes a step of which the census and the allocator are known, and carries the rest."""
        profile = self._profiles.get(kind)
        if profile is None and self._profiles:
            profile = next(reversed(self._profiles.values()))
        if profile is None:
            phase, peak = max(census_books(held, intervals), key=lambda b: b[1].allocated or 0)
            end = end_books(held, None, _last_reading(intervals))
            return StepBooks(end, peak, phase, carried=False)
        if not intervals and self._newest is not None:
            known_held, known_profile, books = self._newest
            if known_held is held and known_profile is profile:
                return books
        closed = _books(
            profile, held, phase_books(profile, intervals, held), intervals, carried=True
        )
        self._newest = (held, profile, closed)
        return closed

    def close_partial(
        self, held: HeldBytes, phase: Phase | None, intervals: Sequence[Interval]
    ) -> StepBooks:
        """Closes a step that broke off and was not followed: nothing is carried over to it.

        Args:
            held: Census of this instant.
            phase: In which it broke off, if it had one.
            intervals: The allocator's view of what there was of it.
        """
        end = end_books(held, None, _last_reading(intervals))
        if not intervals:
            return StepBooks(end, end, phase or Phase.FORWARD, carried=False)
        highest, peak = max(census_books(held, intervals), key=lambda b: b[1].allocated or 0)
        return StepBooks(end, peak, highest, carried=False)


def _books(
    profile: Profile,
    held: HeldBytes,
    books: list[tuple[PhaseBooks, MemoryUse]],
    intervals: Sequence[Interval],
    *,
    carried: bool,
) -> StepBooks:
    of_the_step = [b for b in books if b[0].phase is not Phase.EVAL] or [
        (PhaseBooks(phase, 0.0), use) for phase, use in census_books(held, intervals)
    ]
    highest, peak = max(of_the_step, key=lambda b: b[1].allocated or 0)
    return StepBooks(
        end=end_books(held, profile, _last_reading(intervals)),
        peak=peak,
        peak_phase=highest.phase,
        carried=carried,
        phases=() if carried else tuple(books),
        peak_index=highest.peak_index,
    )


def _last_reading(intervals: Sequence[Interval]) -> AllocatorReading:
    return intervals[-1].reading if intervals else AllocatorReading()
