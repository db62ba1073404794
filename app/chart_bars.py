"""Bar figures: measured beside predicted, the phases of a step, the difference of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramscope.storage.records import MemoryUse, Phase, PhaseRecord

from .chart_layout import (
    Figure,
    Trace,
    base_layout,
    empty,
    horizontal_memory_axis,
    largest,
    level_label,
    memory_axis,
    unit_label,
    upright_line,
)
from .format import (
    CLASS_COLOURS,
    CLASS_LABELS,
    PHASE_LABELS,
    STACK,
    Unit,
    duration,
    palette,
    size,
    unit_for,
)

_DARK_INK = "#0B0B0B"
_LIGHT_INK = "#FEFEFE"
_LABEL_FROM = 0.12
"""Segments of at least this part of the longest bar carry their size."""

_LIGHT_INK_ON = {"parameters", "optimizer_state", "kv_cache", "unattributed"}


def _ink(name: str) -> str:
    """The text colour that reads on a class's colour."""
    return _LIGHT_INK if name in _LIGHT_INK_ON else _DARK_INK


def _lines(*books: MemoryUse | None) -> list[str]:
    """The lines of the stack that any of the books holds, from bottom to top."""
    return [n for n in STACK if any(b is not None and getattr(b, n) for b in books)]


def measured_beside_predicted(
    measured: MemoryUse,
    predicted: MemoryUse | None,
    dark: bool = False,
    *,
    capacity: int | None = None,
    legend: bool = True,
) -> Figure:
    """Two stacked bars: what was measured at the peak, and hatched what was predicted.

    Args:
        measured: The books at the measured peak.
        predicted: The predicted books at the peak, or ``None`` for the measured bar alone.
        dark: Colours for a dark page.
        capacity: Bytes of the device; drawn as a line when it fits the axis.
        legend: Name the colours; not needed beside a table that does.
    """
    names = _lines(measured, predicted)
    if not names:
        return empty("Nothing is known about this peak.", dark)
    colours = palette(dark)
    top = largest([measured.allocated, predicted.allocated if predicted else None])
    shows_capacity = bool(capacity) and top >= 0.45 * (capacity or 0)
    axis_top = max(top, capacity or 0) if shows_capacity else top
    unit = unit_for(axis_top)
    rows = [("Measured", measured, False)]
    if predicted is not None:
        rows.append(("Predicted", predicted, True))
    traces: list[Trace] = []
    for label, books, hatched in rows:
        for name in names:
            value = getattr(books, name)
            if not value:
                continue
            traces.append(_segment(label, name, value, unit, top, hatched, dark))
    layout = base_layout(dark)
    layout.update(
        barmode="stack",
        bargap=0.28,
        hovermode="closest",
        dragmode=False,
        xaxis=horizontal_memory_axis(dark, unit, axis_top * 1.16),
        yaxis={"autorange": "reversed", "fixedrange": True, "ticksuffix": "  ", "type": "category"},
        margin={"l": 84, "r": 16, "t": 34 if legend else 8, "b": 44},
        showlegend=legend,
        uniformtext={"minsize": 11, "mode": "hide"},
    )
    for label, books, hatched in rows:
        layout["annotations"].append(_total_label(label, books.allocated, unit, dark))
        if hatched:
            layout["annotations"] += _segment_labels(label, books, names, unit, top, dark)
    if shows_capacity and capacity:
        layout["shapes"] = [upright_line(capacity / unit.bytes, colours.capacity)]
        layout["annotations"].append(
            level_label(
                dark,
                f"capacity {size(capacity)}",
                0.5,
                colours.capacity,
                x=capacity / unit.bytes,
                xref="x",
                yref="paper",
                yanchor="middle",
                yshift=0,
                xshift=-4,
            )
        )
    height = (150 if predicted is None else 210) + (40 if legend else 0)
    wide_enough = [a for a in layout["annotations"] if a.get("share", 1) >= 2 * _LABEL_FROM]
    for note in layout["annotations"]:
        note.pop("share", None)
    narrow: dict[str, Any] = {
        "margin": {"l": 74, "r": 8},
        "annotations": wide_enough,
        "xaxis": {"range": [0, axis_top * 1.36 / unit.bytes]},
    }
    if legend:
        narrow["legend"] = {"y": -0.3, "yanchor": "top", "font": {"size": 11}}
        narrow["margin"].update(t=16, b=130)
        narrow["height"] = height + 80
    return {"data": traces, "layout": layout, "narrow": narrow, "height": height}


