"""The page's state in its URL, so that a view can be sent to a colleague.

Widgets with short values are bound by Streamlit itself (``bind="query-params"``). A run is kept
here instead: its value in the URL is the run's id, whatever the picker shows for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import streamlit as st
from vramscope.storage.errors import RunLookupError
from vramscope.storage.reader import RunSummary
from vramscope.storage.records import DeviceInfo, RunInfo

from . import data
from .chart_component import visible_range
from .format import md, plain

BOUND: Final = "query-params"
"""``bind=`` of a widget whose value lives in the URL."""


def run_label(run: RunInfo) -> str:
    """A run in a picker: its name and the start of its id."""
    return f"{plain(run.name, 60)} · {run.id[:8]}"


def device_label(device: DeviceInfo) -> str:
    """A device in a picker: its rank and its own index, and the host when it is known."""
    return f"rank {device.rank} · {device.kind}:{device.index}"


def dark() -> bool:
    """Whether the reader's page is dark."""
    return bool(st.context.theme.type == "dark")


def chart_range(key: str) -> tuple[int, int] | None:
    """The steps in view in a chart, as the browser last told; ``None`` for all."""
    reported = st.session_state.get(key)
    return visible_range(reported.get("range")) if reported is not None else None


def pick_run(
    parameter: str,
    label: str,
    choices: Sequence[RunSummary],
    *,
    default: int = 0,
    width: int | None = None,
) -> RunInfo | None:
    """A picker of runs whose value is the run's id in the URL.

    Args:
        parameter: Name of the query parameter.
        label: The picker's label.
        choices: Runs to choose from; the one in the URL is added when it is not among them.
        default: Position in ``choices`` when the URL names none.
        width: Pixels; a picker of fixed width shows no label.

    Returns:
        The chosen run, or ``None`` when the URL names one that is not there (the page says so).
    """
    runs = {summary.info.id: summary.info for summary in choices}
    asked = st.query_params.get(parameter)
    if asked:
        try:
            chosen = data.reader().run(asked)
        except RunLookupError as error:
            st.error(md(str(error), 400))
            return None
        runs.setdefault(chosen.id, chosen)
        runs[chosen.id] = chosen
    else:
        chosen = list(runs.values())[min(default, len(runs) - 1)]
    key = f"pick_{parameter}"
    st.session_state[key] = chosen.id

    def remember() -> None:
        st.query_params[parameter] = st.session_state[key]

    st.selectbox(
        label,
        list(runs),
        format_func=lambda run_id: run_label(runs[run_id]),
        key=key,
        on_change=remember,
        width=width or "stretch",
        label_visibility="visible" if width is None else "collapsed",
    )
    return chosen
