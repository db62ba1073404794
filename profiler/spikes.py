"""One step's peak that stands out and comes down again."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

_WINDOW = 64
_NEEDED = 8
_RATIO = 0.20
# Of the distance between the median and the 90th percentile: what this loop's peaks do anyway.
_SPREADS = 6
_RETURNS_WITHIN = 3
_QUIET_STEPS = 64
_MUCH_HIGHER = 1.2


@dataclass(frozen=True, slots=True)
class Spike:
    """A peak, and the median of the peaks before it, in bytes."""

    step: int
    peak: int
    usual: int


class PeakWatch:
    """Follows the peaks of one device. Bounded: the newest 64 peaks, and what was reported."""

    __slots__ = (
        "_candidate",
        "_highest",
        "_newest",
        "_quiet_until",
        "_reports",
        "_since",
        "_sorted",
    )

    def __init__(self) -> None:
        self._newest: deque[int] = deque()
        self._sorted: list[int] = []
        self._candidate: Spike | None = None
        self._since = 0
        self._highest = 0
        self._reports = 0
        self._quiet_until = 0

    def observe(self, step: int, peak: int) -> Spike | None:
        """Takes a step's peak; returns a spike once the peaks have come down from it."""
        found = None
        ordered = self._sorted
        usual = ordered[len(ordered) // 2] if ordered else peak
        if self._candidate is not None:
            found = self._judge(peak)
        elif peak > usual and len(ordered) >= _NEEDED:
            over = peak - usual
            spread = ordered[len(ordered) * 9 // 10] - usual
            if over >= _RATIO * usual and over > _SPREADS * spread:
                self._candidate, self._since = Spike(step, peak, usual), 0
        if peak != usual or len(ordered) < _WINDOW:
            self._keep(peak)
        return found

    def _judge(self, peak: int) -> Spike | None:
        spike = self._candidate
        assert spike is not None
        self._since += 1
        if peak > (spike.usual + spike.peak) / 2:
            if self._since >= _RETURNS_WITHIN:
                self._candidate = None
            return None
        self._candidate = None
        much_higher = spike.peak > _MUCH_HIGHER * self._highest
        if spike.step < self._quiet_until and not much_higher:
            return None
        self._highest = max(self._highest, spike.peak)
        self._quiet_until = spike.step + (_QUIET_STEPS << min(self._reports, 32))
        self._reports += 1
        return spike

    def _keep(self, peak: int) -> None:
        self._newest.append(peak)
        insort(self._sorted, peak)
        if len(self._newest) > _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._newest.popleft())]
