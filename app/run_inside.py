"""The section of the Run page that looks into one detail step."""

from __future__ import annotations

import streamlit as st
from vramscope.storage.records import RunInfo

from . import data, state
from .chart_component import chart
from .charts import phases_in_step, timeline_in_step
from .format import md
from .peak_blocks import peak_groups_table, peak_sentence
from .reports.html_tables import phases_table


def inside_a_step(run: RunInfo, view: data.DeviceView, version: data.Token) -> int | None:
    """The timeline of a detail step, its peak in words and by tensors, and its phases.

    Returns:
        The step that the reader looks into; ``None`` while there is none.
    """
    if not view.detail_steps:
        st.subheader("Inside a step", anchor=False)
        st.caption("No detail step yet. At a detail step every allocation is followed.")
        return None
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.subheader("Inside a step", anchor=False)
        step = _pick_step(view)
    inside = data.step_inside(data.store_url(), run.id, view.id, step, version)
    if inside.record is not None:
        st.markdown(md(peak_sentence(inside.record), 400))
    if inside.timeline:
        _timeline(view, inside)
    left, right = st.columns(2, gap="medium")
    if inside.peak_groups:
        with left:
            _heading("At the peak: the largest groups of tensors")
            st.html(peak_groups_table(inside.peak_groups))
    with right if inside.peak_groups else left:
        _phases(view, inside, legend=not inside.timeline)
    return step


def _timeline(view: data.DeviceView, inside: data.StepInside) -> None:
    record = inside.record
    figure = timeline_in_step(
        inside.timeline,
        dark=state.dark(),
        peak_module=None if record is None else record.peak_module,
        capacity=view.device.total_bytes,
        complete=record is None or record.complete,
    )
    chart(
        figure,
        key=f"timeline-{view.id}",
        label=f"Memory by class inside step {inside.step}",
    )


def _heading(words: str) -> None:
    st.html(f'<h3 class="vs-h3">{words}</h3>')


def _phases(view: data.DeviceView, inside: data.StepInside, *, legend: bool) -> None:
    _heading("The peak of each phase")
    chart(
        phases_in_step(inside.phases, state.dark(), legend=legend),
        key=f"phases-{view.id}",
        label=f"Memory by class at the peak of every phase of step {inside.step}",
    )
    st.caption("Peaks of phases are never added: the highest is the step’s.")
    if inside.phases:
        with st.expander(f"All {len(inside.phases):,} phases with their durations"):
            st.html(phases_table(inside.phases))


def _pick_step(view: data.DeviceView) -> int:
    """A detail step: the newest, or the one that the reader chose and that the URL then holds."""
    newest = "newest"
    labels = [newest, *(str(s) for s in reversed(view.detail_steps))]
    chosen = st.selectbox(
        "Detail step",
        labels,
        key="step",
        bind=state.BOUND,
        width=180,
        label_visibility="collapsed",
        format_func=lambda s: (
            f"step {view.detail_steps[-1]:,}, the newest" if s == newest else f"step {int(s):,}"
        ),
    )
    return view.detail_steps[-1] if chosen in (None, newest) else int(chosen)


__all__ = ["inside_a_step"]
