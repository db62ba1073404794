"""One line of the books over time: its rising floor, told from noise, spikes and sawtooth.

A leak is a *floor* that rises: memory that comes back is none, however high it went. Two views of
the floor are kept, both bounded, both cheap:

- the **envelope**, a stack of the levels under which the line has not fallen since. A spike is
  popped when it is over, a leak is a chain of equal rises per step. It confirms soon, to the byte.
- the **ladder**, the lowest value of every 8, 16, 32 … observations, sixteen of each. It confirms
  what rises unevenly or under noise, at the first scale at which the rise stands out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

_KEPT_LEVELS = 256
_RATE_TOLERANCE = 0.01
# Nine equal rises: memory that is collected and let go every nine steps or sooner never looks so.
_EQUAL_RISES = 9
# Fewer do when they lie unevenly in time and still have one rate: nothing but a leak does that.
_UNEVEN_RISES = 4
_UNEVEN_SPAN = 32
_UNEVEN_RATIO = 4
# A fall through so many levels at once is the end of a ramp, not of a spike.
_RAMP_LEVELS = 5
_BLOCKS = 16
_KEPT_FALLS = 16


@dataclass(frozen=True, slots=True)
class Rise:
    """A floor that rises.

    ``base`` is the floor before, in bytes; ``patience`` how many steps it may pause for.
    """

    first_step: int
    base: int
    slope: float
    patience: int


class Ladder:
    """The lowest values of ever longer blocks of observations, sixteen of each length."""

    __slots__ = ("_blocks", "_halves", "_prior")

    def __init__(self) -> None:
        self._blocks: list[deque[tuple[int, int]]] = []
        self._halves: list[tuple[int, int] | None] = []
        self._prior: list[int] = []

    def push(self, step: int, lowest: int, *, judge: bool) -> Rise | None:
        """Adds a block; a rise is found at the shortest block length that shows it."""
        block = (step, lowest)
        level = 0
        found: Rise | None = None
        while True:
            if level == len(self._blocks):
                self._blocks.append(deque(maxlen=_BLOCKS))
                self._halves.append(None)
                self._prior.append(-1)
            blocks = self._blocks[level]
            if len(blocks) == _BLOCKS:
                self._prior[level] = max(self._prior[level], blocks[0][1])
            blocks.append(block)
            if judge and found is None and len(blocks) == _BLOCKS:
                found = rising(blocks, self._prior[level])
            half = self._halves[level]
            if half is None:
                self._halves[level] = block
                return found
            self._halves[level] = None
            block = half if half[1] <= block[1] else block
            level += 1

    def slope(self) -> float | None:
        """Bytes a step over the longest stretch that is known, or ``None`` when it is too short."""
        for blocks in reversed(self._blocks):
            if len(blocks) >= _BLOCKS // 2:
                return _slope(blocks)
        return None


def rising(blocks: Sequence[tuple[int, int]], prior: int) -> Rise | None:
    """Whether sixteen lowest values, each with its step, rise like a leak.

    Args:
        blocks: Step and lowest value of each block, in order.
        prior: The highest that such a value was before; −1 when there is no before.
    """
    growth = blocks[-1][1] - blocks[0][1]
    if growth <= 0 or blocks[-1][1] <= prior + growth / 2:
        return None
    lows = [low for _, low in blocks]
    if sum(a >= b for a, b in pairwise(lows)) > 2:
        return None
    if sum(a >= b for a, b in combinations(lows, 2)) > 2:
        return None
    third = _BLOCKS // 3
    early, late = median(lows[:third]), median(lows[-third:])
    middle = median(lows[third:-third])
    first, second = middle - early, late - middle
    if not first / 2 <= second <= first * 2:
        return None
    slope = _slope(blocks)
    step, _ = blocks[0]
    level = median(low - slope * (s - step) for s, low in blocks)
    if max(abs(low - slope * (s - step) - level) for s, low in blocks) > growth / 6:
        return None
    patience = 4 * (blocks[-1][0] - step) // (_BLOCKS - 1)
    return Rise(step, max(0, round(level)), slope, max(32, patience))


def _slope(blocks: Sequence[tuple[int, int]]) -> float:
    """Median of the slopes between all pairs (Theil 1950, Sen 1968)."""
    return median((b - a) / (t - s) for (s, a), (t, b) in combinations(blocks, 2) if t > s)


class Line:
    """One class, or the sum, followed over the steps. Steps must rise.

    Args:
        step: Of the first known value.
        value: In bytes.
    """

    __slots__ = (
        "_firsts",
        "_run",
        "_values",
        "ceiling",
        "changed",
        "falls",
        "ladder",
        "low",
        "low_step",
        "ramp",
        "value",
        "wait",
    )

    def __init__(self, step: int, value: int) -> None:
        self.ceiling = -1
        """Growth below this is known to come and go: it was called a leak once, and was none."""
        self.falls: deque[int] = deque(maxlen=_KEPT_FALLS)
        self.restart(step, value)

    def restart(self, step: int, value: int) -> None:
        """Forgets how the line came to its value."""
        self.value = value
        """The newest one, in bytes."""
        self._firsts = [step]
        self._values = [value]
        self._run = 0
        self.ramp = -1
        """The same as ``ceiling``, for the envelope alone: where a ramp has ended."""
        self.wait = self.ceiling
        """No rise is looked at below this: it would not be worth a word."""
        self.ladder = Ladder()
        self.changed = False
        """Whether the ladder is fed: a line that never changes costs nothing."""
        self.low = value
        self.low_step = step

    @property
    def noise(self) -> int:
        """The largest fall from one observation to the next, of the newest 16 falls."""
        return max(self.falls, default=0)

    def floor_at(self, step: int) -> int | None:
        """Under which value the line has not fallen since a step; ``None`` if it has since."""
        position = bisect_right(self._firsts, step) - 1
        return self._values[position] if position >= 0 else None

    def change(self, step: int, value: int) -> bool:
        """Takes a new value, in bytes, that is not the old one.

        Returns:
            Whether the envelope rises like a leak: then ask ``rise``.
        """
        self.changed = True
        self.value = value
        firsts, values = self._firsts, self._values
        top = values[-1]
        if value < top:
            self._fall(top, value)
            if value < self.low:
                self.low, self.low_step = value, step
            if values and values[-1] == value:
                return False
        if values:
            run = self._run
            span = firsts[-1] - firsts[run]
            if span:
                rise = value - values[-1]
                expected = (values[-1] - values[run]) * (step - firsts[-1]) / span
                if abs(rise - expected) > _RATE_TOLERANCE * rise:
                    self._run = len(values) - 1
        firsts.append(step)
        values.append(value)
        if len(values) > _KEPT_LEVELS:
            self._thin()
        count = len(self._values) - 1 - self._run
        if count < _UNEVEN_RISES or value <= self.wait or value <= self.ramp:
            return False
        return self._is_leak(count)

    def _fall(self, top: int, value: int) -> None:
        firsts, values = self._firsts, self._values
        self.falls.append(top - value)
        kept = len(values)
        while kept and values[kept - 1] > value:
            kept -= 1
        if len(values) - kept >= _RAMP_LEVELS:
            self.ramp = max(self.ramp, 2 * top - value)
            self.wait = self.ceiling
        del firsts[kept:], values[kept:]
        self._run = max(0, min(self._run, kept - 1))

    def _is_leak(self, count: int) -> bool:
        if count >= _EQUAL_RISES:
            return True
        firsts = self._firsts[self._run :]
        if firsts[-1] - firsts[0] < _UNEVEN_SPAN:
            return False
        gaps = [b - a for a, b in pairwise(firsts)]
        return max(gaps) >= _UNEVEN_RATIO * min(gaps)

    def rise(self) -> Rise:
        """The rise that ``change`` has seen."""
        firsts, values, run = self._firsts, self._values, self._run
        span = firsts[-1] - firsts[run]
        slope = (values[-1] - values[run]) / span
        gaps = [b - a for a, b in pairwise(firsts[run:])]
        base = values[run]
        if run:
            before = base - values[run - 1]
            usual = slope * min(gaps)
            if abs(before - usual) <= _RATE_TOLERANCE * usual:
                base = values[run - 1]
        return Rise(firsts[run], base, slope, max(32, 4 * max(gaps[-_EQUAL_RISES:])))

    def run_since(self, step: int) -> float | None:
        """The slope of the equal rises, if they reach over half of the way back to a step."""
        first, last = self._firsts[self._run], self._firsts[-1]
        if last > first and last - first >= (last - step) / 2:
            return (self._values[-1] - self._values[self._run]) / (last - first)
        return None

    def close_block(self, *, judge: bool) -> Rise | None:
        """Ends a block of observations: its lowest value goes onto the ladder.

        Args:
            judge: Whether a rise would be news.
        """
        return self.ladder.push(self.low_step, self.low, judge=judge)

    def open_block(self, step: int) -> None:
        """Begins the next block."""
        self.low, self.low_step = self.value, step

    def _thin(self) -> None:
        """Drops every second of the older levels, but not those at which a run began."""
        half = _KEPT_LEVELS * 3 // 4
        run, start = self._run, self._firsts[self._run]
        for levels in (self._firsts, self._values):
            del levels[run + 2 : half : 2]
            del levels[1 : max(0, min(run - 1, half)) : 2]
        self._run = bisect_left(self._firsts, start)
