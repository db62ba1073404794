"""Growth told apart: a leak, a spike, a jump that stays, and what is none of these.

Pure Python on integers, for every step of a run: the books at a step's end come in, and now and
then something worth a person's attention comes out. ``docs/measuring.md`` has the rules in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from vramscope.storage.records import MemoryClass, MemoryUse

from . import growth_events as events
from .growth_events import Growth, Subject
from .spikes import PeakWatch
from .trends import Line, Rise

__all__ = ["Growth", "GrowthDetector"]

_SUBJECTS = (
    *(Subject(c) for c in MemoryClass),
    Subject(None, "unattributed memory"),
    Subject(None, "allocated memory"),
)
_UNATTRIBUTED = len(MemoryClass)
_TOTAL = _UNATTRIBUTED + 1
_OPTIMIZER_STATE = tuple(MemoryClass).index(MemoryClass.OPTIMIZER_STATE)
_read = attrgetter(*(c.value for c in MemoryClass), "unattributed", "allocated")

_BLOCK = 8
_WARM_UP = 2
# A leak is worth a word once it has cost a thousandth of what is allocated, or this much.
_WORTH_BYTES = 2**20
_WORTH_PART = 1000
_AGAIN = 10
_NEARLY_FULL = 0.9
_LEAST_SHARE = 0.7
_FALLEN = 0.3
# A jump is at least a twentieth of what was allocated, and stays for so many observations more.
_JUMP_PART = 20
_HOLDS = 5
_ABOVE_NOISE = 4


@dataclass(slots=True)
class _Leak:
    """A leak that was told, and how far it has come."""

    rise: Rise
    named: int
    total_base: int | None
    high: int
    high_step: int
    seen: int
    reported: int = 0
    nearly_full: bool = False


@dataclass(frozen=True, slots=True)
class _Jump:
    step: int
    before: int
    after: int

    @property
    def rise(self) -> int:
        return self.after - self.before


class GrowthDetector:
    """Follows one device: every class, what belongs to none, the sum, and the peaks.

    Costs a few microseconds a step and a bounded amount of memory, however long the run.

    Args:
        capacity_bytes: Of the device; without it nothing is forecast.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._capacity = capacity_bytes
        self._peaks = PeakWatch()
        self._last_peak: int | None = None
        self._usual_peak: int | None = None
        self._seen = 0
        self._step = -1
        self._now: tuple[int | None, ...] = (None,) * len(_SUBJECTS)
        self._lines: list[Line | None] = [None] * len(_SUBJECTS)
        self._leaks: dict[int, _Leak] = {}
        self._jumps: dict[int, list[_Jump]] = {}
        self._held: dict[int, int] = {}

    def observe(self, step: int, use: MemoryUse, peak: int | None = None) -> tuple[Growth, ...]:
        """Takes a step; returns what has become clear with it, most often nothing.

        Args:
            step: Its number; steps may be left out, and one that does not rise is ignored.
            use: The books at the step's end. What is unknown is skipped.
            peak: Most bytes allocated during the step, if known.
        """
        if step <= self._step:
            return ()
        self._step = step
        self._seen += 1
        found: list[Growth] = []
        now = _read(use)
        if now != self._now:
            before, self._now = self._now, now
            self._take(step, before, now, found)
        if self._jumps:
            self._check_jumps(found)
        if not self._seen % _BLOCK:
            self._close_blocks(step, found)
        if peak is not None and self._seen > _WARM_UP:
            self._take_peak(step, peak, found)
        return tuple(found)

    # ---- step by step

    def _take(
        self,
        step: int,
        before: tuple[int | None, ...],
        now: tuple[int | None, ...],
        found: list[Growth],
    ) -> None:
        # The sum comes last: until then its line still has the sum of the step before.
        lines = self._lines
        total = lines[_TOTAL]
        for index, value in enumerate(now):
            if value == before[index] or value is None:
                continue
            line = lines[index]
            if line is None:
                lines[index] = Line(step, value)
                continue
            old = line.value
            if value == old:
                continue
            if value > old and self._seen > _WARM_UP:
                whole = old if total is None else total.value
                if (value - old) * _JUMP_PART >= whole:
                    self._note_jump(index, line, _Jump(step, old, value))
            if line.change(step, value) and index not in self._leaks:
                self._confirm(index, line, line.rise(), value, found)

    def _take_peak(self, step: int, peak: int, found: list[Growth]) -> None:
        last = peak if self._last_peak is None else self._last_peak
        self._usual_peak = min(peak, last)
        self._last_peak = peak
        spike = self._peaks.observe(step, peak)
        if spike is not None:
            found.append(events.spike(step=spike.step, peak=spike.peak, usual=spike.usual))

    def _note_jump(self, index: int, line: Line, jump: _Jump) -> None:
        if jump.rise < _ABOVE_NOISE * line.noise:
            return
        if index == _OPTIMIZER_STATE and jump.before * 100 < jump.after:
            return  # Made lazily, and later than usual: the first steps were skipped.
        leak = self._leaks.get(index)
        if leak is not None and jump.rise < _ABOVE_NOISE * leak.rise.slope * leak.rise.patience:
            return
        if index == _TOTAL:
            if self._now[_UNATTRIBUTED] is not None:
                return  # Told of what it is made of.
        else:
            now, total = self._now[_TOTAL], self._lines[_TOTAL]
            if now is not None and total is not None and (now - total.value) * 2 < jump.rise:
                return  # Moved from one class to another.
        self._jumps.setdefault(index, []).append(jump)
        self._held[index] = 0

    def _check_jumps(self, found: list[Growth]) -> None:
        """Jumps that have stayed are told; those that have not are forgotten."""
        for index in tuple(self._jumps):
            jumps = self._jumps[index]
            line = self._lines[index]
            assert line is not None
            value = line.value
            while jumps and value < jumps[-1].after - _slack(jumps[-1], line):
                jumps.pop()
            if not jumps or value > jumps[-1].after + _slack(jumps[-1], line):
                del self._jumps[index]
                continue
            self._held[index] += 1
            if self._held[index] > _HOLDS:
                del self._jumps[index]
                found.extend(
                    events.jump(_SUBJECTS[index], step=j.step, before=j.before, after=j.after)
                    for j in jumps
                )

    # ---- leaks

    def _confirm(self, index: int, line: Line, rise: Rise, value: int, found: list[Growth]) -> None:
        """A line rises like a leak: is it worth a word, and whose is it?"""
        grown = value - rise.base
        whole = self._now[_TOTAL] or value
        worth = min(_WORTH_BYTES, whole // _WORTH_PART)
        if grown < worth:
            line.wait = rise.base + worth
            return
        named: int | None = index
        if index == _TOTAL:
            named = self._name_of(rise, grown)
        elif not self._total_grows(line, rise, value):
            named = None
        if named is None:
            line.wait = value + grown // 8
            return
        self._jumps.pop(index, None)
        total = self._lines[_TOTAL]
        base = total.floor_at(rise.first_step) if total is not None else None
        leak = _Leak(rise, named, base, value, self._step, self._seen)
        known = self._leaks.get(_TOTAL)
        if known is not None and known.rise.slope < 2 * rise.slope:
            del self._leaks[_TOTAL]
        if known is not None and known.named == index:
            leak.reported = known.reported
        else:
            self._tell(leak, grown, found)
        self._leaks[index] = leak

    def _total_grows(self, line: Line, rise: Rise, value: int) -> bool:
        """Whether the sum rises with the line; else memory only changes its class."""
        now, total = self._now[_TOTAL], self._lines[_TOTAL]
        if now is None or total is None:
            return True
        floor, own = total.floor_at(rise.first_step), line.floor_at(rise.first_step)
        grown = value - (rise.base if own is None else own)
        if floor is not None and (now - floor) * 2 >= grown:
            return True
        return total.noise * 2 >= grown  # Other classes come and go too much to tell.

    def _name_of(self, rise: Rise, grown: int) -> int | None:
        """The line that most of the sum's rise is due to; ``None`` when that was told before."""
        told = sum(leak.rise.slope for i, leak in self._leaks.items() if i != _TOTAL)
        if told * 2 >= rise.slope:
            return None
        best, most = _TOTAL, _LEAST_SHARE * grown
        for index, line in enumerate(self._lines[:_TOTAL]):
            floor = line.floor_at(rise.first_step) if line is not None else None
            if line is not None and floor is not None and line.value - floor >= most:
                best, most = index, line.value - floor
        return best

    def _tell(self, leak: _Leak, grown: int, found: list[Growth]) -> None:
        leak.reported = grown
        rise, fullest = leak.rise, self._fullest()
        full_at = None
        if self._capacity is not None and fullest is not None:
            full_at = self._step + int(-(-max(0, self._capacity - fullest) // rise.slope))
        found.append(
            events.leak(
                _SUBJECTS[leak.named],
                slope=rise.slope,
                grown=grown,
                first_step=rise.first_step,
                step=self._step,
                full_at_step=full_at,
            )
        )

    def _fullest(self) -> int | None:
        """Bytes that a step takes at its fullest, as far as it is known."""
        known = (self._now[_TOTAL], self._usual_peak)
        return max((v for v in known if v is not None), default=None)

    # ---- every eighth step

    def _close_blocks(self, step: int, found: list[Growth]) -> None:
        lows = [None if line is None else line.low for line in self._lines]
        for index, line in enumerate(self._lines):
            if line is None or not line.changed:
                continue
            if self._seen > _BLOCK:  # The first block has the warm-up in it.
                rise = line.close_block(judge=index not in self._leaks and line.low > line.wait)
                if rise is not None:
                    self._confirm(index, line, rise, line.low, found)
            line.open_block(step)
        for index in tuple(self._leaks):
            if self._now[index] is None:
                continue  # Not known at this step: nothing says that it came to rest.
            line, low = self._lines[index], lows[index]
            leak = self._leaks.get(index)
            if leak is None or line is None or low is None or self._seen - leak.seen < _BLOCK:
                continue
            self._follow(index, leak, line, low, lows[_TOTAL], found)

    def _follow(
        self, index: int, leak: _Leak, line: Line, low: int, total: int | None, found: list[Growth]
    ) -> None:
        """Has a leak fallen back, come to rest, grown tenfold, or nearly filled the device?"""
        rise = leak.rise
        if low > leak.high:
            leak.high, leak.high_step = low, self._step
        grown = leak.high - rise.base
        if low < rise.base + _FALLEN * grown:
            self._fell(index, leak, line, total, found)
            return
        if self._step - leak.high_step > max(
            rise.patience, (leak.high_step - rise.first_step) // 2
        ):
            self._end(index, line)
            found.append(
                events.stopped(
                    _SUBJECTS[leak.named],
                    grown=grown,
                    first_step=rise.first_step,
                    step=leak.high_step,
                )
            )
            return
        fullest = self._fullest()
        full = bool(self._capacity and fullest and fullest >= _NEARLY_FULL * self._capacity)
        if low - rise.base >= _AGAIN * leak.reported or (full and not leak.nearly_full):
            leak.nearly_full = full
            slope = line.run_since(rise.first_step) or line.ladder.slope()
            if slope is not None and slope > 0:
                leak.rise = Rise(rise.first_step, rise.base, slope, rise.patience)
            if index == _TOTAL:
                leak.named = self._name_of(leak.rise, low - rise.base) or leak.named
            self._tell(leak, low - rise.base, found)

    def _fell(
        self, index: int, leak: _Leak, line: Line, total: int | None, found: list[Growth]
    ) -> None:
        grown = leak.high - leak.rise.base
        self._end(index, line)
        line.wait = line.ceiling = leak.high + grown
        base, rise = leak.total_base, leak.rise
        if index != _TOTAL and None not in (total, base):
            assert total is not None
            assert base is not None
            if total >= base + grown / 2:
                # The sum did not fall: the same memory is now told under another name.
                rise = Rise(rise.first_step, base, rise.slope, rise.patience)
                moved = _Leak(rise, _TOTAL, base, total, self._step, self._seen, leak.reported)
                self._leaks.setdefault(_TOTAL, moved)
                return
            whole = self._lines[_TOTAL]
            assert whole is not None
            whole.wait = whole.ceiling = base + 2 * grown
        found.append(
            events.fell_back(
                _SUBJECTS[leak.named], grown=grown, first_step=rise.first_step, step=self._step
            )
        )

    def _end(self, index: int, line: Line) -> None:
        del self._leaks[index]
        line.restart(self._step, line.value)


def _slack(jump: _Jump, line: Line) -> float:
    """How far a level may wander after a jump: more where the line always did."""
    usual = 1.5 * line.noise if len(line.falls) == line.falls.maxlen else 0.0
    return max(jump.rise / 20, min(usual, jump.rise / 2))
