"""Sections of the Run page under its main chart."""

from __future__ import annotations

import pandas as pd
import streamlit as st
from vramscope.storage.records import DeviceInfo, PredictionRecord, RunInfo

from . import blocks, data, state
from .chart_component import chart
from .charts import devices_heat_map, phases_in_step
from .charts import measured_beside_predicted as bars
from .format import CLASS_LABELS, PHASE_LABELS, UNKNOWN, md, plain, size, unit_for
from .overview import modules_in_all_dtypes
from .reports.html_tables import phases_table

TERMS_SHOWN = 200
MODULES_SHOWN = 500


def measured_beside_predicted(view: data.DeviceView) -> None:
    """The books at the measured peak beside the predicted ones, and the residual by class."""
    st.subheader("Measured beside predicted, at the peak", anchor=False)
    if view.peak is None:
        st.caption("No step has ended yet.")
        return
    predicted = None if view.analytic is None else view.analytic.peak
    figure = bars(
        view.peak.peak, predicted, state.dark(), capacity=view.device.total_bytes, legend=False
    )
    chart(
        figure,
        key=f"beside-{view.id}",
        label="Measured and predicted memory by class at the peak",
    )
    st.html(blocks.residual_table(view.peak.peak, predicted))
    if predicted is None:
        st.caption("No predictor knows this run's model yet, so there is nothing to compare with.")
    else:
        st.caption("Residual is measured minus predicted. Hover a size for its bytes.")


def phases(run: RunInfo, view: data.DeviceView, version: data.Token) -> None:
    """The phases inside one detail step."""
    st.subheader("Phases inside a step", anchor=False)
    if not view.detail_steps:
        st.caption("No detail step yet. At a detail step every allocation is followed.")
        return
    step = _pick_step(view)
    found = data.phases(data.store_url(), run.id, view.id, step, version)
    chart(
        phases_in_step(found, state.dark(), legend=False),
        key=f"phases-{view.id}",
        label=f"Memory by class at the peak of every phase of step {step}",
    )
    st.caption("Each bar is the peak of one phase. Peaks of phases are never added.")
    if found:
        with st.expander(f"All {len(found):,} phases with their durations"):
            st.html(phases_table(found))


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
        format_func=lambda s: f"newest ({view.detail_steps[-1]:,})" if s == newest else s,
    )
    return view.detail_steps[-1] if chosen in (None, newest) else int(chosen)


def devices(run: RunInfo, found: tuple[DeviceInfo, ...], version: data.Token) -> None:
    """A heat map of all devices, when there are several."""
    if len(found) < 2:
        return
    st.subheader("All devices", anchor=False)
    shown = found[: data.HEAT_MAP_DEVICES]
    rows = []
    for device in shown:
        assert device.id is not None, "a device that was read has an id"
        table = data.step_table(
            data.store_url(), run.id, device.id, None, None, data.HEAT_MAP_ROWS, version
        )
        rows.append((state.device_label(device), table))
    capacities = {d.total_bytes for d in shown}
    capacity = capacities.pop() if len(capacities) == 1 else None
    chart(
        devices_heat_map(rows, capacity=capacity, dark=state.dark()),
        key=f"heat-{run.id}",
        label="Allocated memory of every device over steps",
    )
    if len(found) > len(shown):
        st.caption(f"The first {len(shown)} of {len(found):,} devices are drawn.")


def details(run: RunInfo, view: data.DeviceView, version: data.Token) -> None:
    """Tabs: settings, prediction, modules, events, and what the classes mean."""
    happened = data.events(data.store_url(), run.id, version)
    names = ["Settings", "Prediction", "Modules", f"Events ({len(happened):,})", "Classes"]
    settings, prediction, modules, events, classes = st.tabs(names)
    with settings:
        _settings(run)
    with prediction:
        _predictions(view)
    with modules:
        _modules(run, view, version)
    with events:
        if happened:
            st.html(blocks.events_table(happened[-data.EVENTS_SHOWN :]))
        else:
            st.caption("Nothing happened beside the steps.")
    with classes:
        st.html(blocks.classes_help())


def _settings(run: RunInfo) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        if run.settings:
            st.html(blocks.mapping_table(run.settings))
        else:
            st.caption("No settings were read off this run.")
    with right:
        if run.environment:
            st.html(blocks.mapping_table(run.environment, "Environment"))


def _predictions(view: data.DeviceView) -> None:
    if not view.predictions:
        st.caption("There is no prediction for this device.")
    for prediction in view.predictions:
        _prediction(prediction)


def _prediction(prediction: PredictionRecord) -> None:
    where = f" in {PHASE_LABELS[prediction.peak_phase]}" if prediction.peak_phase else ""
    st.markdown(
        f"**{prediction.method.value.replace('_', ' ').capitalize()}**: "
        f"peak {size(prediction.peak.allocated)}{where}"
    )
    if prediction.terms:
        terms = prediction.terms[:TERMS_SHOWN]
        unit = unit_for(max(t.bytes for t in terms))
        st.dataframe(
            pd.DataFrame(
                {
                    "Term": [plain(t.name) for t in terms],
                    "Class": [
                        CLASS_LABELS[t.memory_class] if t.memory_class else "outside the allocator"
                        for t in terms
                    ],
                    "Size": [t.bytes / unit.bytes for t in terms],
                    "Bytes": [t.bytes for t in terms],
                    "Formula": [plain(t.formula, 300) for t in terms],
                    "Source": [plain(t.source, 300) for t in terms],
                }
            ),
            hide_index=True,
            key=f"terms-{prediction.method.value}",
            height="content" if len(terms) <= 20 else 640,
            column_config={
                "Size": st.column_config.NumberColumn(f"Size, {unit.name}", format="%.2f"),
                "Bytes": st.column_config.NumberColumn("Bytes", format="localized"),
                "Formula": st.column_config.TextColumn("Formula", width="large"),
            },
        )
    if prediction.not_modelled:
        listed = ", ".join(md(name) for name in prediction.not_modelled)
        st.caption(f"Not modelled: {listed}.")


def _modules(run: RunInfo, view: data.DeviceView, version: data.Token) -> None:
    if not view.detail_steps:
        st.caption("No detail step yet.")
        return
    step = view.detail_steps[-1]
    found = data.modules(data.store_url(), run.id, view.id, step, version)
    if not found:
        st.caption("No module was recorded at the last detail step.")
        return
    ordered = modules_in_all_dtypes(found)[:MODULES_SHOWN]
    unit = unit_for(max(max(m.activations, m.parameters or 0) for m in ordered))
    most = max(m.activations for m in ordered) / unit.bytes
    st.caption(f"What each module saved for backward at step {step:,}, largest first.")
    st.dataframe(
        pd.DataFrame(
            {
                "Module": [plain(m.module, 200) or "(root)" for m in ordered],
                "Activations": [m.activations / unit.bytes for m in ordered],
                "Parameters": pd.array(
                    [None if m.parameters is None else m.parameters / unit.bytes for m in ordered],
                    dtype="Float64",
                ),
            }
        ),
        hide_index=True,
        key="modules_table",
        placeholder=UNKNOWN,
        height="content" if len(ordered) <= 20 else 640,
        column_config={
            "Module": st.column_config.TextColumn("Module", width="large"),
            "Activations": st.column_config.ProgressColumn(
                f"Activations, {unit.name}", format="%.2f", min_value=0, max_value=most or 1
            ),
            "Parameters": st.column_config.NumberColumn(f"Parameters, {unit.name}", format="%.2f"),
        },
    )


__all__ = ["details", "devices", "measured_beside_predicted", "phases"]
