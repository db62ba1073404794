"""Figures: pure functions from what the reader returns to plain plotly.js dictionaries.

Nothing here reads a store or knows Streamlit, so the dashboard and the reports draw the same.
Every figure has one unit on its memory axis, chosen by its largest value and named above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramscope.storage.records import Event, MemoryUse

from .chart_bars import difference_by_class, measured_beside_predicted, phases_in_step
from .chart_device import device_bars
from .chart_layout import (
    Figure,
    Trace,
    base_layout,
    empty,
    largest,
    level_label,
    level_line,
    memory_axis,
    sized,
    steps_axis,
    unit_label,
)
from .chart_marks import Mark, mark_labels, mark_lines, marks_over_steps
from .chart_modules import modules_icicle
from .chart_stack import (
    BARS_UP_TO,
    Which,
    allocated_trace,
    column,
    detail_trace,
    driver_trace,
    stack_top,
    stack_traces,
)
from .chart_timeline import timeline_in_step
from .format import Unit, palette, pl, unit_for

if TYPE_CHECKING:
    from vramscope.storage.reader import StepTable

__all__ = [
    "Figure",
    "RunSeries",
    "Which",
    "device_bars",
    "devices_heat_map",
    "difference_by_class",
    "measured_beside_predicted",
    "memory_over_steps",
    "modules_icicle",
    "phases_in_step",
    "timeline_in_step",
    "two_runs_over_steps",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """One run's steps on one device, for a figure that compares runs."""

    name: str
    table: StepTable
    capacity: int | None = None
    predicted: MemoryUse | None = None


