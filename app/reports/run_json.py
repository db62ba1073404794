"""One run as JSON: the contract of ``docs/export.md`` and ``run.schema.json``, streamed.

The functions that make a mapping of one record serve everything that prints JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib.resources import files
from operator import attrgetter

from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    MEMORY_LINES,
    DeviceInfo,
    Event,
    MemoryUse,
    PhaseRecord,
    PredictionRecord,
    RunInfo,
    StepRecord,
)

from .instants import iso, iso_of_ns
from .privacy import shareable, shareable_tree, shorten_homes
from .progress import Progress, ignore

FORMAT = "vramscope-run"
VERSION = 1

_STEPS_A_CHUNK = 200
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_lines = attrgetter(*MEMORY_LINES)


def json_export(reader: RunReader, run_id: str, *, progress: Progress = ignore) -> Iterator[str]:
    """Export one run in pieces of text that make one JSON document.

    Memory stays constant however many steps the run has.

    Args:
        reader: An open reader of the store.
        run_id: The run's id, as :meth:`RunReader.run` gives it.
        progress: Called now and then with the number of rows (steps times devices) done.

    Yields:
        Text to be written one after the other.

    Raises:
        StorageError: The store cannot be read.
    """
    devices = reader.devices(run_id)
    head = {"format": FORMAT, "version": VERSION, "run": run_mapping(reader.run(run_id))}
    yield f"{_dumps(head)[:-1]}"
    yield f',\n"devices": {_rows(device_mapping(device) for device in devices)}'
    yield ',\n"steps": ['
    yield from _stream(_steps(reader, run_id, devices), progress)
    yield "]"
    yield f',\n"events": {_rows(event_mapping(event) for event in reader.events(run_id))}'
    predictions = _rows(prediction_mapping(record) for record in reader.predictions(run_id))
    yield f',\n"predictions": {predictions}}}\n'


def json_schema() -> str:
    """The JSON Schema of the export, as text."""
    return files(__package__).joinpath("run.schema.json").read_text(encoding="utf-8")


def _steps(
    reader: RunReader, run_id: str, devices: Iterable[DeviceInfo]
) -> Iterator[dict[str, object]]:
    for device in devices:
        assert device.id is not None, "a device that was read has its number in the store"
        for step in reader.iter_steps(run_id, device.id):
            phases = reader.phases(run_id, device.id, step.step) if step.detail else None
            yield step_mapping(step, phases)


def _stream(rows: Iterator[dict[str, object]], progress: Progress) -> Iterator[str]:
    """Rows with commas between them, some hundred to a piece: a piece a row would be slow."""
    separator = "\n"
    chunk: list[str] = []
    for done, row in enumerate(rows, start=1):
        chunk.append(f"{separator}{_dumps(row)}")
        separator = ",\n"
        if len(chunk) >= _STEPS_A_CHUNK:
            progress(done)
            yield "".join(chunk)
            chunk.clear()
    yield "".join(chunk)


def _rows(rows: Iterable[dict[str, object]]) -> str:
    return "[" + ",".join(f"\n{_dumps(row)}" for row in rows) + "]"


def run_mapping(run: RunInfo) -> dict[str, object]:
    """A run as the contract has it, home folders in its texts shortened."""
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status.value,
        "started_at": iso(run.started_at),
        "ended_at": None if run.ended_at is None else iso(run.ended_at),
        "settings": shareable(run.settings),
        "environment": shareable(run.environment),
        "status_message": None if run.status_message is None else shorten_homes(run.status_message),
        "world_size": run.world_size,
        "lost_records": run.lost_records,
    }


def device_mapping(device: DeviceInfo) -> dict[str, object]:
    """A device as the contract has it."""
    return {
        "id": device.id,
        "rank": device.rank,
        "host": device.host,
        "kind": device.kind,
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "total_bytes": device.total_bytes,
        "driver_total_bytes": device.driver_total_bytes,
        "unified": device.unified,
    }


def step_mapping(
    step: StepRecord, phases: Iterable[PhaseRecord] | None = None
) -> dict[str, object]:
    """A step as the contract has it; ``phases`` are those of a detail step, where at hand."""
    return {
        "step": step.step,
        "device": step.device,
        "duration_s": step.duration_s,
        "micro_steps": step.micro_steps,
        "started_at": iso_of_ns(step.started_ns),
        "skipped": step.skipped,
        "detail": step.detail,
        "complete": step.complete,
        "carried": step.carried,
        "peak_module": step.peak_module,
        "end": {**memory_mapping(step.end), "master_weights": step.master_weights},
        "peak": {
            "phase": step.peak_phase,
            **memory_mapping(step.peak),
            "device_used": step.device_used,
            "process_used": step.process_used,
            "outside_allocator": step.outside_allocator,
            "other_processes": step.other_processes,
            "driver_reserved": step.driver_reserved,
            "requested": step.requested,
            "host_pinned": step.host_pinned,
            "paged": step.paged,
        },
        "phases": None if phases is None else [_phase_mapping(phase) for phase in phases],
    }


def _phase_mapping(record: PhaseRecord) -> dict[str, object]:
    return {
        "phase": record.phase.value,
        "duration_s": record.duration_s,
        "peak": memory_mapping(record.peak),
    }


def event_mapping(event: Event) -> dict[str, object]:
    """An event as the contract has it."""
    return {
        "kind": event.kind.value,
        "at": iso_of_ns(event.at_ns),
        "message": shorten_homes(event.message),
        "device": event.device,
        "step": event.step,
        "phase": event.phase,
        "bytes": event.bytes,
    }


def prediction_mapping(record: PredictionRecord) -> dict[str, object]:
    """A prediction as the contract has it."""
    return {
        "device": record.device,
        "method": record.method.value,
        "peak": {
            "phase": record.peak_phase,
            **memory_mapping(record.peak),
            "device_used": record.device_used,
        },
        "peak_low": record.peak_low,
        "peak_high": record.peak_high,
        "phases": {phase.value: memory_mapping(use) for phase, use in record.phases.items()},
        "terms": [
            {
                "name": term.name,
                "class": term.memory_class,
                "bytes": term.bytes,
                "formula": term.formula,
                "source": term.source,
            }
            for term in record.terms
        ],
        "not_modelled": list(record.not_modelled),
        "scenario": shareable_tree(record.scenario),
    }


def memory_mapping(use: MemoryUse) -> dict[str, int | None]:
    """The books of one instant by the names of their lines."""
    return dict(zip(MEMORY_LINES, _lines(use), strict=True))
