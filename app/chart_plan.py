"""Predicted memory by class in each phase, of one scenario or of two on shared axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vramscope.storage.records import MemoryUse, Phase

from .chart_layout import (
    Figure,
    Trace,
    base_layout,
    empty,
    level_label,
    level_line,
    memory_axis,
    unit_label,
)
from .format import CLASS_COLOURS, CLASS_LABELS, STACK, Unit, palette, pl, size, unit_for

BESIDE = "Allocator’s slack and CUDA context"
"""What a process needs of a GPU beside its tensors."""

_SHORT = {"forward": "fwd", "backward": "bwd", "optimizer": "opt", "step end": "end"}
_BESIDE_UP_TO = 0.5
"""A context that is larger than this part of the peak, as of a toy, is not drawn."""
_CAPACITY_FROM = 0.3
"""From this part of the capacity on, its line is in the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBars:
    """One scenario's bars."""

    name: str
    """Stands over the bars of two scenarios."""
    phases: Mapping[str, MemoryUse]
    """The books at each phase's own peak, by the phase's name, in order."""
    peak: str
    """Name of the phase that holds most."""
    beside: int | None
    """What is usually needed of the GPU beside the tensors at the peak."""


def phase_names(phases: Mapping[Phase, MemoryUse], *, generates: bool) -> dict[Phase, str]:
    """The phases that are drawn, with what they are called."""
    if generates:
        names = {Phase.FORWARD: "prompt", Phase.IDLE: "last token"}
    else:
        names = {
            Phase.FORWARD: "forward",
            Phase.BACKWARD: "backward",
            Phase.OPTIMIZER: "optimizer",
            Phase.IDLE: "step end",
        }
    return {phase: name for phase, name in names.items() if phase in phases}


