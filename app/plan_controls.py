"""The controls of the Plan page; each changes one setting of the scenario, or says why not."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from vramscope.profiler.analytic import Scenario

from . import plan_state
from .format import md, plain
from .plan_files import LARGEST_FILE, PASTED, read_files
from .plan_presets import PRESETS
from .plan_settings import CHOICES, Choice, Number, model_name, with_preset
from .plan_state import Name

_WIDTH = 176
"""Pixels; two of them stand beside each other on a telephone."""
_GAP = 16
_ENDINGS = ["json", "yaml", "yml"]
_FILES_USED = "plan_files_used"


def controls(name: Name, scenario: Scenario) -> None:
    """All controls of one scenario in rows that wrap."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        _model(name, scenario)
        for control in CHOICES:
            if isinstance(control, Number):
                _number(name, scenario, control)
            else:
                _choice(name, scenario, control)


def _model(name: Name, scenario: Scenario) -> None:
    present = model_name(scenario)
    words = list(PRESETS) if present in PRESETS else [present, *PRESETS]
    key = f"plan_{name}_model"
    st.session_state[key] = present

    def change() -> None:
        word = st.session_state[key]
        if word in PRESETS:
            _try(name, lambda: with_preset(scenario, word))

    st.selectbox(
        "Model", words, key=key, on_change=change, width=2 * _WIDTH + _GAP, format_func=plain
    )


def _choice(name: Name, scenario: Scenario, control: Choice) -> None:
    present = control.read(scenario)
    words = control.words(scenario)
    if present not in words:
        words = (present, *words)
    key = f"plan_{name}_{control.name}"
    st.session_state[key] = present

    def change() -> None:
        word = st.session_state[key]
        if word in control.words(scenario):
            _try(name, lambda: control.write(scenario, word))

    st.selectbox(
        control.label,
        words,
        key=key,
        on_change=change,
        help=control.help,
        format_func=plain,
        width=_WIDTH,
        disabled=len(words) == 1,
    )


def _number(name: Name, scenario: Scenario, control: Number) -> None:
    present = control.read(scenario)
    if present is None:
        return
    key = f"plan_{name}_{control.name}"
    st.session_state[key] = present

    def change() -> None:
        value = int(st.session_state[key])
        _try(name, lambda: control.write(scenario, value))

    st.number_input(
        control.label,
        min_value=1,
        max_value=max(control.most, present),
        step=1,
        key=key,
        on_change=change,
        help=control.help,
        width=_WIDTH,
    )


def _try(name: Name, make: Callable[[], Scenario]) -> None:
    try:
        plan_state.put(name, make())
    except ValueError as error:
        plan_state.complain(f"That cannot be: {error}. Nothing was changed.")


def files(name: Name, scenario: Scenario) -> None:
    """Files and pasted text in place of the controls; what is wrong stands beside them."""
    key = f"plan_files_{st.session_state.setdefault(_FILES_USED, 0)}"

    def use() -> None:
        contents = {file.name: file.getvalue() for file in given}
        if pasted.strip():
            contents[PASTED] = pasted.encode()
        try:
            plan_state.put(name, read_files(contents, scenario))
        except ValueError as error:
            st.session_state[f"{key}_wrong"] = str(error)
            return
        st.session_state[_FILES_USED] += 1

    with st.popover("Open a file", width=150, key=key):
        given = st.file_uploader(
            "A model’s config.json or a scenario, and beside it DeepSpeed and accelerate files",
            type=_ENDINGS,
            accept_multiple_files=True,
            max_upload_size=LARGEST_FILE // 2**20,
            key=f"{key}_uploaded",
        )
        pasted = st.text_area("Or paste one", key=f"{key}_pasted", height=140)
        st.button("Use", key=f"{key}_use", type="primary", on_click=use)
        wrong = st.session_state.pop(f"{key}_wrong", None)
        if wrong is not None:
            st.error(md(f"{wrong}. Nothing was changed.", 1000))
