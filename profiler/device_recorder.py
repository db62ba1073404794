"""What is known of one device: its source, the open step's intervals, detail steps' profiles."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from vramscope.storage.records import MemoryClass, MemoryUse, Phase

from .books import Interval, Profile, census_books, end_books, phase_books
from .census import HeldBytes
from .devices.source import AllocatorReading, DriverReading, MemorySource
from .growth import GrowthDetector
from .replay import PhaseBooks

_KEPT_PROFILES = 64


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


class DeviceRecorder:
    """Closes the books of one device, step by step.

    Between detail steps, what a census cannot see is carried over from the last detail step of
    the same kind (the same shapes, the same number of micro-steps).

    Args:
        source: Of the device's figures.
        position: Among the writer's devices.
    """

    def __init__(self, source: MemorySource, position: int) -> None:
        self.source = source
        self.position = position
        self.walked = 0
        """Bytes that a graph walk found, where allocations cannot be followed."""
        self.driver = DriverReading()
        self.growth = GrowthDetector(source.describe(0, "").total_bytes)
        self._intervals: list[Interval] = []
        self._profiles: OrderedDict[Hashable, Profile] = OrderedDict()
        self._newest: tuple[HeldBytes, Profile, StepBooks] | None = None

    def begin_step(self) -> None:
        """Forgets what lay between the steps."""
        self.source.read()
        self._intervals.clear()
        self.walked = 0

    def end_interval(self, phase: Phase) -> None:
        """A phase has ended: reads the allocator and its peak in that phase."""
        reading = self.source.read()
        if reading.allocated is not None:
            self._intervals.append(Interval(phase, reading))

    @property
    def peak_requested(self) -> int | None:
        """Bytes asked for at the step's peak, before rounding."""
        return max((i.reading.peak_requested or 0 for i in self._intervals), default=None)

    def knows(self, kind: Hashable) -> bool:
        """Whether a detail step of this kind was seen."""
        return kind in self._profiles

    def close_detail(self, kind: Hashable | None, profile: Profile, held: HeldBytes) -> StepBooks:
        """Closes a detail step and keeps its profile for steps of its kind, if it has one."""
        if kind is not None:
            self._profiles[kind] = profile
            self._profiles.move_to_end(kind)
            if len(self._profiles) > _KEPT_PROFILES:
                self._profiles.popitem(last=False)
        self._newest = None
        books = phase_books(profile, self._intervals, None)
        return self._books(profile, held, books, carried=False)

    def close_walked(self, kind: Hashable | None, held: HeldBytes) -> StepBooks:
        """Closes a step of which census and graph walk are known."""
        classes = dict(held.classes)
        classes[MemoryClass.ACTIVATIONS] = self.walked
        forward = PhaseBooks(Phase.FORWARD, 0.0, sum(classes.values()), classes)
        stepping = PhaseBooks(Phase.OPTIMIZER, 0.0, 0, dict(held.classes))
        return self.close_detail(kind, Profile((forward, stepping)), held)

    def close_step(self, kind: Hashable, held: HeldBytes) -> StepBooks:
        """Closes a step of which the census and the allocator are known, and carries the rest."""
        profile = self._profiles.get(kind)
        if profile is None and self._profiles:
            profile = next(reversed(self._profiles.values()))
        if profile is None:
            phase, peak = max(
                census_books(held, self._intervals), key=lambda b: b[1].allocated or 0
            )
            end = end_books(held, None, self._last_reading())
            return StepBooks(end, peak, phase, carried=False)
        if not self._intervals and self._newest is not None:
            known_held, known_profile, books = self._newest
            if known_held is held and known_profile is profile:
                return books
        closed = self._books(
            profile, held, phase_books(profile, self._intervals, held), carried=True
        )
        self._newest = (held, profile, closed)
        return closed

    def close_partial(self, held: HeldBytes, phase: Phase) -> StepBooks:
        """Closes a step that broke off and was not followed: nothing is carried over to it.

        Args:
            held: Census of this instant.
            phase: In which it broke off.
        """
        end = end_books(held, None, self._last_reading())
        if not self._intervals:
            return StepBooks(end, end, phase, carried=False)
        highest, peak = max(census_books(held, self._intervals), key=lambda b: b[1].allocated or 0)
        return StepBooks(end, peak, highest, carried=False)

    def _books(
        self,
        profile: Profile,
        held: HeldBytes,
        books: list[tuple[PhaseBooks, MemoryUse]],
        *,
        carried: bool,
    ) -> StepBooks:
        of_the_step = [b for b in books if b[0].phase is not Phase.EVAL] or [
            (PhaseBooks(phase, 0.0), use) for phase, use in census_books(held, self._intervals)
        ]
        highest, peak = max(of_the_step, key=lambda b: b[1].allocated or 0)
        return StepBooks(
            end=end_books(held, profile, self._last_reading()),
            peak=peak,
            peak_phase=highest.phase,
            carried=carried,
            phases=() if carried else tuple(books),
            peak_index=highest.peak_index,
        )

    def _last_reading(self) -> AllocatorReading:
        return self._intervals[-1].reading if self._intervals else AllocatorReading()
