"""One HTML file that holds all it needs: style, figures and plotly.js, packed.

Its policy allows no request, and no script but the two whose hashes it names, so that a string
from a run could not do anything even if it were not escaped.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from importlib import metadata, resources
from string import Template
from typing import TypeAlias

from ..blocks import STYLE
from ..chart_layout import Figure

Figures: TypeAlias = dict[str, tuple[Figure, Figure]]
"""By the id of its place: the figure for a light and for a dark page."""


class PlotlyMissingError(ModuleNotFoundError):
    """The HTML report needs the plotly.js that the plotly package carries."""

    def __init__(self) -> None:
        super().__init__(
            "The HTML report needs plotly, which this Python does not have. "
            "Install vramscope with its dashboard: in a clone of it, pip install '.[dashboard]'"
        )


def figure_place(name: str, height: int, label: str) -> str:
    """Where a figure is drawn.

    Args:
        name: Its key in the figures.
        height: Pixels, on a wide page.
        label: What it shows, in words, for screen readers.
    """
    return (
        f'<div class="chart" id="{name}" data-height="{height}" style="height:{height}px" '
        f'role="img" aria-label="{html.escape(label)}"></div>'
    )


def page(title: str, body: str, figures: Mapping[str, tuple[Figure, Figure]]) -> str:
    """A whole HTML document.

    Args:
        title: Plain text; it is escaped here.
        body: HTML; every string of a run in it escaped. A figure's place is
            ``<div class="chart" id=… data-height=…>``.
        figures: For each such id the figure for a light and for a dark page.

    Raises:
        PlotlyMissingError: The plotly package is not installed.
    """
    packed, plotly_hash = _plotly()
    javascript = _part("page.js")
    both = {name: {"light": light, "dark": dark} for name, (light, dark) in figures.items()}
    hashes = f"'sha256-{_hash(javascript)}' 'sha256-{plotly_hash}'"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return Template(_part("page.html")).substitute(
        policy=html.escape(policy),
        generator=f"vramscope {metadata.version('vramscope')}",
        title=html.escape(title),
        css=_part("page.css"),
        blocks_style=STYLE,
        body=body,
        figures=_json_in_html(both),
        plotly=packed,
        javascript=javascript,
    )


def _json_in_html(value: object) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


@functools.lru_cache(maxsize=1)
def _plotly() -> tuple[str, str]:
    """plotly.js of the installed package: gzip in base64, and the hash of its text."""
    try:
        source = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    except ModuleNotFoundError as error:
        raise PlotlyMissingError from error
    packed = base64.b64encode(gzip.compress(source, compresslevel=6, mtime=0)).decode("ascii")
    return packed, _hash(source.decode("utf-8"))
