"""Which steps are followed in detail: those the user asked for, and those that pay."""

from __future__ import annotations

from .config import ProfilerConfig

# A step of a kind not seen before is followed in detail, but not more often than this.
_GAP = 10
# While what outlives a step grows, the next step is followed too: a leak's slope is seen from
# steps in a row. So long at first, and so long again at later detail steps.
_FIRST_FOLLOW = 24
_LATER_FOLLOW = 4
_LEAK = 8


class DetailSchedule:
    """Says before each step whether to follow it.

    Args:
        config: The user's wish: the first steps, and every so many.
    """

    def __init__(self, config: ProfilerConfig) -> None:
        self._config = config
        self._last = 0
        self._outlived = 0
        self._new_kind = False
        self._growing = False
        self._growths = 0
        self._left = _FIRST_FOLLOW

    @property
    def leaks(self) -> bool:
        """Whether what outlives a step has grown so often that it is no warming up."""
        return self._growths >= _LEAK

    def is_due(self, step: int) -> bool:
        """Whether this step is to be followed in detail."""
        if self._config.is_detail_step(step):
            return True
        if self._config.detail_every == 0 and self._config.detail_first == 0:
            return False
        if self._growing and self._left > 0 and step == self._last + 1:
            self._left -= 1
            return True
        return self._new_kind and step - self._last >= _GAP

    def was_followed(self, step: int, outlived: int) -> None:
        """A step was followed; so many bytes that it or earlier ones computed outlived it."""
        self._growing = 0 < self._outlived < outlived
        self._growths += self._growing
        if not self._growing:
            self._left = max(self._left, _LATER_FOLLOW)
        self._outlived = outlived
        self._last = step
        self._new_kind = False

    def saw_new_kind(self) -> None:
        """A step of a kind that was never followed has passed."""
        self._new_kind = True