def _segment_labels(
    label: str, books: MemoryUse, names: Sequence[str], unit: Unit, top: float, dark: bool
) -> list[dict[str, Any]]:
    """Sizes of hatched segments, on a patch of background that the hatching does not cross.

    ``share`` is the segment's part of the longest bar; it is taken out before the figure is drawn.
    """
    labels = []
    base = 0
    for name in names:
        value = getattr(books, name) or 0
        if value >= _LABEL_FROM * top:
            labels.append(
                {
                    "share": value / top,
                    "text": size(value),
                    "x": (base + value / 2) / unit.bytes,
                    "y": label,
                    "showarrow": False,
                    "bgcolor": palette(dark).background,
                    "borderpad": 2,
                    "font": {"size": 12},
                }
            )
        base += value
    return labels


def _segment(
    label: str, name: str, value: int, unit: Unit, top: float, hatched: bool, dark: bool
) -> Trace:
    colour = CLASS_COLOURS[name]
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "name": CLASS_LABELS[name],
        "legendgroup": name,
        "showlegend": not hatched,
        "y": [label],
        "x": [value / unit.bytes],
        "marker": {"color": colour, "line": {"width": 0.5, "color": palette(dark).background}},
        "hovertemplate": f"{label}: {CLASS_LABELS[name]} {size(value)}<extra></extra>",
    }
    if value >= _LABEL_FROM * top and not hatched:
        trace.update(
            text=[size(value)],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="inside",
            textfont={"size": 12, "color": _ink(name)},
        )
    if hatched:
        trace["marker"] = {
            "color": colour,
            "line": {"width": 1.5, "color": colour},
            "pattern": {
                "shape": "/",
                "size": 7,
                "solidity": 0.35,
                "fillmode": "overlay",
                "bgcolor": palette(dark).background,
                "fgcolor": colour,
                "fgopacity": 1,
            },
        }
    return trace


def _total_label(label: str, total: int | None, unit: Unit, dark: bool) -> dict[str, Any]:
    return {
        "text": f"<b>{size(total)}</b>",
        "x": (total or 0) / unit.bytes,
        "y": label,
        "xanchor": "left",
        "xshift": 4,
        "borderpad": 2,
        "bgcolor": palette(dark).background,
        "showarrow": False,
        "font": {"size": 13},
    }


def phases_in_step(
    phases: Sequence[PhaseRecord], dark: bool = False, *, legend: bool = True
) -> Figure:
    """The books at the peak of every phase inside one step, in the order in which they ran.

    Bars are equally wide, so that a short optimizer phase stays readable; its duration stands
    under it. The highest bar is the step's peak: peaks of phases are never added. Idle instants
    between micro-steps are left out unless one of them is the highest.
    """
    ordered = _drawn_phases(phases)
    names = _lines(*(p.peak for p in ordered))
    if not ordered or not names:
        return empty("No phase was recorded at this step.", dark)
    colours = palette(dark)
    totals = [p.peak.allocated or p.peak.attributed for p in ordered]
    top = largest(totals)
    unit = unit_for(top)
    few = len(ordered) <= 6
    ticks = [
        f"{PHASE_LABELS[p.phase]}<br>{duration(p.duration_s)}" if few else PHASE_LABELS[p.phase]
        for p in ordered
    ]
    traces: list[Trace] = [
        {
            "type": "bar",
            "name": CLASS_LABELS[name],
            "x": list(range(len(ordered))),
            "y": [(getattr(p.peak, name) or 0) / unit.bytes for p in ordered],
            "customdata": [size(getattr(p.peak, name)) for p in ordered],
            "marker": {"color": CLASS_COLOURS[name], "line": {"width": 0}},
            "hovertemplate": f"{CLASS_LABELS[name]} %{{customdata}}<extra></extra>",
        }
        for name in names
    ]
    layout = base_layout(dark, revision="phases")
    highest = totals.index(max(totals))
    layout.update(
        barmode="stack",
        bargap=0.12,
        xaxis={
            "tickvals": list(range(len(ordered))),
            "ticktext": ticks,
            "range": [-0.6, max(len(ordered), 3) - 0.4],
            "fixedrange": True,
            "tickfont": {"size": 11},
            "tickangle": 0 if few else -40,
            "unifiedhovertitle": {"text": "%{x}"},
            "zeroline": False,
            "showgrid": False,
        },
        yaxis=memory_axis(dark, unit, top * 1.14),
        dragmode=False,
        annotations=[
            unit_label(dark, unit),
            {
                "text": f"peak {size(totals[highest])}",
                "x": highest,
                "y": totals[highest] / unit.bytes,
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 12, "color": colours.text},
            },
        ],
        margin={"l": 56, "r": 16, "t": 44 if legend else 24, "b": 52},
        showlegend=legend,
    )
    narrow: dict[str, Any] = {"margin": {"l": 44, "r": 8}, "xaxis": {"tickfont": {"size": 9}}}
    if legend:
        narrow["legend"] = {"y": -0.34, "yanchor": "top", "font": {"size": 11}}
        narrow["margin"].update(t=24, b=150)
    return {"data": traces, "layout": layout, "narrow": narrow, "height": 340 if legend else 300}


