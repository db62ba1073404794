"""One run as CSV: one row a step and device, sizes in bytes, unknown as an empty cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from operator import attrgetter

from vramscope.storage.reader import RunReader
from vramscope.storage.records import MEMORY_LINES, DeviceInfo, StepRecord

from .instants import iso_of_ns
from .privacy import neutralise
from .progress import Progress, ignore

_ROWS_A_CHUNK = 500

COLUMNS: tuple[str, ...] = (
    "step",
    "device",
    "rank",
    "host",
    "kind",
    "index",
    "device_name",
    "started_at",
    "duration_s",
    "micro_steps",
    "skipped",
    "detail",
    "complete",
    "carried",
    *(f"end_{line}_bytes" for line in MEMORY_LINES),
    "end_master_weights_bytes",
    "peak_phase",
    "peak_module",
    *(f"peak_{line}_bytes" for line in MEMORY_LINES),
    "peak_device_used_bytes",
    "peak_process_used_bytes",
    "peak_outside_allocator_bytes",
    "peak_other_processes_bytes",
    "peak_driver_reserved_bytes",
    "peak_requested_bytes",
    "peak_host_pinned_bytes",
    "peak_paged_bytes",
)
"""The header row."""

Cell = str | int | float | None

_lines = attrgetter(*MEMORY_LINES)


def csv_export(reader: RunReader, run_id: str, *, progress: Progress = ignore) -> Iterator[str]:
    """Export every step of one run in pieces of CSV text, in constant memory.

    Text cells that a spreadsheet would take for a formula get a quote before them; numbers are
    never touched.

    Args:
        reader: An open reader of the store.
        run_id: The run's id, as :meth:`RunReader.run` gives it.
        progress: Called now and then with the number of rows done.

    Yields:
        Text to be written one after the other, the header row first.

    Raises:
        StorageError: The store cannot be read.
    """
    text = io.StringIO()
    # CR LF, as RFC 4180 has it; with LF alone a CR inside a cell would not be quoted.
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    rows = 0
    for device in reader.devices(run_id):
        assert device.id is not None, "a device that was read has its number in the store"
        about = _device_cells(device)
        for step in reader.iter_steps(run_id, device.id):
            writer.writerow(_row(about, step))
            rows += 1
            if rows % _ROWS_A_CHUNK == 0:
                progress(rows)
                yield _take(text)
    yield _take(text)


def _device_cells(device: DeviceInfo) -> tuple[Cell, ...]:
    name = device.name and neutralise(device.name)
    return (device.rank, neutralise(device.host), neutralise(device.kind), device.index, name)


def _row(about: tuple[Cell, ...], step: StepRecord) -> tuple[Cell, ...]:
    """One row; the only text from a run in it is that about the device, and the module's."""
    return (
        step.step,
        step.device,
        *about,
        iso_of_ns(step.started_ns),
        step.duration_s,
        step.micro_steps,
        _yes_or_no(step.skipped),
        _yes_or_no(step.detail),
        _yes_or_no(step.complete),
        _yes_or_no(step.carried),
        *_lines(step.end),
        step.master_weights,
        step.peak_phase,
        _module(step.peak_module),
        *_lines(step.peak),
        step.device_used,
        step.process_used,
        step.outside_allocator,
        step.other_processes,
        step.driver_reserved,
        step.requested,
        step.host_pinned,
        step.paged,
    )


def _module(path: str | None) -> str | None:
    """The root's path is empty, and an empty cell would say that it is unknown."""
    return "(root)" if path == "" else path and neutralise(path)


def _yes_or_no(value: bool) -> str:
    return "true" if value else "false"


def _take(text: io.StringIO) -> str:
    piece = text.getvalue()
    text.seek(0)
    text.truncate()
    return piece
