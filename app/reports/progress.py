"""How a long export says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int], None]
"""Takes the number of rows done so far."""


def ignore(done: int) -> None:
    """Nobody watches."""
