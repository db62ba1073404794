"""``vramscope show``: one run, measured beside predicted, on every device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console
from vramscope.storage.reader import RunReader
from vramscope.storage.records import Event, MemoryUse, Phase, PredictionMethod, RunInfo

from ..device_blocks import device_lines
from ..device_use import device_uses
from ..format import DEVICE_LABELS, PHASE_LABELS, STATUS_LABELS, UNKNOWN, duration, setting, size
from ..overview import DeviceOverview, RunOverview, differences, overview, predicted_beside
from ..reports.instants import iso, iso_of_ns
from ..reports.run_json import (
    device_mapping,
    event_mapping,
    prediction_mapping,
    run_mapping,
    step_mapping,
)
from . import options, terminal
from .books import METHODS, add_books, largest_of
from .tables import Scale, add, say, table

EXAMPLES = (
    "vramscope show demo-adamw",
    "vramscope show 3f9a --events 50",
    "vramscope show 3f9a --json",
)


def show(
    run: options.Run,
    events: Annotated[
        int, typer.Option("--events", min=0, metavar="N", help="The most events to list.")
    ] = 10,
    db: options.Db = None,
    as_json: options.Json = False,
) -> None:
    """Show one run: measured beside predicted, settings, events.

    Each device is shown at its peak and at the end of its last step.
    """
    with RunReader(db) as reader:
        found = overview(reader, run)
    if as_json:
        terminal.print_json(overview_mapping(found))
        return
    console = terminal.out()
    _header(console, found.run)
    for device in found.devices:
        _device(console, device)
    _values(console, "Settings", found.run.settings)
    _events(console, found.events, events)


def _header(console: Console, run: RunInfo) -> None:
    status = STATUS_LABELS[run.status]
    if run.status_message:
        status = f"{status}: {run.status_message}"
    ended = UNKNOWN
    if run.ended_at is not None:
        ended = f"after {duration((run.ended_at - run.started_at).total_seconds())}"
    made = table("", ("", ""), texts=2)
    made.show_header = False
    add(made, "Run", f"{run.name}  ({run.id})", style="bold")
    add(made, "Status", status)
    add(made, "Started", f"{iso(run.started_at)[:19].replace('T', ' ')} UTC")
    add(made, "Ended", ended)
    add(made, "Ranks", str(run.world_size))
    if run.lost_records:
        add(made, "Lost", f"{run.lost_records:,} records could not be kept")
    console.print(made)


def _device(console: Console, device: DeviceOverview) -> None:
    capacity = size(device.device.total_bytes)
    say(console, "", f"{device.label} on {device.device.host}, capacity {capacity}")
    if device.peak is None or device.last is None:
        say(console, "No step has been recorded yet.")
    peak, end = _titles(device)
    records = device.predictions
    _books(
        console,
        peak,
        device.peak_use,
        {p.method: predicted_beside(p, device.peak) for p in records},
    )
    if device.last is not None:
        ends = {p.method: p.phases[Phase.IDLE] for p in records if Phase.IDLE in p.phases}
        _books(console, end, device.end_use, ends)
    _on_the_device(console, device)


def _on_the_device(console: Console, device: DeviceOverview) -> None:
    """Whose the memory of a GPU is; nothing where the driver did not say."""
    uses = device_uses(device.device, device.peak, device.last)
    if not uses:
        return
    columns = [*uses.values()]
    names = device_lines(uses)
    scale = Scale.of([getattr(use, name) for use in columns for name in names])
    made = table("On the device", ["", *uses], caption=scale.caption)
    for name in names:
        cells = [scale.number(getattr(use, name)) for use in columns]
        add(made, DEVICE_LABELS[name], *cells, style="bold" if name == "total" else None)
    console.print(made)


def _titles(device: DeviceOverview) -> tuple[str, str]:
    if device.peak is None or device.last is None:
        return "At the peak", ""
    phase = f", in {PHASE_LABELS[device.peak.peak_phase]}" if device.peak.peak_phase else ""
    carried = ", partly carried over from the last detail step" if device.peak.carried else ""
    peak = f"At the peak, step {device.peak.step:,}{phase}{carried}"
    return peak, f"At the end of the last step, {device.last.step:,}"


def _books(
    console: Console,
    title: str,
    measured: MemoryUse,
    forecasts: Mapping[PredictionMethod, MemoryUse],
) -> None:
    """One instant: what was measured, what each predictor says, and the first one's residual."""
    books = (measured, *forecasts.values())
    scale = Scale.of(largest_of(*books))
    names = ["", "Measured", *(METHODS[method] for method in forecasts)]
    caption = scale.caption
    if forecasts:
        names += ["Residual", "of measured"]
        caption += "; the residual is measured − predicted"
    made = table(title, names, caption=caption)
    add_books(made, books, scale, difference=(0, 1) if forecasts else None)
    console.print(made)


def _values(console: Console, title: str, values: Mapping[str, object]) -> None:
    if not values:
        return
    made = table(title, ("", ""), texts=2)
    made.show_header = False
    for name, value in values.items():
        add(made, name, setting(value))
    say(console, "")
    console.print(made)


def _events(console: Console, events: Sequence[Event], limit: int) -> None:
    if not events:
        return
    shown = events[-limit:] if limit else ()
    made = table(
        "Events",
        ("At (UTC)", "Kind", "Step", "Phase", "Bytes", "Message"),
        texts=6,
        caption=f"The last {len(shown)} of {len(events)}." if len(shown) < len(events) else "",
    )
    for event in shown:
        add(
            made,
            iso_of_ns(event.at_ns)[:19].replace("T", " "),
            event.kind.value,
            UNKNOWN if event.step is None else f"{event.step:,}",
            UNKNOWN if event.phase is None else PHASE_LABELS[event.phase],
            size(event.bytes),
            event.message,
        )
    say(console, "")
    console.print(made)


def overview_mapping(found: RunOverview) -> dict[str, object]:
    """What the command knows of a run, for ``--json``."""
    return {
        "run": run_mapping(found.run),
        "devices": [_device_mapping(device) for device in found.devices],
        "events": [event_mapping(event) for event in found.events],
    }


def _device_mapping(device: DeviceOverview) -> dict[str, object]:
    return {
        **device_mapping(device.device),
        "peak_step": None if device.peak is None else step_mapping(device.peak),
        "last_step": None if device.last is None else step_mapping(device.last),
        "predictions": [
            {
                **prediction_mapping(record),
                "residual": dict(differences(device.peak_use, record.peak)),
            }
            for record in device.predictions
        ],
    }
