"""What the pages read: one reader a store, caches with a bound, and caps on rows.

Nothing here loads a whole run: charts get at most ``CHART_ROWS`` rows from the rollup level that
fits, and the store is asked again only when its change token moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import streamlit as st
from vramscope.profiler.analytic import Scenario
from vramscope.profiler.analytic.gpus import GPUS
from vramscope.storage.engine import default_url, redacted
from vramscope.storage.reader import RunReader, RunSummary, StepTable
from vramscope.storage.records import (
    DeviceInfo,
    Event,
    MemoryUse,
    ModuleRecord,
    PeakGroup,
    Phase,
    PhaseRecord,
    PredictionMethod,
    PredictionRecord,
    RunInfo,
    RunStatus,
    StepRecord,
    TimelinePoint,
)

from .plans import Plan, plan_of

CHART_ROWS = 1000
"""Rows a chart gets at most; a wider range comes from a coarser rollup level."""

REFRESH_S = 2
"""Seconds between two refreshes of a page of a running run."""

HEAT_MAP_ROWS = 480
HEAT_MAP_DEVICES = 64
RUNS_PER_PAGE = 25
RUN_CHOICES = 200
EVENTS_SHOWN = 200

Token: TypeAlias = str


def store_url() -> str:
    """The store that this server shows: ``VRAMSCOPE_DB``, else a file in the working folder."""
    return default_url()


def store_label() -> str:
    """The store for people to read, without a password."""
    return redacted(store_url())


@st.cache_resource(show_spinner=False, max_entries=4)
def _reader(url: str) -> RunReader:
    return RunReader(url)


def reader() -> RunReader:
    """The store's reader, opened once for all sessions.

    Raises:
        StorageError: There is no store yet, or it cannot be read.
    """
    return _reader(store_url())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """Everything about one device of one run that a page shows."""

    device: DeviceInfo
    last: StepRecord | None
    peak: StepRecord | None
    detail_steps: tuple[int, ...]
    analytic: PredictionRecord | None
    predictions: tuple[PredictionRecord, ...]

    @property
    def id(self) -> int:
        """Number of the device in the store."""
        assert self.device.id is not None, "a device that was read has an id"
        return self.device.id

    @property
    def predicted_end(self) -> MemoryUse | None:
        """The predicted books at the end of a step, when the predictor said them."""
        return None if self.analytic is None else self.analytic.phases.get(Phase.IDLE)


def token(run: RunInfo) -> Token:
    """Changes when the run has something new; part of every cache key."""
    return repr((run.status.value, reader().change_token(run.id)))


def is_live(run: RunInfo) -> bool:
    """Whether a page of this run should refresh itself."""
    return run.status is RunStatus.RUNNING


def device_view(run: RunInfo, device: DeviceInfo, version: Token) -> DeviceView:
    """One device's figures for the cards and tables."""
    assert device.id is not None, "a device that was read has an id"
    return _device_view(store_url(), run.id, device.id, device, version)


@st.cache_data(show_spinner=False, max_entries=64)
def _device_view(
    url: str, run_id: str, device_id: int, _device: DeviceInfo, version: Token
) -> DeviceView:
    source = _reader(url)
    predictions = tuple(p for p in source.predictions(run_id) if p.device == device_id)
    return DeviceView(
        device=_device,
        last=source.last_step(run_id, device_id),
        peak=source.peak_step(run_id, device_id),
        detail_steps=source.detail_steps(run_id, device_id),
        analytic=next((p for p in predictions if p.method is PredictionMethod.ANALYTIC), None),
        predictions=predictions,
    )


@st.cache_data(show_spinner=False, max_entries=64)
def step_table(
    url: str,
    run_id: str,
    device_id: int,
    first: int | None,
    last: int | None,
    max_rows: int,
    version: Token,
) -> StepTable:
    """Steps for a chart, from the level that fits ``max_rows``."""
    return _reader(url).steps(run_id, device_id, first=first, last=last, max_rows=max_rows)


def chart_steps(
    run: RunInfo, device_id: int, version: Token, view: tuple[int, int] | None = None
) -> StepTable:
    """Steps for the main chart: all of them, or those in view and half a view to either side."""
    first = last = None
    if view is not None:
        margin = max(1, (view[1] - view[0]) // 2)
        first, last = max(0, view[0] - margin), view[1] + margin
    return step_table(store_url(), run.id, device_id, first, last, CHART_ROWS, version)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInside:
    """All that is known about one detail step of one device."""

    step: int
    record: StepRecord | None
    timeline: tuple[TimelinePoint, ...]
    peak_groups: tuple[PeakGroup, ...]
    phases: tuple[PhaseRecord, ...]
    modules: tuple[ModuleRecord, ...]
    """A row for each module and dtype."""


@st.cache_data(show_spinner=False, max_entries=16)
def step_inside(url: str, run_id: str, device_id: int, step: int, version: Token) -> StepInside:
    """One detail step from inside."""
    source = _reader(url)
    return StepInside(
        step=step,
        record=source.step(run_id, device_id, step),
        timeline=source.timeline(run_id, device_id, step),
        peak_groups=source.peak_groups(run_id, device_id, step),
        phases=source.phases(run_id, device_id, step),
        modules=source.modules(run_id, device_id, step),
    )


@st.cache_data(show_spinner=False, max_entries=16)
def events(url: str, run_id: str, version: Token) -> tuple[Event, ...]:
    """The run's events."""
    return _reader(url).events(run_id)


def fullest(run: RunInfo, devices: tuple[DeviceInfo, ...], version: Token) -> DeviceView | None:
    """The device whose peak is highest, which decides whether a run fits."""
    views = [device_view(run, d, version) for d in devices]
    known = [v for v in views if v.peak is not None and v.peak.peak.allocated is not None]
    if not known:
        return views[0] if views else None
    return max(known, key=lambda v: (v.peak and v.peak.peak.allocated) or 0)


@st.cache_resource(show_spinner=False, max_entries=64)
def planned(key: str, gpu: str, _scenario: Scenario) -> Plan:
    """The plan of a scenario for a GPU of the list.

    Args:
        key: Stands for the scenario.
        gpu: Name of the GPU.
        _scenario: What is planned.
    """
    return plan_of(_scenario, next(each for each in GPUS if each.name == gpu))


def run_choices(search: str | None = None) -> tuple[RunSummary, ...]:
    """The newest runs, for pickers."""
    return reader().runs(search=search, limit=RUN_CHOICES).rows
