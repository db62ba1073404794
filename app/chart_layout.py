"""The parts that every figure shares: layout, axes in one unit, labels, typed arrays.

A figure is a plain dictionary with ``data`` and ``layout`` as plotly.js takes them, and
``narrow``: changes to the layout for a chart that is less than 560 pixels wide (its ``height``
among them). ``height``, where there is one, is the height in pixels that suits the content.
"""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from .format import UNKNOWN, Unit, palette, size

Figure: TypeAlias = dict[str, Any]
Trace: TypeAlias = dict[str, Any]

FONT = '"Source Sans", "Source Sans Pro", system-ui, -apple-system, "Segoe UI", sans-serif'


def floats(values: Iterable[int | float | None], divisor: int = 1) -> dict[str, str]:
    """Numbers as plotly.js's compact typed array; unknown becomes a gap."""
    packed = array("f", (math.nan if v is None else v / divisor for v in values))
    return {"dtype": "f4", "bdata": base64.b64encode(packed.tobytes()).decode("ascii")}


def places(values: Iterable[int | float]) -> dict[str, str]:
    """Step numbers or instants as a typed array (as doubles, whole numbers exact up to 2⁵³)."""
    packed = array("d", values)
    return {"dtype": "f8", "bdata": base64.b64encode(packed.tobytes()).decode("ascii")}


def largest(*series: Sequence[int | float | None]) -> float:
    """The largest known value of several series; 0 when nothing is known."""
    return max((v for s in series for v in s if v is not None), default=0)


def base_layout(dark: bool, *, title: str = "", revision: str = "") -> dict[str, Any]:
    """Layout that all figures start from.

    Args:
        dark: Colours for a dark page.
        title: Already escaped for Plotly; empty for none.
        revision: While it stays the same, zoom and hidden traces outlive new data.
    """
    colours = palette(dark)
    layout: dict[str, Any] = {
        "font": {"family": FONT, "size": 13, "color": colours.text},
        "paper_bgcolor": colours.background,
        "plot_bgcolor": colours.background,
        "margin": {"l": 56, "r": 16, "t": 44 if not title else 84, "b": 44},
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": colours.surface,
            "bordercolor": colours.grid,
            "font": {"family": FONT, "size": 13, "color": colours.text},
            "namelength": -1,
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"size": 12},
            "traceorder": "normal",
            "itemwidth": 30,
            "bgcolor": "rgba(0,0,0,0)",
        },
        "modebar": {
            "bgcolor": "rgba(0,0,0,0)",
            "color": colours.muted,
            "activecolor": colours.text,
            "orientation": "h",
        },
        "dragmode": "zoom",
        "annotations": [],
        "shapes": [],
    }
    if title:
        layout["title"] = {
            "text": title,
            "x": 0,
            "xref": "paper",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 12},
            "font": {"size": 17},
        }
    if revision:
        layout["uirevision"] = revision
    return layout


def steps_axis(dark: bool, **more: Any) -> dict[str, Any]:
    """An x axis of step numbers."""
    colours = palette(dark)
    return {
        "title": {"text": "step", "standoff": 6, "font": {"size": 12, "color": colours.muted}},
        "tickformat": ",~f",
        "unifiedhovertitle": {"text": "step %{x:,d}"},
        "gridcolor": "rgba(0,0,0,0)",
        "linecolor": colours.grid,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": colours.grid,
        "ticklen": 4,
        "spikecolor": colours.muted,
        "spikethickness": 1,
        "spikedash": "dot",
        "minallowed": 0,
        **more,
    }


def memory_axis(dark: bool, unit: Unit, top: float, **more: Any) -> dict[str, Any]:
    """A y axis of memory from 0 to ``top`` bytes; zoom is along the steps only."""
    colours = palette(dark)
    return {
        "range": [0, top / unit.bytes if top > 0 else 1],
        "fixedrange": True,
        "gridcolor": colours.grid,
        "zeroline": False,
        "tickformat": ",~f",
        "nticks": 6,
        "ticksuffix": "",
        **more,
    }


def horizontal_memory_axis(dark: bool, unit: Unit, top: float) -> dict[str, Any]:
    """An x axis of memory from 0 to ``top`` bytes, with its unit under it."""
    axis = memory_axis(dark, unit, top)
    axis.update(title={"text": unit.name, "standoff": 6, "font": {"size": 12}})
    return axis


def unit_label(dark: bool, unit: Unit, **more: Any) -> dict[str, Any]:
    """The unit's name above a memory axis."""
    return {
        "text": unit.name,
        "x": 0,
        "y": 1,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "right",
        "yanchor": "bottom",
        "xshift": -6,
        "showarrow": False,
        "font": {"size": 12, "color": palette(dark).muted},
        **more,
    }


def level_label(dark: bool, text: str, y: float, colour: str, **more: Any) -> dict[str, Any]:
    """The name of a horizontal line, on a patch of background, at the plot's right end."""
    return {
        "text": text,
        "x": 1,
        "xref": "paper",
        "xanchor": "right",
        "y": y,
        "yref": "y",
        "yanchor": "bottom",
        "yshift": 2,
        "showarrow": False,
        "font": {"size": 12, "color": colour},
        "bgcolor": palette(dark).background,
        "opacity": 0.9,
        "borderpad": 1,
        **more,
    }


def level_line(y: float, colour: str, dash: str, width: float = 1.5, **more: Any) -> dict[str, Any]:
    """A horizontal line across the whole plot."""
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "yref": "y",
        "y0": y,
        "y1": y,
        "line": {"color": colour, "width": width, "dash": dash},
        **more,
    }


def upright_line(x: float, colour: str) -> dict[str, Any]:
    """A dashed line across the whole height, as of a capacity among horizontal bars."""
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": colour, "width": 1.5, "dash": "longdash"},
    }


def empty(message: str, dark: bool) -> Figure:
    """A figure that says why there is nothing to draw."""
    colours = palette(dark)
    layout = base_layout(dark)
    layout.update(
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        xaxis={"visible": False},
        yaxis={"visible": False},
        annotations=[
            {
                "text": message or UNKNOWN,
                "x": 0.5,
                "y": 0.5,
                "xref": "paper",
                "yref": "paper",
                "showarrow": False,
                "font": {"size": 14, "color": colours.muted},
            }
        ],
    )
    return {"data": [], "layout": layout, "narrow": {}, "height": 150}


def sized(text: str, value: int | None) -> str:
    """A name with a size, as for a line's label."""
    return f"{text} {size(value)}"
