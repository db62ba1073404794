"""Records to rows and back: the one place that knows the order of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import RowMapping

from .engine import clean_text
from .records import (
    MEMORY_LINES,
    DeviceInfo,
    Event,
    EventKind,
    MemoryClass,
    MemoryUse,
    Phase,
    PredictionMethod,
    PredictionRecord,
    PredictionTerm,
    RunInfo,
    RunStatus,
    StepRecord,
)

Row = tuple[Any, ...]

_STEP_START = (
    "step",
    "started_ns",
    "duration_s",
    "micro_steps",
    "skipped",
    "detail",
    "complete",
    "carried",
)
_STEP_PLACE = ("peak_phase", "peak_module")
_STEP_EXTRA = (
    "master_weights",
    "requested",
    "device_used",
    "process_used",
    "outside_allocator",
    "other_processes",
    "driver_reserved",
    "host_pinned",
    "paged",
)
END_COLUMNS = tuple(f"end_{line}" for line in MEMORY_LINES)
PEAK_COLUMNS = tuple(f"peak_{line}" for line in MEMORY_LINES)

STEP_COLUMNS: tuple[str, ...] = (
    *_STEP_START,
    *_STEP_PLACE,
    *_STEP_EXTRA,
    *END_COLUMNS,
    *PEAK_COLUMNS,
)
"""Columns of a step and of a rollup row, after their keys."""

STEP = STEP_COLUMNS.index("step")
PEAK_ALLOCATED = STEP_COLUMNS.index("peak_allocated")

_MODULE_LENGTH = 512

_start = attrgetter(*_STEP_START)
_extra = attrgetter(*_STEP_EXTRA)
memory_row = attrgetter(*MEMORY_LINES)
"""The values of :data:`MEMORY_LINES` of one :class:`MemoryUse`."""


def step_row(record: StepRecord) -> Row:
    """The values of :data:`STEP_COLUMNS`."""
    phase, module = record.peak_phase, record.peak_module
    return (
        *_start(record),
        None if phase is None else phase.value,
        None if module is None else module_text(module),
        *_extra(record),
        *memory_row(record.end),
        *memory_row(record.peak),
    )


def step_record(device_id: int, row: Sequence[Any]) -> StepRecord:
    """A step from the values of :data:`STEP_COLUMNS`."""
    place_at = len(_STEP_START)
    extra_at = place_at + len(_STEP_PLACE)
    end_at = extra_at + len(_STEP_EXTRA)
    peak_at = end_at + len(MEMORY_LINES)
    phase, module = row[place_at:extra_at]
    return StepRecord(
        device=device_id,
        **dict(zip(_STEP_START, row, strict=False)),
        peak_phase=None if phase is None else Phase(phase),
        peak_module=module,
        **dict(zip(_STEP_EXTRA, row[extra_at:end_at], strict=True)),
        end=memory_use(row[end_at:peak_at]),
        peak=memory_use(row[peak_at:]),
    )


def module_text(path: str) -> str:
    """A module's path as it is stored; one longer than its column keeps its end."""
    path = clean_text(path)
    return path if len(path) <= _MODULE_LENGTH else "…" + path[1 - _MODULE_LENGTH :]


def memory_use(values: Sequence[Any]) -> MemoryUse:
    """The books from the values of :data:`MEMORY_LINES`."""
    return MemoryUse(**dict(zip(MEMORY_LINES, values, strict=True)))


def memory_values(use: MemoryUse, columns: Sequence[str] = PEAK_COLUMNS) -> dict[str, int | None]:
    """The books by column name."""
    return dict(zip(columns, memory_row(use), strict=True))


def event_values(run_id: str, device_id: int | None, event: Event) -> dict[str, Any]:
    """An event by column name."""
    return {
        "run_id": run_id,
        "device_id": device_id,
        "kind": event.kind.value,
        "at_ns": event.at_ns,
        "message": clean_text(event.message),
        "step": event.step,
        "phase": None if event.phase is None else event.phase.value,
        "bytes": event.bytes,
    }


def event_record(row: RowMapping) -> Event:
    """An event from a row."""
    return Event(
        kind=EventKind(row["kind"]),
        at_ns=row["at_ns"],
        message=row["message"],
        device=row["device_id"],
        step=row["step"],
        phase=None if row["phase"] is None else Phase(row["phase"]),
        bytes=row["bytes"],
    )


