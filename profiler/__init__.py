"""What runs in a training process, and the predictor.

Importing this package is light: torch is loaded when a profiler is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config import ProfilerConfig

if TYPE_CHECKING:
    from .session import MemoryProfiler

__all__ = ["MemoryProfiler", "ProfilerConfig"]


def __getattr__(name: str) -> object:
    if name == "MemoryProfiler":
        from .session import MemoryProfiler

        return MemoryProfiler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
