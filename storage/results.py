"""What a reader answers with, beside the records themselves. All of it is frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .records import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of the list of runs."""

    info: RunInfo
    devices: int
    """How many devices the run has used."""
    steps: int | None = None
    """Number of the last recorded step of any device."""
    peak_allocated: int | None = None
    """Highest allocated bytes of the fullest device (by share of its capacity, where known)."""
    peak_reserved: int | None = None
    """Reserved bytes of that device at that step."""
    capacity: int | None = None
    """Bytes that that device has."""
    predicted_peak: int | None = None
    """What the analytic predictor says that device will have allocated at its peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Some of the runs, newest first."""

    total: int
    """How many there are in all that match."""
    rows: tuple[RunSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Steps of one device, column by column.

    Above level 1 a row is the step with the highest ``peak_allocated`` of its bucket; the
    edges of the span and the newest steps are there at a finer level. Rows are in step order.
    """

    level: int
    """Steps that one row stands for at most: 1, 8, 64, …"""
    columns: Mapping[str, list[Any]]
    """By name: see ``rows.STEP_COLUMNS``; lists of the same length."""

    def __len__(self) -> int:
        return len(self.columns["step"])
