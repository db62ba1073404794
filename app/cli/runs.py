"""``vramscope runs``: the runs of a store."""

from __future__ import annotations

from typing import Annotated

import typer
from vramscope.storage.engine import normalise_url, redacted
from vramscope.storage.reader import RunPage, RunReader, RunSummary
from vramscope.storage.records import RunStatus

from ..format import STATUS_LABELS, count, percent, relative_error
from ..reports.instants import iso
from . import options, terminal
from .tables import Scale, add, say, table

EXAMPLES = ("vramscope runs", "vramscope runs --search llama --status out_of_memory --json")

_COLUMNS = ("Run", "Name", "Status", "Started (UTC)", "Devices", "Steps")
_SIZES = ("Peak", "Reserved", "Capacity", "Used", "Predicted", "Error")


def runs(
    search: Annotated[
        str | None, typer.Option("--search", metavar="TEXT", help="Only names that hold this text.")
    ] = None,
    status: Annotated[
        RunStatus | None, typer.Option("--status", help="Only runs with this status.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The most runs to list.")] = 20,
    db: options.Db = None,
    as_json: options.Json = False,
) -> None:
    """List the runs of a store, newest first."""
    url = normalise_url(db)
    with RunReader(url) as reader:
        page = reader.runs(search=search, status=status, limit=limit)
    if as_json:
        terminal.print_json(_as_json(url, page))
        return
    console = terminal.out()
    if not page.rows:
        say(console, *_nothing(url, filtered=search is not None or status is not None))
        return
    sizes = [size for row in page.rows for size in (row.peak_reserved, row.capacity)]
    scale = Scale.of([*sizes, *(row.peak_allocated for row in page.rows)])
    made = table(
        "", (*_COLUMNS, *_SIZES), texts=4, caption=f"{scale.caption}, of each run's fullest device"
    )
    for row in page.rows:
        add(made, *_cells(row, scale))
    console.print(made)
    if page.total > len(page.rows):
        say(console, f"{len(page.rows)} of {page.total:,} runs; --limit shows more.")


def _cells(row: RunSummary, scale: Scale) -> tuple[str, ...]:
    info = row.info
    used = (
        row.peak_reserved / row.capacity if row.peak_reserved is not None and row.capacity else None
    )
    return (
        info.id,
        info.name,
        STATUS_LABELS[info.status],
        f"{iso(info.started_at)[:16].replace('T', ' ')}",
        str(row.devices),
        count(row.steps),
        scale.number(row.peak_allocated),
        scale.number(row.peak_reserved),
        scale.number(row.capacity),
        percent(used),
        scale.number(row.predicted_peak),
        percent(relative_error(row.predicted_peak, row.peak_allocated), signed=True),
    )


def _nothing(url: str, *, filtered: bool) -> tuple[str, ...]:
    if filtered:
        return ("No run fits. Without --search and --status all are listed.",)
    return (
        f"No runs in {redacted(url)} yet. Record one with",
        "  vramscope run train.py",
        "or, to see how it looks, with",
        "  vramscope demo",
    )


def _as_json(url: str, page: RunPage) -> dict[str, object]:
    return {
        "store": redacted(url),
        "total": page.total,
        "runs": [
            {
                "id": row.info.id,
                "name": row.info.name,
                "status": row.info.status.value,
                "status_message": row.info.status_message,
                "started_at": iso(row.info.started_at),
                "ended_at": None if row.info.ended_at is None else iso(row.info.ended_at),
                "devices": row.devices,
                "last_step": row.steps,
                "peak_allocated_bytes": row.peak_allocated,
                "peak_reserved_bytes": row.peak_reserved,
                "capacity_bytes": row.capacity,
                "predicted_peak_bytes": row.predicted_peak,
            }
            for row in page.rows
        ],
    }
