"""The traces of a stack of memory by class over steps, and of what is drawn around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .chart_layout import Trace, floats, largest, places
from .format import CLASS_COLOURS, CLASS_LABELS, STACK, Unit, palette, unit_for

if TYPE_CHECKING:
    from vramscope.storage.reader import StepTable

Which = Literal["peak", "end"]
"""The books at each step's peak, or at its end."""

BARS_UP_TO = 40
"""A stack of so few steps is drawn as bars: an area over one or two points shows nothing."""


def column(table: StepTable, name: str) -> list[Any]:
    """One column of the table; unknown throughout when the table has none of that name."""
    return list(table.columns.get(name) or [None] * len(table))


def stack_top(table: StepTable, which: Which) -> list[int | None]:
    """Bytes at the top of the stack with its cached band."""
    allocated = column(table, f"{which}_allocated")
    reserved = column(table, f"{which}_reserved")
    return [a if r is None else r for a, r in zip(allocated, reserved, strict=True)]


def stack_traces(
    table: StepTable, which: Which, unit: Unit, dark: bool, **axes: str
) -> list[Trace]:
    """One filled trace a class that holds anything, then the cached band."""
    steps = places(table.columns["step"])
    bars = len(table) <= BARS_UP_TO
    colours = palette(dark)
    traces: list[Trace] = []

    def add(name: str, values: list[Any], fill: str, **more: Any) -> None:
        peak = largest(values)
        own = unit_for(peak)
        trace: Trace = {
            "name": CLASS_LABELS[name],
            "legendgroup": name,
            "x": steps,
            "y": floats(values, unit.bytes),
            "hovertemplate": f"{CLASS_LABELS[name]} %{{y:,.2f}} {unit.name}<extra></extra>",
            **axes,
        }
        if own is not unit:
            trace["customdata"] = floats(values, own.bytes)
            trace["hovertemplate"] = (
                f"{CLASS_LABELS[name]} %{{customdata:,.2f}} {own.name}<extra></extra>"
            )
        if bars:
            trace.update(type="bar", marker={"color": fill, "line": {"width": 0}})
        else:
            trace.update(
                type="scatter",
                mode="lines",
                stackgroup="memory" + axes.get("xaxis", ""),
                line={"width": 0, "color": fill},
                fillcolor=fill,
            )
        trace.update(more)
        traces.append(trace)

    for name in STACK:
        values = column(table, f"{which}_{name}")
        if largest(values) > 0:
            add(name, values, CLASS_COLOURS[name])
    cached = [
        None if r is None or a is None else max(0, r - a)
        for r, a in zip(
            column(table, f"{which}_reserved"), column(table, f"{which}_allocated"), strict=True
        )
    ]
    if largest(cached) > 0:
        hatch = {"shape": "/", "size": 6, "solidity": 0.25}
        if bars:
            pattern = {**hatch, "fgcolor": colours.cached_hatch, "bgcolor": colours.cached_fill}
            marker = {"color": colours.cached_fill, "pattern": pattern, "line": {"width": 0}}
            add("cached", cached, colours.cached_fill, marker=marker)
        else:
            pattern = {**hatch, "fgcolor": colours.cached_hatch, "bgcolor": colours.cached_fill}
            add("cached", cached, colours.cached_fill, fillpattern=pattern)
    return traces


def allocated_trace(table: StepTable, which: Which, unit: Unit, dark: bool, **axes: str) -> Trace:
    """The top of the stack: a thin line that carries the total and its phase into the hover."""
    notes = [""] * len(table)
    if which == "peak":
        phases = column(table, "peak_phase")
        notes = [f" · in {getattr(p, 'value', p)}" if p else "" for p in phases]
        carried = column(table, "carried")
        notes = [n + (" · ○ carried" if c else "") for n, c in zip(notes, carried, strict=True)]
    skipped = column(table, "skipped")
    notes = [n + (" · skipped step" if s else "") for n, s in zip(notes, skipped, strict=True)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Allocated",
        "showlegend": False,
        "x": places(table.columns["step"]),
        "y": floats(column(table, f"{which}_allocated"), unit.bytes),
        "text": notes,
        "line": {"width": 0 if len(table) <= BARS_UP_TO else 1, "color": palette(dark).text},
        "hovertemplate": f"<b>Allocated %{{y:,.2f}} {unit.name}</b>%{{text}}<extra></extra>",
        **axes,
    }


def driver_trace(table: StepTable, unit: Unit, dark: bool, **axes: str) -> Trace | None:
    """What the driver says is in use on the device, other processes included."""
    used = column(table, "device_used")
    if largest(used) <= 0:
        return None
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "In use on the device (driver)",
        "x": places(table.columns["step"]),
        "y": floats(used, unit.bytes),
        "line": {"width": 1.5, "color": palette(dark).driver, "dash": "dot"},
        "hovertemplate": f"Driver %{{y:,.2f}} {unit.name}<extra></extra>",
        **axes,
    }


def detail_trace(table: StepTable, height: float, dark: bool, **axes: str) -> Trace | None:
    """Marks under the steps at which every allocation was followed."""
    steps = [s for s, d in zip(table.columns["step"], column(table, "detail"), strict=True) if d]
    if not steps or len(steps) == len(table):
        return None
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "Detail step",
        "legendgroup": "detail",
        "x": places(steps),
        "y": floats([0.022 * height] * len(steps)),
        "marker": {
            "symbol": "triangle-up",
            "size": 8,
            "color": palette(dark).text,
            "line": {"width": 1, "color": palette(dark).background},
        },
        "cliponaxis": False,
        "hoverinfo": "skip",
        **axes,
    }
