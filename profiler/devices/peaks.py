"""Sharing torch's one peak counter with the user.

The caching allocator has one peak per statistic, which we begin anew at every phase. So that
the user's own ``max_memory_allocated`` and ``reset_peak_memory_stats`` go on giving the right
answer, the two C functions behind all of them are wrapped while a profiler is attached: what a
reset of ours hides is folded back into what the user reads.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

Stats = dict[str, Any]


def fold_peaks(hidden: Stats, current: Stats) -> Stats:
    """Returns ``current`` with each ``peak`` raised to the one in ``hidden`` (nested alike)."""
    folded: Stats = {}
    for key, value in current.items():
        past = hidden.get(key)
        if isinstance(value, dict):
            folded[key] = fold_peaks(past, value) if isinstance(past, dict) else value
        elif key == "peak" and isinstance(past, int) and past > value:
            folded[key] = past
        else:
            folded[key] = value
    return folded


class PeakCounter:
    """Our view and the user's view of one peak counter.

    Args:
        bindings: The module that holds the functions (``torch._C``); injected for tests.
    """

    STATS = "_cuda_memoryStats"
    RESET = "_cuda_resetPeakMemoryStats"
    # torch.accelerator reads and resets the same counter by functions of its own.
    _OTHER_STATS = ("_accelerator_getDeviceStats",)
    _OTHER_RESETS = ("_accelerator_resetPeakStats",)

    def __init__(self, bindings: ModuleType) -> None:
        self._bindings = bindings
        self._hidden: dict[int, Stats] = _taken_over(bindings)
        self._stats: Callable[[int], Stats] = getattr(bindings, self.STATS)
        self._reset: Callable[[int], None] = getattr(bindings, self.RESET)
        self._ours: dict[int, Stats] = {}
        self._closed = False
        self._replaced: list[tuple[str, object, object]] = []
        for name in (self.STATS, *self._OTHER_STATS):
            self._replace(name, self._with_hidden)
        for name in (self.RESET, *self._OTHER_RESETS):
            self._replace(name, self._keeping_ours)

    def _replace(self, name: str, wrap: Callable[[Callable[[int], Any]], object]) -> None:
        original = getattr(self._bindings, name, None)
        if original is not None:
            ours = wrap(original)
            vars(ours)[_OWNER] = self
            setattr(self._bindings, name, ours)
            self._replaced.append((name, original, ours))

    def _with_hidden(self, read: Callable[[int], Stats]) -> Callable[[int], Stats]:
        def stats(device: int) -> Stats:
            hidden = self._hidden.get(device)
            return fold_peaks(hidden, read(device)) if hidden else read(device)

        return stats

    def _keeping_ours(self, reset: Callable[[int], None]) -> Callable[[int], None]:
        def user_reset(device: int) -> None:
            seen = {} if self._closed else self._stats(device)
            reset(device)
            self._hidden.pop(device, None)
            if self._closed:
                self._put_back()
            else:
                self._ours[device] = fold_peaks(self._ours.get(device, {}), seen)

        return user_reset

    def take(self, device: int) -> Stats:
        """Statistics with the peaks since our last ``take``; begins a new interval."""
        stats = self._stats(device)
        self._reset(device)
        self._hidden[device] = fold_peaks(self._hidden.get(device, {}), stats)
        pending = self._ours.pop(device, None)
        return fold_peaks(pending, stats) if pending else stats

    def close(self) -> None:
        """Puts torch's functions back.

        The user may still ask for the peak of what was profiled, which a reset of ours hides:
        then what folds it in stays until the user resets the counter, or a profiler is attached
        again. It also stays while somebody else has wrapped it.
        """
        self._closed = True
        self._ours.clear()
        self._hidden = {d: seen for d, seen in self._hidden.items() if self._hides(d, seen)}
        self._put_back()

    def _hides(self, device: int, seen: Stats) -> bool:
        now = self._stats(device)
        return fold_peaks(seen, now) != now

    def _put_back(self) -> None:
        if self._hidden:
            return
        for name, original, ours in self._replaced:
            if getattr(self._bindings, name) is ours:
                setattr(self._bindings, name, original)
                below = _owner(original)
                if below is not None and below._closed:
                    below._put_back()

    def _hand_over(self) -> dict[int, Stats]:
        hidden, self._hidden = self._hidden, {}
        self._put_back()
        return hidden


_OWNER = "_vramscope_owner"


def _owner(function: object) -> PeakCounter | None:
    owner = getattr(function, _OWNER, None)
    return owner if isinstance(owner, PeakCounter) else None


def _taken_over(bindings: ModuleType) -> dict[int, Stats]:
    """What a counter that is closed still hides; its functions are then torch's own again."""
    owner = _owner(getattr(bindings, PeakCounter.STATS))
    return owner._hand_over() if owner is not None and owner._closed else {}
