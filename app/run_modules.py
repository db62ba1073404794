"""The tab of the Run page with what every module keeps for backward."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st
from vramscope.storage.records import ModuleRecord

from . import data, state
from .chart_component import chart
from .charts import modules_icicle
from .format import CLASS_COLOURS, UNKNOWN, plain, unit_for
from .overview import modules_in_all_dtypes

MODULES_SHOWN = 500


def modules_at(view: data.DeviceView, inside: data.StepInside) -> None:
    """An icicle and a table of what the modules held at one detail step."""
    if not inside.modules:
        st.caption(f"No module was recorded at step {inside.step:,}.")
        return
    st.caption(
        f"What each module kept for backward at step {inside.step:,}. "
        "Click a module to look into it, and its left edge to come back."
    )
    chart(
        modules_icicle(inside.modules, dark=state.dark()),
        key=f"modules-{view.id}",
        label=f"Bytes kept for backward by module at step {inside.step}",
    )
    _table(inside.modules)


def _table(modules: Sequence[ModuleRecord]) -> None:
    ordered = modules_in_all_dtypes(modules)[:MODULES_SHOWN]
    dtypes: dict[str, list[str]] = {}
    for module in modules:
        dtypes.setdefault(module.module, []).append(module.dtype)
    largest = max(m.activations for m in ordered)
    unit = unit_for(largest)
    columns: dict[str, object] = {
        "Module": [plain(m.module, 200) or "(root)" for m in ordered],
        "Activations": [m.activations / unit.bytes for m in ordered],
        "Dtypes": [plain(", ".join(filter(None, dtypes[m.module]))) or UNKNOWN for m in ordered],
    }
    st.dataframe(
        pd.DataFrame(columns),
        hide_index=True,
        key="modules_table",
        placeholder=UNKNOWN,
        height="content" if len(ordered) <= 12 else 460,
        column_config={
            "Activations": st.column_config.ProgressColumn(
                f"Activations, {unit.name}",
                format="%.2f",
                min_value=0,
                max_value=largest / unit.bytes or 1,
                color=CLASS_COLOURS["activations"],
            ),
        },
    )


__all__ = ["modules_at"]