def _levels(
    dark: bool,
    unit: Unit,
    top: float,
    capacity: int | None,
    predicted: MemoryUse | None,
    **axes: str,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Shapes and annotations of the capacity and the predicted level."""
    colours = palette(dark)
    shapes: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    yref = axes.get("yref", "y")
    if predicted is not None and predicted.allocated:
        y = predicted.allocated / unit.bytes
        shapes.append(level_line(y, colours.background, "solid", 4, opacity=0.7) | axes)
        shapes.append(level_line(y, colours.text, "dash", 1.8) | axes)
        text = sized("predicted", predicted.allocated)
        labels.append(level_label(dark, text, y, colours.text, yref=yref))
    if capacity:
        text = sized("capacity", capacity)
        if capacity <= top:
            y = capacity / unit.bytes
            shapes.append(level_line(y, colours.capacity, "longdash") | axes)
            place = {"x": 0, "xanchor": "left", "yref": yref}
            labels.append(level_label(dark, text, y, colours.capacity, **place))
        else:
            place = {"yref": f"{yref} domain", "yanchor": "top", "x": 0, "xanchor": "left"}
            labels.append(
                level_label(dark, f"↑ {text}", 1, colours.capacity, **{**place, "yshift": -2})
            )
    return shapes, labels


def _top(
    tables: Sequence[StepTable],
    which: Which,
    capacity: int | None,
    predicted: Sequence[MemoryUse | None],
) -> float:
    """Bytes at the top of the memory axis; the capacity is in view once half of it is used."""
    top = largest(*(stack_top(t, which) for t in tables))
    top = max(top, largest(*(column(t, "device_used") for t in tables)))
    top = max([top, *(p.allocated or 0 for p in predicted if p is not None)])
    if capacity and top >= 0.45 * capacity:
        top = max(top, capacity)
    return top * 1.1


def memory_over_steps(
    table: StepTable,
    *,
    title: str = "",
    capacity: int | None = None,
    predicted: MemoryUse | None = None,
    which: Which = "peak",
    dark: bool = False,
    events: Sequence[Event] = (),
    revision: str = "steps",
) -> Figure:
    """Stacked memory by class over the steps of one device.

    Args:
        table: The steps, raw or from a rollup level.
        title: Text as it comes from a run; it is escaped here.
        capacity: Bytes of the device, or ``None`` when not known.
        predicted: The predicted books at the same instant, drawn as a dashed level.
        which: The books at each step's peak or at its end.
        dark: Colours for a dark page.
        events: What happened at a step becomes a line with a label.
        revision: plotly.js keeps the zoom while this stays the same.
    """
    if not len(table):
        return empty("No step has ended yet.", dark)
    top = _top([table], which, capacity, [predicted])
    unit = unit_for(top / 1.1)
    marks = marks_over_steps(events, table)
    height = top * (1 if not marks else 1.08)
    traces = stack_traces(table, which, unit, dark)
    traces.append(allocated_trace(table, which, unit, dark))
    for extra in (driver_trace(table, unit, dark), detail_trace(table, height / unit.bytes, dark)):
        if extra is not None:
            traces.append(extra)
    shapes, labels = _levels(dark, unit, top, capacity, predicted)
    named = [unit_label(dark, unit), *labels]
    # In view, the capacity's line is close under the top: its name takes the second row.
    row = None if capacity is None else int(capacity <= top)
    layout = base_layout(dark, title=pl(title), revision=revision)
    layout.update(
        xaxis=steps_axis(dark, autorangeoptions=_steps_shown(table, marks), **_ticks(table)),
        yaxis=memory_axis(dark, unit, height),
        barmode="stack",
        bargap=0.08,
        shapes=[*shapes, *mark_lines(marks, dark)],
        annotations=[*named, *mark_labels(marks, table, dark, capacity_row=row)],
    )
    narrow = _narrow(traces, 300)
    if marks:
        short = mark_labels(marks, table, dark, narrow=True, capacity_row=row)
        narrow["annotations"] = [*named, *short]
    return {"data": traces, "layout": layout, "narrow": narrow}


def _steps_shown(table: StepTable, marks: Sequence[Mark] = ()) -> dict[str, float]:
    """The ends of the steps' axis: exactly the steps there are, and room for a bar or a mark."""
    steps = table.columns["step"]
    room = 0.6 if len(table) <= BARS_UP_TO else 0
    last = max([steps[-1], *(m.step for m in marks if m.step <= steps[-1] + 2)])
    if any(m.step >= steps[-1] for m in marks):
        room = max(room, 0.02 * (last - steps[0]))
    return {"minallowed": steps[0] - min(room, 0.6), "maxallowed": last + room}


def _ticks(table: StepTable) -> dict[str, int]:
    """A tick at every step while there are few."""
    span = table.columns["step"][-1] - table.columns["step"][0]
    return {"dtick": 1} if span <= 12 else {}


def _narrow(traces: Sequence[Trace], height: int) -> dict[str, Any]:
    """Layout of a narrow chart: the legend stands under the plot, in two columns."""
    entries = sum(1 for t in traces if t.get("showlegend", True))
    below = 62 + 20 * -(-entries // 2)
    return {
        "height": height + below,
        "legend": {
            "y": -52 / height,
            "yanchor": "top",
            "font": {"size": 11},
            "entrywidth": 0.47,
            "entrywidthmode": "fraction",
            "itemwidth": 30,
        },
        "margin": {"l": 44, "r": 8, "t": 28, "b": below},
    }


def two_runs_over_steps(
    a: RunSeries,
    b: RunSeries,
    *,
    which: Which = "peak",
    dark: bool = False,
    revision: str = "compare",
) -> Figure:
    """Two runs side by side, on the same memory axis and the same steps."""
    if not len(a.table) and not len(b.table):
        return empty("Neither run has a step yet.", dark)
    tables = [a.table, b.table]
    predicted = [a.predicted, b.predicted]
    capacities = [c for c in (a.capacity, b.capacity) if c]
    top = _top(tables, which, max(capacities, default=None), predicted)
    unit = unit_for(top / 1.1)
    layout = base_layout(dark, revision=revision)
    traces: list[Trace] = []
    seen: set[str] = set()
    ends = [_steps_shown(t) for t in tables if len(t)]
    shown = {
        "minallowed": min(e["minallowed"] for e in ends),
        "maxallowed": max(e["maxallowed"] for e in ends),
    }
    for n, run in enumerate((a, b)):
        suffix = "" if n == 0 else "2"
        axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        if len(run.table):
            added = stack_traces(run.table, which, unit, dark, **axes)
            added.append(allocated_trace(run.table, which, unit, dark, **axes))
            for trace in added:
                group = trace.get("legendgroup", "")
                trace["showlegend"] = bool(group) and group not in seen
                seen.add(group)
            traces += added
        shapes, labels = _levels(
            dark,
            unit,
            top,
            run.capacity,
            run.predicted,
            xref=f"x{suffix} domain",
            yref=f"y{suffix}",
        )
        for label in labels:
            label["xref"] = f"x{suffix} domain"
        layout["shapes"] += shapes
        layout["annotations"] += [
            *labels,
            {
                "text": f"<b>{'AB'[n]}</b> {pl(run.name)}",
                "x": 0,
                "xref": f"x{suffix} domain",
                "xanchor": "left",
                "y": 1,
                "yref": f"y{suffix} domain",
                "yanchor": "bottom",
                "yshift": 4,
                "showarrow": False,
                "font": {"size": 14},
            },
        ]
    layout.update(
        xaxis=steps_axis(dark, domain=[0, 0.485], autorangeoptions=shown),
        xaxis2=steps_axis(
            dark, domain=[0.515, 1], matches="x", anchor="y2", autorangeoptions=shown
        ),
        yaxis=memory_axis(dark, unit, top),
        yaxis2=memory_axis(dark, unit, top, anchor="x2", matches="y", showticklabels=False),
        barmode="stack",
        bargap=0.08,
    )
    layout["annotations"].append(unit_label(dark, unit))
    layout["legend"].update(y=1.1)
    layout["margin"].update(t=76)
    narrow = _narrow(traces, 560) | {
        "xaxis": {"domain": [0, 1], "anchor": "y", "title": {"text": ""}},
        "yaxis": {"domain": [0.56, 1]},
        "xaxis2": {"domain": [0, 1]},
        "yaxis2": {"domain": [0, 0.44], "showticklabels": True},
    }
    return {"data": traces, "layout": layout, "narrow": narrow}


def devices_heat_map(
    rows: Sequence[tuple[str, StepTable]],
    *,
    capacity: int | None = None,
    which: Which = "peak",
    dark: bool = False,
    buckets: int = 240,
) -> Figure:
    """Allocated memory of many devices over steps: one row a device, the fullest step a cell."""
    known = [(label, t) for label, t in rows if len(t)]
    if not known:
        return empty("No step has ended yet.", dark)
    first = min(t.columns["step"][0] for _, t in known)
    last = max(t.columns["step"][-1] for _, t in known)
    width = max(1, -(-(last - first + 1) // buckets))
    columns = (last - first) // width + 1
    grid: list[list[int | None]] = []
    for _, table in known:
        cells: list[int | None] = [None] * columns
        values = column(table, f"{which}_allocated")
        for step, value in zip(table.columns["step"], values, strict=True):
            at = (step - first) // width
            if value is not None and (cells[at] or -1) < value:
                cells[at] = value
        grid.append(cells)
    high = largest(*grid)
    low: float = min((v for row in grid for v in row if v is not None), default=0)
    unit = unit_for(high)
    if capacity and high >= 0.5 * capacity:
        low, high = 0.5 * capacity, max(capacity, high)
    elif low >= 0.98 * high:
        low = 0.9 * high
    labels = [pl(label, 24) for label, _ in known]
    layout = base_layout(dark, revision="devices")
    layout.update(
        hovermode="closest",
        xaxis=steps_axis(dark),
        yaxis={
            "autorange": "reversed",
            "fixedrange": True,
            "ticksuffix": "  ",
            "type": "category",
        },
        margin={"l": 104, "r": 16, "t": 12, "b": 44},
    )
    trace: Trace = {
        "type": "heatmap",
        "x": [first + i * width for i in range(columns)],
        "y": labels,
        "z": [[None if v is None else v / unit.bytes for v in row] for row in grid],
        "zmin": low / unit.bytes,
        "zmax": high / unit.bytes if high else 1,
        "colorscale": "Cividis",
        "ygap": 2,
        "colorbar": {
            "title": {"text": unit.name, "side": "top"},
            "thickness": 12,
            "outlinewidth": 0,
            "tickformat": ",.3~f",
        },
        "hovertemplate": f"%{{y}} · step %{{x:,d}}<br>%{{z:,.2f}} {unit.name}<extra></extra>",
    }
    return {
        "data": [trace],
        "layout": layout,
        "narrow": {"margin": {"l": 100, "r": 4, "b": 40}},
        "height": min(90 + 26 * len(known), 640),
    }
