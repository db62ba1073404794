"""Plan: what a training setup will hold, where it fits, and what would make it fit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import streamlit as st
import yaml
from vramscope.app import blocks, data, plan_controls, plan_state, run_sections, state, welcome
from vramscope.app.chart_component import chart
from vramscope.app.chart_plan import PlannedBars, phase_names, planned_phases
from vramscope.app.charts import difference_by_class
from vramscope.app.format import md
from vramscope.app.plan_blocks import (
    change_line,
    differing,
    gpu_table,
    phases_table,
    plan_cards,
    unknown_sentence,
    way_sentence,
)
from vramscope.app.plan_link import encode
from vramscope.app.plan_settings import model_name
from vramscope.app.plan_state import Name
from vramscope.app.plans import RULE, Plan
from vramscope.app.verdict import verdict
from vramscope.profiler.analytic import Scenario
from vramscope.profiler.analytic.gpus import GPUS
from vramscope.storage.records import MemoryUse

_GPU_NAMES = [gpu.name for gpu in reversed(GPUS)]
_FIRST_GPU = "H100 80 GB"
_LONGEST_FILE = 20_000
_EDIT = "plan_edit"


def render() -> None:
    """The whole page."""
    welcome.style()
    plan_state.load()
    gpu = _head()
    edited = _edited()
    scenario = plan_state.scenario_of(edited)
    assert scenario is not None, "the scenario whose controls are shown is there"
    plan_controls.controls(edited, scenario)
    if (problem := plan_state.problem()) is not None:
        st.error(md(problem, 1000))
    plans = {name: _planned(name, gpu) for name in ("A", "B")}
    shown = {name: plan for name, plan in plans.items() if plan is not None}
    _overview(shown)
    if len(shown) == 2:
        _difference(shown["A"], shown["B"])
    _details(edited, shown[edited.upper()])


def _head() -> str:
    """Title, GPU, files, and the second scenario; the GPU in focus."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.title("Plan", anchor=False, width="stretch")
        gpu = st.selectbox(
            "GPU",
            _GPU_NAMES,
            index=_GPU_NAMES.index(_FIRST_GPU),
            key="gpu",
            bind=state.BOUND,
            width=190,
        )
        edited = _edited_name()
        scenario = plan_state.scenario_of(edited)
        assert scenario is not None, "the scenario whose controls are shown is there"
        plan_controls.files(edited, scenario)
        if plan_state.scenario_of("b") is None:
            st.button("Add a second", on_click=_add_second, args=(scenario,), width=150)
        else:
            st.button("Remove B", on_click=plan_state.remove_b, width=150)
    return str(gpu)


def _add_second(scenario: Scenario) -> None:
    plan_state.put("b", scenario)
    st.session_state[_EDIT] = "B"


def _edited_name() -> Name:
    both = plan_state.scenario_of("b") is not None
    return "b" if both and st.session_state.get(_EDIT, "B") == "B" else "a"


def _edited() -> Name:
    """Whose controls are shown."""
    if plan_state.scenario_of("b") is None:
        return "a"
    st.session_state.setdefault(_EDIT, "B")
    chosen = st.segmented_control(
        "Controls of",
        ["A", "B"],
        required=True,
        key=_EDIT,
        label_visibility="collapsed",
        format_func=lambda name: f"Scenario {name}",
    )
    return "a" if chosen == "A" else "b"


def _planned(name: str, gpu: str) -> Plan | None:
    scenario = plan_state.scenario_of("a" if name == "A" else "b")
    return None if scenario is None else data.planned(encode(scenario), gpu, scenario)


def _overview(shown: Mapping[str, Plan]) -> None:
    for name, plan in shown.items():
        st.html(blocks.cards(plan_cards(plan, name if len(shown) > 1 else "")))
        if unknown := unknown_sentence(plan, _named_phases(plan)):
            st.warning(md(unknown, 600))
    bars = [
        PlannedBars(
            name=name,
            phases=_named_phases(plan),
            peak=_peak_name(plan),
            beside=_beside(plan),
        )
        for name, plan in shown.items()
    ]
    capacity = next(iter(shown.values())).gpu.total_bytes
    chart(
        planned_phases(bars, capacity, state.dark()),
        key="plan-phases",
        label="Predicted memory by class in each phase of a step",
    )


