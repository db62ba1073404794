"""The table of runs: one frame and how its columns are shown. Numbers stay numbers, so it sorts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import streamlit as st
from vramscope.storage.reader import RunSummary
from vramscope.storage.records import RunInfo, RunStatus

from .format import STATUS_LABELS, Unit, plain, relative_error, unit_for

_STATUS_COLOURS: dict[RunStatus, str] = {
    RunStatus.RUNNING: "blue",
    RunStatus.COMPLETED: "green",
    RunStatus.FAILED: "red",
    RunStatus.INTERRUPTED: "orange",
    RunStatus.OUT_OF_MEMORY: "red",
    RunStatus.STALE: "orange",
}


def run_seconds(run: RunInfo, now: datetime | None = None) -> float:
    """How long a run took, has been going on, or was last heard of."""
    if run.ended_at is not None:
        end = run.ended_at
    elif run.status is RunStatus.STALE and run.heartbeat_at is not None:
        end = run.heartbeat_at
    else:
        end = now or datetime.now(UTC)
    return max(0.0, (end - run.started_at).total_seconds())


def table_unit(rows: Sequence[RunSummary]) -> Unit:
    """One unit for all sizes of the table."""
    return unit_for(max((r.peak_allocated or 0 for r in rows), default=0))


def frame(rows: Sequence[RunSummary]) -> pd.DataFrame:
    """One row a run; unknown stays missing."""
    unit = table_unit(rows)

    def scaled(value: int | None) -> float | None:
        return None if value is None else value / unit.bytes

    records: list[dict[str, Any]] = []
    for row in rows:
        peak = row.peak_reserved if row.peak_reserved is not None else row.peak_allocated
        headroom = None if row.capacity is None or peak is None else row.capacity - peak
        error = relative_error(row.predicted_peak, row.peak_allocated)
        records.append(
            {
                "Run": plain(row.info.name, 80),
                "Status": [STATUS_LABELS[row.info.status]],
                "Peak": scaled(row.peak_allocated),
                "Predicted": scaled(row.predicted_peak),
                "Error": None if error is None else round(error * 100, 1) + 0.0,
                "Headroom": scaled(headroom),
                "Capacity": scaled(row.capacity),
                "Steps": row.steps,
                "Devices": row.devices,
                "Started": row.info.started_at,
                "Id": row.info.id,
            }
        )
    result = pd.DataFrame.from_records(records)
    for name in ("Steps", "Devices"):
        result[name] = result[name].astype("Int64")
    for name in ("Peak", "Capacity", "Headroom", "Predicted", "Error"):
        result[name] = result[name].astype("Float64")
    return result


def columns(rows: Sequence[RunSummary]) -> dict[str, Any]:
    """Labels with units, formats and help of the columns of :func:`frame`."""
    unit = table_unit(rows).name
    column = st.column_config

    def memory(label: str, help_text: str) -> Any:
        return column.NumberColumn(f"{label}, {unit}", format="%.2f", width=104, help=help_text)

    return {
        "Run": column.TextColumn("Run", width=240, help="Click a name to open the run."),
        "Status": column.MultiselectColumn(
            "Status",
            options=[STATUS_LABELS[s] for s in _STATUS_COLOURS],
            color=list(_STATUS_COLOURS.values()),
            width=125,
        ),
        "Started": column.DatetimeColumn("Started", format="MMM D, HH:mm", width=105),
        "Devices": column.NumberColumn("Devices", width=70),
        "Steps": column.NumberColumn("Steps", format="localized", width=75),
        "Peak": memory("Peak", "Highest allocated memory of the fullest device."),
        "Capacity": memory("Capacity", "Memory of that device, where it is known."),
        "Headroom": memory(
            "Headroom", "Capacity minus the most that was reserved (allocated where unknown)."
        ),
        "Predicted": memory("Predicted", "Peak that the analytic predictor says."),
        "Error": column.NumberColumn(
            "Error", format="%+.1f %%", width=75, help="Predicted minus measured, over measured."
        ),
        "Id": column.TextColumn("Id", width=118),
    }
