"""Figure of a device as a whole: whose its memory is, up to all that it has."""

from __future__ import annotations

from collections.abc import Mapping

from .chart_layout import (
    Figure,
    Trace,
    base_layout,
    empty,
    horizontal_memory_axis,
    level_label,
    upright_line,
)
from .device_use import DeviceUse
from .format import (
    DEVICE_COLOURS,
    DEVICE_LABELS,
    Unit,
    palette,
    percent,
    size,
    unit_for,
    whole_bytes,
)

_DARK_INK = "#0B0B0B"
_LIGHT_INK = "#FEFEFE"
_DARK_INK_ON = {"cached", "driver_reserved"}
_LABEL_FROM = 0.08
"""Segments of at least this part of the axis carry their size."""


def device_bars(uses: Mapping[str, DeviceUse], dark: bool = False) -> Figure:
    """A stacked bar for each instant: what is in use by whom, and what is free.

    It has no legend: ``device_table`` stands beside it and names the colours.

    Args:
        uses: The device by the instant's name, the uppermost bar first.
        dark: Colours for a dark page.
    """
    if not uses:
        return empty("The driver did not say what is in use on this device.", dark)
    total = max((use.total or 0 for use in uses.values()), default=0)
    top = max(total, *(use.used for use in uses.values()))
    unit = unit_for(top)
    traces: list[Trace] = []
    for label, use in uses.items():
        for name, value in (*use.lines(), ("free", use.free)):
            if not value:
                continue
            traces.append(_segment(label, name, value, top, unit, dark))
    layout = base_layout(dark)
    layout.update(
        barmode="stack",
        bargap=0.3,
        hovermode="closest",
        dragmode=False,
        xaxis=horizontal_memory_axis(dark, unit, top * 1.02),
        yaxis={"autorange": "reversed", "fixedrange": True, "ticksuffix": "  ", "type": "category"},
        margin={"l": 112, "r": 16, "t": 26, "b": 44},
        showlegend=False,
        uniformtext={"minsize": 11, "mode": "hide"},
    )
    if total:
        colour = palette(dark).capacity
        layout["shapes"] = [upright_line(total / unit.bytes, colour)]
        layout["annotations"] = [
            level_label(dark, f"all of it, {size(total)}", 1, colour, yref="paper", yshift=0)
        ]
    return {
        "data": traces,
        "layout": layout,
        "narrow": {"margin": {"l": 96, "r": 8}},
        "height": 78 + 58 * len(uses),
    }


def _segment(label: str, name: str, value: int, top: int, unit: Unit, dark: bool) -> Trace:
    colours = palette(dark)
    free = name == "free"
    share = f", {percent(value / top)}"
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "name": DEVICE_LABELS[name],
        "y": [label],
        "x": [value / unit.bytes],
        "marker": {
            "color": colours.surface if free else DEVICE_COLOURS[name],
            "line": {
                "width": 1 if free else 0.5,
                "color": colours.grid if free else colours.background,
            },
        },
        "hovertemplate": f"{label}: {DEVICE_LABELS[name]} {size(value)}{share}<br>"
        f"{whole_bytes(value)}<extra></extra>",
    }
    if value >= _LABEL_FROM * top:
        ink = colours.muted if free else _DARK_INK if name in _DARK_INK_ON else _LIGHT_INK
        trace.update(
            text=[f"{size(value)} free" if free else size(value)],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="inside",
            textfont={"size": 12, "color": ink},
        )
    return trace


__all__ = ["device_bars"]
