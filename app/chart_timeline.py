"""The figure of one step from inside: forward building up, backward coming down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vramscope.storage.records import MemoryUse, Phase, TimelinePoint

from .chart_layout import (
    Figure,
    Trace,
    base_layout,
    empty,
    floats,
    largest,
    level_label,
    level_line,
    memory_axis,
    places,
    steps_axis,
    unit_label,
)
from .format import (
    CLASS_COLOURS,
    CLASS_LABELS,
    PHASE_LABELS,
    STACK,
    Unit,
    duration,
    module_path,
    palette,
    pl,
    size,
    unit_for,
)

_SHORT = {
    Phase.FORWARD: "fwd",
    Phase.BACKWARD: "bwd",
    Phase.OPTIMIZER: "opt",
    Phase.IDLE: "",
    Phase.EVAL: "eval",
}
_STRIP_FILL = {
    Phase.FORWARD: "rgba(128,140,160,0.16)",
    Phase.BACKWARD: "rgba(128,140,160,0.34)",
    Phase.OPTIMIZER: "rgba(128,140,160,0.52)",
    Phase.EVAL: "rgba(128,140,160,0.16)",
}
"""Greys that read on a light and on a dark page; idle instants stay empty."""

_STRIP = (1.015, 1.085)
"""Bottom and top of the phases' strip, in heights of the plot."""

_NAMED_FROM = 0.06
"""A phase at least this wide, as a part of the chart, carries its name."""

_NARROW_NAMED_FROM = 0.2
_SHORT_FROM = 0.45
"""… a short name from this part of that width, and from half of it a letter."""

_MS = 1e3


class _Span(NamedTuple):
    """A phase from its first instant to the first of the next, in milliseconds."""

    phase: Phase
    begin: float
    end: float


def timeline_in_step(
    points: Sequence[TimelinePoint],
    *,
    dark: bool = False,
    peak_module: str | None = None,
    capacity: int | None = None,
    complete: bool = True,
    legend: bool = True,
) -> Figure:
    """Memory by class over the milliseconds of one step, its phases above, its peak marked.

    Args:
        points: Instants inside the step, in any order.
        dark: Colours for a dark page.
        peak_module: Path of the module that made the peak's allocation; ``""`` is the root.
        capacity: Bytes of the device; drawn once half of it is used.
        complete: False marks the end, where the step broke off.
        legend: Name the colours; not needed under a chart that does.
    """
    ordered = sorted(points, key=lambda p: p.sequence)
    totals = [_total(p.use) for p in ordered]
    top = largest(totals)
    if not ordered or top <= 0:
        return empty("No timeline was recorded of this step.", dark)
    shows_capacity = capacity is not None and top >= 0.45 * capacity
    unit = unit_for(max(top, capacity or 0) if shows_capacity else top)
    end = max(ordered[-1].offset_s * _MS, 1e-3)
    spans = _spans(ordered, end)
    peak = totals.index(int(top))
    layout = base_layout(dark, revision="timeline")
    # Where the peak leaves no room above it, its label would cover the plot's edge.
    height = max(top * 1.16, (capacity or 0) * 1.1 if shows_capacity else 0)
    layout.update(
        xaxis=_time_axis(dark, end),
        yaxis=memory_axis(dark, unit, height),
        margin={"l": 56, "r": 16, "t": 66 if legend else 34, "b": 44},
        showlegend=legend,
        shapes=[*_strip(spans), *_boundaries(spans, dark)],
    )
    layout["legend"].update(y=1.12)
    marks = [unit_label(dark, unit)]
    if shows_capacity and capacity is not None:
        line = level_line(capacity / unit.bytes, palette(dark).capacity, "longdash")
        layout["shapes"].append(line)
        marks.append(_capacity_name(capacity, unit, dark))
    if not complete:
        layout["shapes"].append(_broken_off(end, dark))
    at = ordered[peak].offset_s * _MS
    label = f"peak {size(int(top))}"
    where = "" if peak_module is None else f" · {pl(module_path(peak_module, 40), 60)}"
    layout["annotations"] = [
        *marks,
        *_phase_names(spans, end, _NAMED_FROM),
        _peak_label(f"<b>{label}</b>{where}", at, end, top / unit.bytes, dark),
    ]
    traces = [*_areas(ordered, unit, dark), _outline(ordered, totals, unit, dark)]
    traces.append(_peak_dot(at, top / unit.bytes, dark))
    narrow_annotations = [
        *marks,
        *_phase_names(spans, end, _NARROW_NAMED_FROM),
        _peak_label(f"<b>{label}</b>", at, end, top / unit.bytes, dark),
    ]
    narrow = _narrow(len(traces) - 2 if legend else 0, narrow_annotations)
    return {"data": traces, "layout": layout, "narrow": narrow, "height": 400 if legend else 360}


def _total(use: MemoryUse) -> int | None:
    if use.allocated is not None:
        return use.allocated
    return (use.attributed + (use.unattributed or 0)) or None


def _spans(ordered: Sequence[TimelinePoint], end: float) -> list[_Span]:
    spans: list[_Span] = []
    for point in ordered:
        at = point.offset_s * _MS
        if spans and spans[-1].phase is point.phase:
            continue
        if spans:
            spans[-1] = spans[-1]._replace(end=at)
        spans.append(_Span(point.phase, at if spans else 0.0, end))
    return spans


def _time_axis(dark: bool, end: float) -> dict[str, Any]:
    return steps_axis(
        dark,
        title={
            "text": "milliseconds since the step began",
            "standoff": 6,
            "font": {"size": 12, "color": palette(dark).muted},
        },
        range=[0, end],
        maxallowed=end,
        unifiedhovertitle={"text": "%{x:,.1f} ms"},
        nticks=10,
    )