def device_values(device: DeviceInfo) -> dict[str, Any]:
    """A device by column name, without its number and its run."""
    return {
        "rank": device.rank,
        "host": clean_text(device.host),
        "kind": device.kind,
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "total_bytes": device.total_bytes,
        "driver_total_bytes": device.driver_total_bytes,
        "unified": device.unified,
    }


def device_info(row: RowMapping) -> DeviceInfo:
    """A device from a row."""
    return DeviceInfo(
        id=row["id"],
        rank=row["rank"],
        host=row["host"],
        kind=row["kind"],
        index=row["index"],
        uuid=row["uuid"],
        name=row["name"],
        total_bytes=row["total_bytes"],
        driver_total_bytes=row["driver_total_bytes"],
        unified=row["unified"],
    )


def run_values(run: RunInfo) -> dict[str, Any]:
    """A run by column name."""
    message = run.status_message
    return {
        "id": clean_text(run.id),
        "name": clean_text(run.name),
        "status": run.status.value,
        "status_message": None if message is None else clean_text(message),
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "heartbeat_at": run.heartbeat_at,
        "world_size": run.world_size,
        "settings": dict(run.settings),
        "environment": dict(run.environment),
        "lost_records": run.lost_records,
    }


def run_info(row: RowMapping) -> RunInfo:
    """A run from a row, with the status as stored."""
    return RunInfo(
        id=row["id"],
        name=row["name"],
        status=RunStatus(row["status"]),
        status_message=row["status_message"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        heartbeat_at=row["heartbeat_at"],
        world_size=row["world_size"],
        settings=row["settings"],
        environment=row["environment"],
        lost_records=row["lost_records"],
    )


def prediction_values(device_id: int, record: PredictionRecord) -> dict[str, Any]:
    """A prediction by column name, without its phases and terms."""
    return {
        "device_id": device_id,
        "method": record.method.value,
        **memory_values(record.peak),
        "peak_phase": None if record.peak_phase is None else record.peak_phase.value,
        "peak_low": record.peak_low,
        "peak_high": record.peak_high,
        "device_used": record.device_used,
        "not_modelled": list(record.not_modelled),
        "scenario": dict(record.scenario),
    }


def prediction_phase_values(prediction_id: int, record: PredictionRecord) -> list[dict[str, Any]]:
    """A prediction's phases by column name."""
    return [
        {"prediction_id": prediction_id, "phase": phase.value, **memory_values(use)}
        for phase, use in record.phases.items()
    ]


def prediction_term_values(prediction_id: int, record: PredictionRecord) -> list[dict[str, Any]]:
    """A prediction's terms by column name, in their order."""
    return [
        {
            "prediction_id": prediction_id,
            "position": position,
            "name": clean_text(term.name),
            "memory_class": None if term.memory_class is None else term.memory_class.value,
            "bytes": term.bytes,
            "formula": clean_text(term.formula),
            "source": clean_text(term.source),
        }
        for position, term in enumerate(record.terms)
    ]


def prediction_record(
    row: RowMapping,
    phases: Sequence[RowMapping],
    terms: Sequence[RowMapping],
) -> PredictionRecord:
    """A prediction from its row, its phases' rows and its terms' rows in order."""
    phase = row["peak_phase"]
    return PredictionRecord(
        device=row["device_id"],
        method=PredictionMethod(row["method"]),
        peak=_peak_of(row),
        peak_phase=None if phase is None else Phase(phase),
        peak_low=row["peak_low"],
        peak_high=row["peak_high"],
        device_used=row["device_used"],
        phases={Phase(item["phase"]): _peak_of(item) for item in phases},
        terms=tuple(_term(item) for item in terms),
        not_modelled=tuple(row["not_modelled"]),
        scenario=row["scenario"],
    )


def _term(row: RowMapping) -> PredictionTerm:
    memory_class = row["memory_class"]
    return PredictionTerm(
        name=row["name"],
        memory_class=None if memory_class is None else MemoryClass(memory_class),
        bytes=row["bytes"],
        formula=row["formula"],
        source=row["source"],
    )


def _peak_of(row: RowMapping) -> MemoryUse:
    return memory_use([row[column] for column in PEAK_COLUMNS])
