"""Compare: two runs side by side on shared axes, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st
from vramscope.app import blocks, data, state, welcome
from vramscope.app.blocks import Card
from vramscope.app.chart_component import chart
from vramscope.app.charts import RunSeries, Which, difference_by_class, two_runs_over_steps
from vramscope.app.format import PHASE_LABELS, UNKNOWN, percent, size
from vramscope.app.verdict import differing_settings, verdict
from vramscope.storage.reader import RunSummary
from vramscope.storage.records import MemoryUse, RunInfo

_NOTHING = MemoryUse()


def render() -> None:
    """The whole page."""
    welcome.style()
    st.title("Compare two runs", anchor=False)
    if not welcome.has_runs():
        return
    choices = data.run_choices()
    if len(choices) < 2:
        st.info("One run is recorded. Record another one, with other settings, to compare.")
        return
    asked_a, asked_b = st.query_params.get("a"), st.query_params.get("b")
    first_b = _first_but(choices, asked_a)
    first_a = _first_but(choices, asked_b or choices[first_b].info.id)
    left, right = st.columns(2, gap="medium")
    with left:
        a = state.pick_run("a", "A", choices, default=first_a)
    with right:
        b = state.pick_run("b", "B", choices, default=first_b)
    if a is None or b is None:
        return
    if a.id == b.id:
        st.info("A and B are the same run. Choose another one for A or B.")
        return
    live = data.is_live(a) or data.is_live(b)

    @st.fragment(run_every=data.REFRESH_S if live else None)
    def body() -> None:
        with welcome.store_errors():
            now_a, now_b = data.reader().run(a.id), data.reader().run(b.id)
            if live and not (data.is_live(now_a) or data.is_live(now_b)):
                st.rerun()
            _body(now_a, now_b)

    body()


def _first_but(choices: Sequence[RunSummary], other: str | None) -> int:
    """Position of the newest run that is not the one already chosen."""
    return next((n for n, choice in enumerate(choices) if choice.info.id != other), 0)


def _fullest(run: RunInfo) -> tuple[data.DeviceView | None, data.Token]:
    version = data.token(run)
    return data.fullest(run, data.reader().devices(run.id), version), version


def _body(a: RunInfo, b: RunInfo) -> None:
    (view_a, version_a), (view_b, version_b) = _fullest(a), _fullest(b)
    if view_a is None or view_b is None:
        st.info("One of the runs has no device yet.")
        return
    peak_a = view_a.peak.peak if view_a.peak else _NOTHING
    peak_b = view_b.peak.peak if view_b.peak else _NOTHING
    differing = differing_settings(a.settings, b.settings)
    sentence = verdict(a.name, b.name, peak_a, peak_b, differing)
    st.html(f'<div class="vs-verdict">{blocks.text(sentence, 600)}</div>')
    st.html(blocks.cards(_cards(view_a, view_b)))
    which = _which()
    _side_by_side(a, b, view_a, view_b, version_a, version_b, which)
    end_a = view_a.last.end if view_a.last else _NOTHING
    end_b = view_b.last.end if view_b.last else _NOTHING
    left, right = st.columns(2, gap="medium")
    with left:
        where = "at the peak" if which == "peak" else "at the end of the last step"
        st.subheader(f"Difference by class, {where}", anchor=False)
        books = (peak_a, peak_b) if which == "peak" else (end_a, end_b)
        figure = difference_by_class(*books, state.dark())
        chart(figure, key="difference", label="Difference of B from A by class")
        st.subheader("Settings that differ", anchor=False)
        if differing:
            st.html(blocks.differing_table(differing))
        else:
            st.caption("No recorded setting differs.")
        same = len(set(a.settings) | set(b.settings)) - len(differing)
        if same:
            st.caption(f"{same} settings are the same in both.")
    with right:
        st.subheader("Both runs, by class", anchor=False)
        st.html(blocks.difference_table(*books))


def _which() -> Which:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.subheader("Side by side", anchor=False)
        chosen = st.segmented_control(
            "Books",
            ["Peak of each step", "End of each step"],
            default="Peak of each step",
            required=True,
            key="books",
            bind=state.BOUND,
            label_visibility="collapsed",
        )
    return "end" if chosen == "End of each step" else "peak"


def _cards(a: data.DeviceView, b: data.DeviceView) -> list[Card]:
    cards = []
    for label, view in (("A", a), ("B", b)):
        peak = view.peak
        phase = PHASE_LABELS[peak.peak_phase] if peak and peak.peak_phase else None
        note = UNKNOWN if peak is None else f"step {peak.step:,}"
        cards.append(
            Card(
                label=f"{label}: peak allocated",
                value=size(peak.peak.allocated if peak else None),
                note=f"{note} · in {phase}" if phase else note,
                help="Of the fullest device.",
            )
        )
    ends = [v.last.end.allocated if v.last else None for v in (a, b)]
    peaks = [v.peak.peak.allocated if v.peak else None for v in (a, b)]
    cards.append(_delta("Peak, B − A", peaks[0], peaks[1], "highest peak of either run"))
    cards.append(_delta("End of step, B − A", ends[0], ends[1], "after the last step"))
    return cards


def _delta(label: str, a: int | None, b: int | None, note: str) -> Card:
    if a is None or b is None:
        return Card(label=label, value=UNKNOWN, note=note)
    delta = b - a
    share = "" if not a else f" · {percent(delta / a, signed=True)}"
    return Card(
        label=label,
        value="0 B" if delta == 0 else size(delta, signed=True),
        note=note + share,
        help="Negative: B holds less.",
    )


def _side_by_side(
    a: RunInfo,
    b: RunInfo,
    view_a: data.DeviceView,
    view_b: data.DeviceView,
    version_a: data.Token,
    version_b: data.Token,
    which: Which,
) -> None:
    key = f"compare-{a.id}-{b.id}"
    seen = state.chart_range(key)
    series = [
        RunSeries(
            name=run.name,
            table=data.chart_steps(run, view.id, version, seen),
            capacity=view.device.total_bytes,
            predicted=None
            if view.analytic is None
            else (view.analytic.peak if which == "peak" else view.predicted_end),
        )
        for run, view, version in ((a, view_a, version_a), (b, view_b, version_b))
    ]
    figure = two_runs_over_steps(
        series[0],
        series[1],
        which=which,
        dark=state.dark(),
        revision=key,
    )
    chart(
        figure,
        key=key,
        label="Memory by class over steps of both runs on shared axes",
        height=420,
        report_range=True,
    )
    several = [len(data.reader().devices(r.id)) for r in (a, b)]
    if max(several) > 1:
        st.caption("Of a run on several devices, the fullest one is drawn.")


if __name__ == "__main__":
    render()