def _areas(ordered: Sequence[TimelinePoint], unit: Unit, dark: bool) -> list[Trace]:
    """One filled trace a class that holds anything at any instant."""
    times = places(p.offset_s * _MS for p in ordered)
    traces: list[Trace] = []
    for name in STACK:
        values = [getattr(p.use, name) for p in ordered]
        most = largest(values)
        if most <= 0:
            continue
        own = unit_for(most)
        trace: Trace = {
            "type": "scatter",
            "mode": "lines",
            "name": CLASS_LABELS[name],
            "legendgroup": name,
            "x": times,
            "y": floats(values, unit.bytes),
            "stackgroup": "memory",
            "line": {"width": 0, "color": CLASS_COLOURS[name], "shape": "hv"},
            "fillcolor": CLASS_COLOURS[name],
            "hovertemplate": f"{CLASS_LABELS[name]} %{{y:,.2f}} {unit.name}<extra></extra>",
        }
        if own is not unit:
            trace["customdata"] = floats(values, own.bytes)
            trace["hovertemplate"] = (
                f"{CLASS_LABELS[name]} %{{customdata:,.2f}} {own.name}<extra></extra>"
            )
        traces.append(trace)
    return traces


def _outline(
    ordered: Sequence[TimelinePoint], totals: Sequence[int | None], unit: Unit, dark: bool
) -> Trace:
    """The top of the stack: carries the total and the phase into the hover."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Allocated",
        "showlegend": False,
        "x": places(p.offset_s * _MS for p in ordered),
        "y": floats(totals, unit.bytes),
        "text": [PHASE_LABELS[p.phase] for p in ordered],
        "line": {"width": 1, "color": palette(dark).text, "shape": "hv"},
        "hovertemplate": f"<b>Allocated %{{y:,.2f}} {unit.name}</b> · %{{text}}<extra></extra>",
    }


def _peak_dot(at: float, y: float, dark: bool) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "Peak",
        "showlegend": False,
        "x": [at],
        "y": [y],
        "marker": {
            "size": 9,
            "color": palette(dark).text,
            "line": {"width": 2, "color": palette(dark).background},
        },
        "cliponaxis": False,
        "hoverinfo": "skip",
    }


def _peak_label(text: str, at: float, end: float, y: float, dark: bool) -> dict[str, Any]:
    """Above the peak, on the side on which there is room."""
    right = at > 0.55 * end
    return {
        "text": text,
        "x": at,
        "y": y,
        "xanchor": "right" if right else "left",
        "yanchor": "bottom",
        "xshift": -8 if right else 8,
        "yshift": 4,
        "showarrow": False,
        "bgcolor": palette(dark).background,
        "opacity": 0.95,
        "borderpad": 2,
        "font": {"size": 13, "color": palette(dark).text},
    }


def _strip(spans: Sequence[_Span]) -> list[dict[str, Any]]:
    return [
        {
            "type": "rect",
            "xref": "x",
            "x0": span.begin,
            "x1": span.end,
            "yref": "paper",
            "y0": _STRIP[0],
            "y1": _STRIP[1],
            "line": {"width": 0},
            "fillcolor": _STRIP_FILL[span.phase],
        }
        for span in spans
        if span.phase in _STRIP_FILL
    ]


def _boundaries(spans: Sequence[_Span], dark: bool) -> list[dict[str, Any]]:
    """A thin line where a phase begins, over the areas."""
    return [
        {
            "type": "line",
            "x0": span.begin,
            "x1": span.begin,
            "yref": "paper",
            "y0": 0,
            "y1": _STRIP[1],
            "line": {"width": 1.5, "color": palette(dark).background},
        }
        for span in spans[1:]
        if span.phase is not Phase.IDLE
    ]


def _phase_names(spans: Sequence[_Span], end: float, named_from: float) -> list[dict[str, Any]]:
    """A name in the strip wherever it fits; a short one or a letter where only that does."""
    names = []
    for span in spans:
        width = (span.end - span.begin) / end / named_from
        if span.phase not in _STRIP_FILL or width < _SHORT_FROM / 2:
            continue
        text = PHASE_LABELS[span.phase]
        if width >= 2.2:
            text += f" {duration((span.end - span.begin) / _MS)}"
        elif width < _SHORT_FROM:
            text = text[0].upper()
        elif width < 1:
            text = _SHORT[span.phase]
        names.append(
            {
                "text": text,
                "x": (span.begin + span.end) / 2,
                "y": sum(_STRIP) / 2,
                "yref": "paper",
                "yanchor": "middle",
                "showarrow": False,
                "font": {"size": 12},
            }
        )
    return names


def _capacity_name(capacity: int, unit: Unit, dark: bool) -> dict[str, Any]:
    text, colour = f"capacity {size(capacity)}", palette(dark).capacity
    return level_label(dark, text, capacity / unit.bytes, colour, x=0, xanchor="left")


def _broken_off(end: float, dark: bool) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": end,
        "x1": end,
        "yref": "paper",
        "y0": 0,
        "y1": _STRIP[1],
        "line": {"width": 3, "color": palette(dark).capacity},
    }


def _narrow(entries: int, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    below = 62 + 20 * -(-entries // 2) if entries else 44
    return {
        "height": 286 + below,
        "annotations": annotations,
        "margin": {"l": 44, "r": 8, "t": 42, "b": below},
        "xaxis": {"nticks": 5},
        "legend": {
            "y": -52 / 244,
            "yanchor": "top",
            "font": {"size": 11},
            "entrywidth": 0.47,
            "entrywidthmode": "fraction",
            "itemwidth": 30,
        },
    }


__all__ = ["timeline_in_step"]
