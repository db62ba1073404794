"""Sections of the Run page under its main chart."""

from __future__ import annotations

import pandas as pd
import streamlit as st
from vramscope.storage.records import DeviceInfo, PredictionRecord, RunInfo

from . import blocks, data, state
from .chart_component import chart
from .charts import device_bars, devices_heat_map
from .charts import measured_beside_predicted as bars
from .device_blocks import device_table
from .device_use import device_uses, why_unknown
from .format import CLASS_LABELS, PHASE_LABELS, md, plain, size, unit_for
from .overview import predicted_beside
from .run_modules import modules_at

TERMS_SHOWN = 200


def measured_beside_predicted(view: data.DeviceView) -> None:
    """The books at the measured peak beside the predicted ones, and the residual by class."""
    st.subheader("Measured beside predicted, at the peak", anchor=False)
    if view.peak is None:
        st.caption("No step has ended yet.")
        return
    predicted = None if view.analytic is None else predicted_beside(view.analytic, view.peak)
    figure = bars(
        view.peak.peak, predicted, state.dark(), capacity=view.device.total_bytes, legend=False
    )
    left, right = st.columns(2, gap="medium")
    with left:
        chart(
            figure,
            key=f"beside-{view.id}",
            label="Measured and predicted memory by class at the peak",
        )
        if predicted is None:
            st.caption(
                "No predictor knows this run's model yet, so there is nothing to compare with."
            )
        else:
            st.caption("Residual is measured minus predicted. Hover a size for its bytes.")
    with right:
        st.html(blocks.residual_table(view.peak.peak, predicted))


def on_the_device(view: data.DeviceView) -> None:
    """Whose the memory of a GPU is, as allocator and driver say together."""
    why = why_unknown(view.device)
    if why is None:
        return
    st.subheader("On the device", anchor=False)
    uses = device_uses(view.device, view.peak, view.last)
    if not uses:
        st.caption(why)
        return
    left, right = st.columns(2, gap="medium")
    with left:
        chart(
            device_bars(uses, state.dark()),
            key=f"device-{view.id}",
            label="What is in use on the device, by whom, and what is free",
        )
        st.caption(
            "The driver is asked when a step ends; what is not this process’s tensors is taken to "
            "be the same at the peak."
        )
    with right:
        st.html(device_table(uses))


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


def details(
    run: RunInfo, view: data.DeviceView, version: data.Token, step: int | None = None
) -> None:
    """Tabs: modules, prediction, settings, events, and what the classes mean.

    Args:
        run: The run.
        view: Its device in focus.
        version: Of what is stored of the run.
        step: The detail step that the page looks into.
    """
    happened = data.events(data.store_url(), run.id, version)
    names = ["Modules", "Prediction", "Settings", f"Events ({len(happened):,})", "Classes"]
    modules, prediction, settings, events, classes = st.tabs(names)
    with modules:
        if step is None:
            st.caption("No detail step yet.")
        else:
            inside = data.step_inside(data.store_url(), run.id, view.id, step, version)
            modules_at(view, inside)
    with prediction:
        _predictions(view)
    with settings:
        _settings(run)
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
        prediction_terms(prediction)


def prediction_terms(prediction: PredictionRecord) -> None:
    """A prediction's peak, its terms with their formulas, and what it leaves out."""
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
        listed = ", ".join(md(name, 400) for name in prediction.not_modelled)
        st.caption(f"Not modelled: {listed}.")


__all__ = ["details", "devices", "measured_beside_predicted", "on_the_device", "prediction_terms"]