def _named_phases(plan: Plan) -> dict[str, MemoryUse]:
    phases = plan.prediction.phases
    names = phase_names(phases, generates=plan.scenario.inference is not None)
    return {name: phases[phase] for phase, name in names.items()}


def _peak_name(plan: Plan) -> str:
    """The phase whose known bytes are most."""
    phases = _named_phases(plan)
    return max(phases, key=lambda name: phases[name].allocated or phases[name].attributed)


def _beside(plan: Plan) -> int | None:
    needed, high = plan.fit.needed_bytes, plan.prediction.peak_high
    return None if needed is None or high is None else needed - high


def _difference(a: Plan, b: Plan) -> None:
    settings = differing(a.scenario, b.scenario)
    peak_a, peak_b = a.prediction.peak, b.prediction.peak
    sentence = verdict("A", "B", peak_a, peak_b, settings)
    st.html(f'<div class="vs-verdict">{blocks.text(sentence, 600)}</div>')
    left, right = st.columns(2, gap="medium")
    with left:
        st.subheader("Difference by class, at the peak", anchor=False)
        figure = difference_by_class(peak_a, peak_b, state.dark())
        chart(figure, key="plan-difference", label="Difference of B from A by class")
    with right:
        st.subheader("Settings that differ", anchor=False)
        if settings:
            st.html(blocks.differing_table(settings))
        else:
            st.caption("None yet: B is a copy of A. Change a control of either.")


def _details(edited: Name, plan: Plan) -> None:
    whose = f", {edited.upper()}" if plan_state.scenario_of("b") is not None else ""
    left, right = st.columns(2, gap="medium")
    with left:
        st.subheader(f"What would make it smaller{whose}", anchor=False)
        _changes(edited, plan)
        st.subheader(f"By class and phase{whose}", anchor=False)
        st.html(phases_table(_named_phases(plan)))
        st.caption("Each phase at its own peak, on one device; phases are never added.")
    with right:
        st.subheader(f"On which GPU{whose}", anchor=False)
        st.html(gpu_table(plan.fits, plan.gpu.name))
        st.caption(RULE)
    _small_print(edited, plan)


def _changes(edited: Name, plan: Plan) -> None:
    sentence = way_sentence(plan)
    if sentence:
        st.html(f'<div class="vs-verdict">{blocks.text(sentence, 800)}</div>')
    if not plan.changes:
        st.caption("No change that is known here would lower the peak.")
    for place, change in enumerate(plan.changes):
        line, button = st.columns([6, 1], vertical_alignment="center", gap="small")
        line.html(change_line(change))
        button.button(
            "Apply",
            key=f"plan_change_{edited}_{place}",
            on_click=plan_state.put,
            args=(edited, change.remedy.scenario),
        )


def _small_print(edited: Name, plan: Plan) -> None:
    record = plan.prediction.to_record(0)
    with st.expander("How the figures come about: terms, and what is not in them"):
        run_sections.prediction_terms(record)
    with st.expander("This scenario as a file"):
        text = yaml.safe_dump(plan.scenario.to_mapping(), sort_keys=False, allow_unicode=True)
        if len(text) <= _LONGEST_FILE:
            st.code(text, language="yaml")
        st.download_button(
            "Download scenario.yaml", text, file_name="scenario.yaml", mime="application/yaml"
        )
        gpu = shlex.quote(plan.gpu.name)
        st.code(f"vramscope plan scenario.yaml --gpu {gpu}", language="bash")
    if plan.scenario.notes:
        listed = "\n".join(f"- {md(note, 400)}" for note in plan.scenario.notes)
        st.caption(f"Taken where the files do not say:\n{listed}")
    if not plan_state.in_address(edited):
        st.caption(
            f"{md(model_name(plan.scenario))} has too many tensors for an address: send the file "
            "above instead of a link."
        )


if __name__ == "__main__":
    render()
