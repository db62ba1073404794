"""The chart on a page: one component around plotly.js that redraws in place.

``st.plotly_chart`` mounts a new chart whenever its data changes, so that zoom and hover are lost
at every refresh of a live page. This one keeps its DOM node and tells which steps are in view.
"""

from __future__ import annotations

import dataclasses
import json
from importlib import metadata
from pathlib import Path

import streamlit as st

from .chart_layout import Figure
from .format import DARK, LIGHT, Palette

PLOTLY_ROUTE = "/vramscope/plotly.min.js"
"""Where ``asgi.py`` serves the plotly.js that the installed plotly package carries."""

DEFAULT_HEIGHT = 420

_HTML = '<div class="vramscope-chart" role="img"></div><p class="vramscope-chart-message"></p>'
_CSS = """
.vramscope-chart { width: 100%; min-width: 0; overflow: hidden; }
.vramscope-chart-message { margin: 0; color: var(--st-text-color); font-family: var(--st-font); }
"""

_component = st.components.v2.component(
    "vramscope_chart",
    html=_HTML,
    css=_CSS,
    js=Path(__file__).with_name("chart.js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


def plotly_url() -> str:
    """Address of plotly.js on this server; the version in it makes it cacheable for good."""
    base = str(st.get_option("server.baseUrlPath") or "").strip("/")
    prefix = f"/{base}" if base else ""
    return f"{prefix}{PLOTLY_ROUTE}?v={metadata.version('plotly')}"


def chart(
    figure: Figure, *, key: str, label: str, height: int | None = None, report_range: bool = False
) -> tuple[int, int] | None:
    """Draw a figure and return the steps in view.

    Args:
        figure: ``data``, ``layout`` and ``narrow``, as ``charts.py`` makes them.
        key: Identity of the chart on the page; its zoom lives as long as the key.
        label: What the chart shows, in words, for screen readers.
        height: Pixels; what suits the figure when left out.
        report_range: Rerun with the visible steps when the reader zooms.

    Returns:
        First and last visible step, or ``None`` for all of them.
    """
    result = _component(
        data={
            "figure": json.dumps(figure, separators=(",", ":"), allow_nan=False),
            "plotly": plotly_url(),
            "height": height or figure.get("height") or DEFAULT_HEIGHT,
            "label": label,
            "report": report_range,
            "colours": {"light": _colours(LIGHT), "dark": _colours(DARK)},
        },
        key=key,
        default={"range": None},
        on_range_change=lambda: None,
    )
    return visible_range(result.get("range"))


def _colours(palette: Palette) -> list[str]:
    """A theme's colours, in the same order for every theme: the chart swaps them by position."""
    return list(dataclasses.asdict(palette).values())


def visible_range(value: object) -> tuple[int, int] | None:
    """A range of steps as the browser reports it; anything else counts as none."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in value):
        return None
    first, last = int(value[0]), int(value[1])
    return (first, last) if first <= last else None
