"""One run as CSV: one row a step and device, sizes in bytes, unknown as an empty cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

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
    "carried",
    *(f"end_{line}_bytes" for line in MEMORY_LINES),
    "end_master_weights_bytes",
    "peak_phase",
    *(f"peak_{line}_bytes" for line in MEMORY_LINES),
    "peak_device_used_bytes",
    "peak_process_used_bytes",
    "peak_requested_bytes",
    "peak_host_pinned_bytes",
    "peak_paged_bytes",
)
"""The header row."""

Cell = str | int | float | None


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
        for step in reader.iter_steps(run_id, device.id):
            writer.writerow(_cell(value) for value in _row(device, step))
            rows += 1
            if rows % _ROWS_A_CHUNK == 0:
                progress(rows)
                yield _take(text)
    yield _take(text)


def _row(device: DeviceInfo, step: StepRecord) -> Iterator[Cell]:
    yield step.step
    yield step.device
    yield device.rank
    yield device.host
    yield device.kind
    yield device.index
    yield device.name
    yield iso_of_ns(step.started_ns)
    yield step.duration_s
    yield step.micro_steps
    yield step.skipped
    yield step.detail
    yield step.carried
    yield from (value for _, value in step.end.items())
    yield step.master_weights
    yield step.peak_phase
    yield from (value for _, value in step.peak.items())
    yield step.device_used
    yield step.process_used
    yield step.requested
    yield step.host_pinned
    yield step.paged


def _cell(value: Cell) -> Cell:
    if isinstance(value, bool):
        return "true" if value else "false"
    return neutralise(str(value)) if isinstance(value, str) else value


def _take(text: io.StringIO) -> str:
    piece = text.getvalue()
    text.seek(0)
    text.truncate()
    return piece
