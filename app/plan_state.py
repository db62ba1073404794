"""The Plan page's state: one scenario or two, in the session and in the address."""

from __future__ import annotations

from typing import Literal

import streamlit as st
from vramscope.profiler.analytic import BatchShape, Scenario
from vramscope.storage.errors import StorageError

from . import data
from .format import plain
from .plan_link import LONGEST, decode, encode
from .plan_presets import FIRST, PRESETS
from .plans import checked

Name = Literal["a", "b"]

_SCENARIOS = "plan_scenarios"
_ADDRESSES = "plan_addresses"
_PROBLEM = "plan_problem"


def first() -> Scenario:
    """What the page opens with."""
    return Scenario(
        architecture=PRESETS[FIRST],
        weight_dtype="bfloat16",
        batch=BatchShape(micro_batch=1, sequence=4096),
    )


def load() -> None:
    """Take what the address holds; what it does not hold stays as the session has it."""
    scenarios = st.session_state.setdefault(_SCENARIOS, {})
    known = st.session_state.setdefault(_ADDRESSES, {})
    _load_run()
    for name in ("a", "b"):
        asked = st.query_params.get(name)
        if not asked or asked == known.get(name):
            continue
        try:
            put(name, decode(asked))
        except ValueError as error:
            complain(f"The address holds a scenario that cannot be shown: {error}")
            known[name] = asked
    if "a" not in scenarios:
        put("a", first())
    for name in scenarios:
        _write_address(name)


def _load_run() -> None:
    """The scenario of a run that the address names becomes A."""
    asked = st.query_params.get("run")
    if not asked:
        return
    del st.query_params["run"]
    try:
        put("a", _scenario_of_run(asked))
    except (StorageError, ValueError) as error:
        complain(f"This run cannot be planned from: {error}")


def _scenario_of_run(asked: str) -> Scenario:
    run = data.reader().run(asked)
    view = data.fullest(run, data.reader().devices(run.id), data.token(run))
    if view is None or view.analytic is None or not view.analytic.scenario:
        raise ValueError("nothing was predicted for it, so that its settings are not stored")
    scenario = Scenario.from_mapping(view.analytic.scenario)
    return scenario if scenario.device == "cuda" else scenario.replace(device="cuda")


def scenario_of(name: Name) -> Scenario | None:
    """A or B; ``None`` where there is no B."""
    found: Scenario | None = st.session_state[_SCENARIOS].get(name)
    return found


def put(name: Name, scenario: Scenario) -> None:
    """Make it the scenario that is shown.

    Raises:
        ValueError: It cannot be planned; what was shown stays.
    """
    checked(scenario)
    st.session_state[_SCENARIOS][name] = scenario
    _write_address(name)


def _write_address(name: Name) -> None:
    text = encode(st.session_state[_SCENARIOS][name])
    if len(text) > LONGEST:
        st.session_state[_ADDRESSES].pop(name, None)
        st.query_params.pop(name, None)
        return
    st.session_state[_ADDRESSES][name] = text
    if st.query_params.get(name) != text:
        st.query_params[name] = text


def in_address(name: Name) -> bool:
    """Whether the address holds this scenario; one with very many tensors is too long for it."""
    return name in st.session_state[_ADDRESSES]


def remove_b() -> None:
    """Show one scenario only."""
    st.session_state[_SCENARIOS].pop("b", None)
    st.session_state[_ADDRESSES].pop("b", None)
    st.query_params.pop("b", None)


def complain(message: str) -> None:
    """Say at the top of the page what went wrong, once."""
    st.session_state[_PROBLEM] = plain(message, 1000)


def problem() -> str | None:
    """What went wrong since the page was last drawn."""
    found: str | None = st.session_state.pop(_PROBLEM, None)
    return found