def _drawn_phases(phases: Sequence[PhaseRecord]) -> list[PhaseRecord]:
    ordered = sorted(phases, key=lambda p: p.sequence)
    busy = [p for p in ordered if p.phase is not Phase.IDLE]
    highest = max(ordered, key=lambda p: p.peak.allocated or 0, default=None)
    return ordered if not busy or highest not in busy else busy


def difference_by_class(a: MemoryUse, b: MemoryUse, dark: bool = False) -> Figure:
    """How B differs from A, class by class: a waterfall from 0 to the difference in total."""
    changed = [n for n in STACK if (getattr(b, n) or 0) != (getattr(a, n) or 0)]
    if a.allocated is None or b.allocated is None:
        return empty("The peak of one of the runs is not known.", dark)
    if not changed:
        return empty("The two runs hold the same in every class.", dark)
    colours = palette(dark)
    total = b.allocated - a.allocated
    running = 0
    bars: list[tuple[str, int, int, str]] = []
    for name in changed:
        delta = (getattr(b, name) or 0) - (getattr(a, name) or 0)
        bars.append((CLASS_LABELS[name], running, delta, CLASS_COLOURS[name]))
        running += delta
    ends = [0, total, *(base for _, base, _, _ in bars), *(base + d for _, base, d, _ in bars)]
    unit = unit_for(max(abs(e) for e in ends))
    bars.append(("Allocated, B − A", 0, total, colours.muted))
    reach = max(ends) - min(ends)
    traces: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "showlegend": False,
            "y": [label for label, *_ in bars],
            "base": [base / unit.bytes for _, base, _, _ in bars],
            "x": [delta / unit.bytes for _, _, delta, _ in bars],
            "text": [size(delta, signed=True) for _, _, delta, _ in bars],
            "marker": {"color": [colour for *_, colour in bars], "line": {"width": 0}},
            "hovertemplate": "%{y}: %{text}<extra></extra>",
            "textposition": "none",
        }
    ]
    layout = base_layout(dark)
    axis = horizontal_memory_axis(dark, unit, 1)
    left = 0.24 if any(delta < 0 for _, _, delta, _ in bars) else 0.02
    right = 0.24 if any(delta >= 0 for _, _, delta, _ in bars) else 0.02
    axis["range"] = [
        (min(ends) - left * reach) / unit.bytes,
        (max(ends) + right * reach) / unit.bytes,
    ]
    axis.update(zeroline=True, zerolinecolor=colours.muted, zerolinewidth=1)
    axis["title"]["text"] = f"{unit.name} more (right) or less (left) in B"
    layout.update(
        xaxis=axis,
        yaxis={"autorange": "reversed", "fixedrange": True, "ticksuffix": "  ", "type": "category"},
        hovermode="closest",
        dragmode=False,
        bargap=0.3,
        margin={"l": 136, "r": 16, "t": 12, "b": 48},
        annotations=[
            {
                "text": size(delta, signed=True),
                "x": (base + delta) / unit.bytes,
                "y": label,
                "xanchor": "left" if delta >= 0 else "right",
                "xshift": 6 if delta >= 0 else -6,
                "showarrow": False,
                "font": {"size": 12},
            }
            for label, base, delta, _ in bars
        ],
    )
    narrow = {
        "margin": {"l": 110, "r": 8, "t": 8, "b": 48},
        "font": {"size": 11},
        "xaxis": {
            "range": [
                (min(ends) - 2 * left * reach) / unit.bytes,
                (max(ends) + 2 * right * reach) / unit.bytes,
            ]
        },
    }
    return {"data": traces, "layout": layout, "narrow": narrow, "height": 76 + 36 * len(bars)}