def planned_phases(
    planned: Sequence[PlannedBars], capacity: int | None, dark: bool = False
) -> Figure:
    """Hatched bars by class, one for each phase; over the highest what is needed beside tensors.

    Args:
        planned: One scenario, or two side by side.
        capacity: Bytes of the GPU in focus.
        dark: Colours for a dark page.
    """
    bars = _placed(planned)
    names = [n for n in STACK if any(getattr(bar.use, n) for bar in bars)]
    if not names:
        return empty("Nothing is known of this scenario.", dark)
    top = max(bar.total + bar.beside for bar in bars)
    shown = capacity is not None and top >= _CAPACITY_FROM * capacity
    axis_top = max(top, capacity or 0) if shown else top
    unit = unit_for(axis_top)
    traces = [_class(name, bars, unit, dark) for name in names]
    if any(bar.beside for bar in bars):
        traces.append(_beside(bars, unit, dark))
    layout = base_layout(dark, revision="plan")
    layout.update(
        barmode="stack",
        bargap=0.18,
        hovermode="x unified",
        dragmode=False,
        xaxis=_phases_axis(bars, [bar.phase for bar in bars]),
        yaxis=memory_axis(dark, unit, axis_top * 1.14),
        annotations=[unit_label(dark, unit), *_totals(bars, unit, dark)],
        margin={"l": 56, "r": 16, "t": 64, "b": 40},
    )
    if len(planned) > 1:
        layout["annotations"] += _headings(planned, bars)
    if capacity is not None:
        _add_capacity(layout, capacity, unit, dark, shown=shown)
    narrow: dict[str, Any] = {
        "margin": {"l": 44, "r": 8, "t": 28, "b": 48 + 20 * -(-len(traces) // 2)},
        "height": 330 + 20 * -(-len(traces) // 2),
        "xaxis": _phases_axis(bars, [_SHORT.get(bar.phase, bar.phase) for bar in bars]),
        "annotations": [{**a, "font": {**a["font"], "size": 11}} for a in layout["annotations"]],
        "legend": {
            "y": -0.14,
            "yanchor": "top",
            "font": {"size": 11},
            "entrywidth": 0.47,
            "entrywidthmode": "fraction",
        },
    }
    if len(planned) > 1:
        kept = [a for a in narrow["annotations"] if a.get("name") != "lower"]
        narrow["annotations"] = kept
    return {"data": traces, "layout": layout, "narrow": narrow, "height": 420}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    x: float
    group: int
    phase: str
    use: MemoryUse
    total: int
    known: bool
    peak: bool
    beside: int


def _placed(planned: Sequence[PlannedBars]) -> list[_Bar]:
    bars = []
    x = 0.0
    for group, scenario in enumerate(planned):
        for phase, use in scenario.phases.items():
            peak = phase == scenario.peak
            bars.append(
                _Bar(
                    x=x,
                    group=group,
                    phase=phase,
                    use=use,
                    total=use.attributed if use.allocated is None else use.allocated,
                    known=use.allocated is not None,
                    peak=peak,
                    beside=_drawn_beside(scenario) if peak else 0,
                )
            )
            x += 1
        x += 0.6
    return bars


def _drawn_beside(scenario: PlannedBars) -> int:
    """What is drawn over the highest bar: nothing where it would hide what is under it."""
    beside, highest = scenario.beside or 0, scenario.phases[scenario.peak].allocated or 0
    return beside if beside <= _BESIDE_UP_TO * highest else 0


def _class(name: str, bars: Sequence[_Bar], unit: Unit, dark: bool) -> Trace:
    colour = CLASS_COLOURS[name]
    return {
        "type": "bar",
        "name": CLASS_LABELS[name],
        "x": [bar.x for bar in bars],
        "y": [(getattr(bar.use, name) or 0) / unit.bytes for bar in bars],
        "customdata": [size(getattr(bar.use, name)) for bar in bars],
        "marker": {
            "color": colour,
            "line": {"width": 1.5, "color": colour},
            "pattern": {
                "shape": "/",
                "size": 7,
                "solidity": 0.45,
                "fillmode": "overlay",
                "bgcolor": palette(dark).background,
                "fgcolor": colour,
                "fgopacity": 1,
            },
        },
        "hovertemplate": f"{CLASS_LABELS[name]} %{{customdata}}<extra></extra>",
    }


def _beside(bars: Sequence[_Bar], unit: Unit, dark: bool) -> Trace:
    colours = palette(dark)
    return {
        "type": "bar",
        "name": BESIDE,
        "x": [bar.x for bar in bars],
        "y": [bar.beside / unit.bytes for bar in bars],
        "customdata": [size(bar.beside) if bar.beside else "" for bar in bars],
        "marker": {
            "color": colours.cached_fill,
            "line": {"width": 1, "color": colours.cached_hatch},
            "pattern": {
                "shape": ".",
                "size": 5,
                "solidity": 0.3,
                "bgcolor": colours.cached_fill,
                "fgcolor": colours.cached_hatch,
            },
        },
        "hovertemplate": f"{BESIDE} %{{customdata}}<extra></extra>",
    }


def _phases_axis(bars: Sequence[_Bar], names: Sequence[str]) -> dict[str, Any]:
    return {
        "tickvals": [bar.x for bar in bars],
        "ticktext": list(names),
        "range": [-0.6, max(bars[-1].x, 2) + 0.6],
        "fixedrange": True,
        "tickangle": 0,
        "tickfont": {"size": 12},
        "zeroline": False,
        "showgrid": False,
    }


def _totals(bars: Sequence[_Bar], unit: Unit, dark: bool) -> list[dict[str, Any]]:
    """The size of each bar on top of it; that of the highest in bold."""
    labels = []
    for bar in bars:
        text = size(bar.total, unit) if bar.known else f"≥ {size(bar.total, unit)}"
        labels.append(
            {
                "name": "peak" if bar.peak else "lower",
                "text": _peak_text(bar, text, unit) if bar.peak else text,
                "x": bar.x,
                "y": (bar.total + bar.beside) / unit.bytes,
                "yanchor": "bottom",
                "yshift": 1,
                "showarrow": False,
                "bgcolor": palette(dark).background,
                "font": {"size": 12, "color": palette(dark).text},
            }
        )
    return labels


def _peak_text(bar: _Bar, text: str, unit: Unit) -> str:
    needed = f"<br>needed {size(bar.total + bar.beside, unit)}" if bar.beside else ""
    return f"<b>{text}</b>{needed}"


def _headings(planned: Sequence[PlannedBars], bars: Sequence[_Bar]) -> list[dict[str, Any]]:
    headings = []
    for group, scenario in enumerate(planned):
        xs = [bar.x for bar in bars if bar.group == group]
        headings.append(
            {
                "text": f"<b>{pl(scenario.name)}</b>",
                "x": (xs[0] + xs[-1]) / 2,
                "y": 0,
                "yref": "paper",
                "yanchor": "top",
                "yshift": -22,
                "showarrow": False,
                "font": {"size": 13},
            }
        )
    return headings


def _add_capacity(
    layout: dict[str, Any], capacity: int, unit: Unit, dark: bool, *, shown: bool
) -> None:
    colour = palette(dark).capacity
    if shown:
        layout["shapes"] = [level_line(capacity / unit.bytes, colour, "longdash")]
        layout["annotations"].append(
            level_label(dark, f"capacity {size(capacity)}", capacity / unit.bytes, colour)
        )
        return
    beyond = level_label(dark, f"capacity {size(capacity)}, beyond the axis ↑", 1, colour)
    layout["annotations"].append({**beyond, "yref": "paper", "yanchor": "top"})
