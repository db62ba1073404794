"""Report: one run as a file to send, keep or compute with."""

from __future__ import annotations

import streamlit as st
from vramscope.app import blocks, data, state, welcome
from vramscope.app.blocks import Card
from vramscope.app.format import count, duration, size
from vramscope.app.routes import export_url
from vramscope.app.runs_table import run_seconds
from vramscope.storage.records import RunInfo

_KINDS = (
    (
        "html",
        "One page to send",
        "Charts, measured beside predicted, settings and events in one file that opens without "
        "a network.",
        "Download HTML",
    ),
    (
        "csv",
        "Rows for a spreadsheet",
        "One row a step and device, sizes in bytes. Cells that a spreadsheet would run are "
        "neutralised.",
        "Download CSV",
    ),
    (
        "json",
        "Everything, for programs",
        "All steps, events and predictions with their terms, in the documented format "
        "vramscope-run, version 1.",
        "Download JSON",
    ),
)


def render() -> None:
    """The whole page."""
    welcome.style()
    st.title("Report", anchor=False)
    if not welcome.has_runs():
        return
    run = state.pick_run("run", "Run", data.run_choices())
    if run is None:
        return
    _contents(run)
    base = str(st.get_option("server.baseUrlPath") or "")
    columns = st.columns(len(_KINDS), gap="medium")
    for column, (kind, title, what, label) in zip(columns, _KINDS, strict=True):
        with column, st.container(border=True, height="stretch"):
            st.subheader(title, anchor=False)
            st.write(what)
            st.link_button(label, export_url(run.id, kind, base), type="primary")
    st.caption("Nothing leaves this machine: the files are made here, as they download.")
    st.code(f"vramscope export {run.id} --format html", language="bash")


def _contents(run: RunInfo) -> None:
    version = data.token(run)
    devices = data.reader().devices(run.id)
    view = data.fullest(run, devices, version)
    facts = [f"id {run.id}", f"started {run.started_at:%Y-%m-%d %H:%M} UTC"]
    facts.append(f"for {duration(run_seconds(run))}")
    st.html(blocks.header(run, facts))
    last = view.last.step if view is not None and view.last is not None else None
    peak = view.peak.peak.allocated if view is not None and view.peak is not None else None
    events = data.events(data.store_url(), run.id, version)
    predicted = view.analytic.peak.allocated if view is not None and view.analytic else None
    st.html(
        blocks.cards(
            [
                Card(label="Peak allocated", value=size(peak), note="of the fullest device"),
                Card(label="Predicted peak", value=size(predicted)),
                Card(
                    label="Last step",
                    value=count(last),
                    note="on 1 device" if len(devices) == 1 else f"on {len(devices):,} devices",
                ),
                Card(label="Events", value=count(len(events))),
            ]
        )
    )
    if data.is_live(run):
        st.info("This run is still training. A file holds what was recorded until now.")


if __name__ == "__main__":
    render()
