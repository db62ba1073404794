"""One run as an HTML report: one file, no request, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    Event,
    Phase,
    PredictionMethod,
    PredictionRecord,
    RunInfo,
)

from ..blocks import (
    Card,
    Tone,
    cards,
    classes_help,
    events_table,
    header,
    mapping_table,
    out_of_memory,
    residual_table,
    text,
    without_repeating,
)
from ..charts import (
    device_bars,
    devices_heat_map,
    measured_beside_predicted,
    memory_over_steps,
)
from ..device_blocks import device_table
from ..device_use import device_uses
from ..format import (
    PHASE_LABELS,
    UNKNOWN,
    count,
    duration,
    percent,
    size,
)
from ..overview import DeviceOverview, RunOverview, overview, predicted_beside
from .html_page import Figures, figure_place, page
from .html_step import step_inside
from .html_tables import terms_table
from .instants import iso
from .privacy import shareable, shorten_homes

CHART_ROWS = 600
DEVICES_IN_FULL = 8
_HEAT_MAP_ROWS = 480
_HEAT_MAP_CELLS = 240
_HEAT_MAP_DEVICES = 64


def html_report(reader: RunReader, run_id: str) -> str:
    """Make a report of one run that opens without a network.

    Args:
        reader: An open reader of the store.
        run_id: The run's id, as :meth:`RunReader.run` gives it.

    Returns:
        A whole HTML document, 2 MB of it plotly.js.

    Raises:
        PlotlyMissingError: The plotly package is not installed.
        StorageError: The store cannot be read.
    """
    found = overview(reader, run_id)
    figures: Figures = {}
    body = [_head(found), _cards(found)]
    if len(found.devices) > 1:
        body.append(_all_devices(reader, found, figures))
    body += _devices(reader, found, figures)
    body += [_settings(found.run), _events(found), _predictions(found), _words()]
    return page(f"{found.run.name} · vramscope", "\n".join(body), figures)


def _devices(reader: RunReader, found: RunOverview, figures: Figures) -> list[str]:
    """The fullest device in full, some others folded away."""
    ranked = sorted(found.devices, key=lambda device: -(device.peak_use.allocated or 0))
    first, others = ranked[:1], sorted(ranked[1:DEVICES_IN_FULL], key=found.devices.index)
    parts = [
        f"<h2>{text(device.label)}</h2>{_device(reader, found, device, figures)}"
        for device in first
    ]
    if others:
        parts.append("<h3>The other devices</h3>")
    parts += [
        f"<details><summary>{text(device.label)}: peak {size(device.peak_use.allocated)}</summary>"
        f"{_device(reader, found, device, figures)}</details>"
        for device in others
    ]
    left = len(ranked) - len(first) - len(others)
    if left:
        parts.append(
            f'<p class="note">{left} less full devices are not shown in full; the JSON and CSV '
            "exports hold all.</p>"
        )
    return parts


def _head(found: RunOverview) -> str:
    run = found.run
    facts = [f"run {run.id}", f"started {iso(run.started_at)[:19].replace('T', ' ')} UTC"]
    if run.ended_at is not None:
        facts.append(f"took {duration((run.ended_at - run.started_at).total_seconds())}")
    facts.append(f"{run.world_size} rank" + ("s" if run.world_size != 1 else ""))
    if run.lost_records:
        facts.append(f"{run.lost_records:,} records could not be kept")
    events = _shareable(found.events)
    message = None if run.status_message is None else shorten_homes(run.status_message)
    run = replace(run, status_message=message)
    return header(without_repeating(run, events), facts) + out_of_memory(run, events)


def _cards(found: RunOverview) -> str:
    device = found.fullest
    if device is None:
        return '<p class="note">No device has been recorded yet.</p>'
    peak, capacity = device.peak_use, device.device.total_bytes
    predicted = device.prediction(PredictionMethod.ANALYTIC)
    where = device.label if len(found.devices) > 1 else ""
    shown = [
        Card(label="Peak allocated", value=size(peak.allocated), note=_peak_note(device, where)),
        _predicted(predicted, peak.allocated),
        Card(label="At step end", value=size(device.end_use.allocated), note="allocated"),
    ]
    if peak.reserved is not None:
        shown.append(
            Card(label="Peak reserved", value=size(peak.reserved), note=_cached_note(device))
        )
    if capacity is not None:
        shown.append(_headroom(device, capacity))
    steps = None if device.last is None else device.last.step
    shown.append(Card(label="Last step", value=count(steps), note=_step_note(device)))
    return cards(shown)


def _peak_note(device: DeviceOverview, where: str) -> str:
    if device.peak is None:
        return "no step yet"
    phase = f" in {PHASE_LABELS[device.peak.peak_phase]}" if device.peak.peak_phase else ""
    return f"step {device.peak.step:,}{phase}" + (f", {where}" if where else "")


def _cached_note(device: DeviceOverview) -> str:
    cached = device.peak_use.cached
    return "" if cached is None else f"{size(cached)} of it free inside the allocator"


def _headroom(device: DeviceOverview, capacity: int) -> Card:
    used = device.peak_use.reserved
    if used is None:
        used = device.peak_use.allocated
    if used is None:
        return Card(label="Capacity", value=size(capacity))
    free = capacity - used
    tone: Tone = "bad" if free < 0.02 * capacity else "warn" if free < 0.1 * capacity else ""
    note = f"{size(free)} ({percent(free / capacity)}) never used"
    return Card(label="Capacity", value=size(capacity), note=note, tone=tone)


def _predicted(record: PredictionRecord | None, measured: int | None) -> Card:
    if record is None:
        return Card(label="Predicted peak", value=UNKNOWN, note="no prediction")
    predicted, note = record.peak.allocated, ""
    if predicted is not None and measured:
        error = (predicted - measured) / measured
        side = "above" if error > 0 else "below"
        same = percent(error) == percent(0)
        note = "as measured" if same else f"{percent(abs(error))} {side} what was measured"
    return Card(label="Predicted peak", value=size(predicted), note=note)


def _step_note(device: DeviceOverview) -> str:
    return "" if device.last is None else f"{duration(device.last.duration_s)} long"


def _all_devices(reader: RunReader, found: RunOverview, figures: Figures) -> str:
    rows = [
        (f"rank {d.device.rank}", reader.steps(found.run.id, _id(d), max_rows=_HEAT_MAP_ROWS))
        for d in found.devices[:_HEAT_MAP_DEVICES]
    ]
    capacities = [d.device.total_bytes for d in found.devices if d.device.total_bytes]
    # A cell is at least as wide as the steps that a row stands for: narrower ones stay empty.
    cells = max(
        (table.columns["step"][-1] // table.level for _, table in rows if len(table)), default=1
    )
    light, dark = (
        devices_heat_map(
            rows,
            capacity=max(capacities, default=None),
            dark=is_dark,
            buckets=max(1, min(_HEAT_MAP_CELLS, cells)),
        )
        for is_dark in (False, True)
    )
    figures["devices"] = light, dark
    height = 90 + 22 * len(rows)
    return (
        f"<h2>All devices</h2>{figure_place('devices', height, 'Allocated memory of every device')}"
    )


def _id(device: DeviceOverview) -> int:
    assert device.device.id is not None, "a device that was read has its number in the store"
    return device.device.id


def _device(reader: RunReader, found: RunOverview, device: DeviceOverview, figures: Figures) -> str:
    number = _id(device)
    if device.peak is None:
        return '<p class="note">No step has been recorded yet.</p>'
    prediction = device.prediction(PredictionMethod.ANALYTIC)
    predicted = None if prediction is None else predicted_beside(prediction, device.peak)
    table = reader.steps(found.run.id, number, max_rows=CHART_ROWS)
    capacity = device.device.total_bytes
    events = _shareable(e for e in found.events if e.device in (None, number))
    light, dark = (
        memory_over_steps(
            table, capacity=capacity, predicted=predicted, dark=is_dark, events=events
        )
        for is_dark in (False, True)
    )
    figures[f"steps-{number}"] = light, dark
    parts = [
        f'<p class="note">on {text(device.device.host)}; each step at its own peak'
        f"{_rollup_note(table.level)}</p>",
        figure_place(f"steps-{number}", 430, "Memory by class over the steps"),
        _beside(device, prediction, figures),
        _on_the_device(device, figures),
        _inside(reader, found, device, figures),
    ]
    return "\n".join(parts)


def _rollup_note(level: int) -> str:
    return "" if level == 1 else f", the fullest of every {level:,} steps"


def _beside(device: DeviceOverview, prediction: PredictionRecord | None, figures: Figures) -> str:
    assert device.peak is not None, "a device with a peak step"
    assert device.last is not None, "a device with a peak step has a last one"
    number = _id(device)
    predicted = None if prediction is None else prediction.peak
    predicted_end = None if prediction is None else prediction.phases.get(Phase.IDLE)
    light, dark = (
        measured_beside_predicted(
            device.peak_use, predicted, is_dark, capacity=device.device.total_bytes
        )
        for is_dark in (False, True)
    )
    figures[f"beside-{number}"] = light, dark
    carried = (
        " Some of the measured classes are carried over from the last detail step."
        if device.peak.carried
        else ""
    )
    return (
        "<h3>Measured beside predicted</h3>"
        f'<p class="note">The residual is measured less predicted.{carried}</p>'
        f"{figure_place(f'beside-{number}', 260, 'Measured and predicted memory at the peak')}"
        '<div class="beside"><div>'
        f"<h3>At the peak, step {device.peak.step:,}</h3>"
        f"{residual_table(device.peak_use, predicted)}</div><div>"
        f"<h3>At the end of step {device.last.step:,}</h3>"
        f"{residual_table(device.end_use, predicted_end)}</div></div>"
    )


def _on_the_device(device: DeviceOverview, figures: Figures) -> str:
    """Whose the memory of a GPU is; nothing where the driver did not say."""
    uses = device_uses(device.device, device.peak, device.last)
    if not uses:
        return ""
    name = f"device-{_id(device)}"
    light, dark = (device_bars(uses, is_dark) for is_dark in (False, True))
    figures[name] = light, dark
    place = figure_place(name, light["height"], "What is in use on the device, and what is free")
    return f"<h3>On the device</h3>{place}{device_table(uses)}"


def _inside(reader: RunReader, found: RunOverview, device: DeviceOverview, figures: Figures) -> str:
    """One detail step from inside: the fullest one if it is one, else the last."""
    number = _id(device)
    steps = reader.detail_steps(found.run.id, number)
    if not steps or device.peak is None:
        return ""
    step = device.peak.step if device.peak.step in steps else steps[-1]
    capacity = device.device.total_bytes
    return step_inside(reader, found.run.id, number, step, capacity, figures)


def _settings(run: RunInfo) -> str:
    parts = ["<h2>Settings</h2>"]
    if run.settings:
        parts.append(f'<div class="values">{mapping_table(shareable(run.settings))}</div>')
    else:
        parts.append('<p class="note">No setting has been recorded.</p>')
    if run.environment:
        parts.append(
            "<details><summary>Environment</summary>"
            '<div class="values">'
            f"{mapping_table(shareable(run.environment), 'Fact')}</div></details>"
        )
    return "".join(parts)


def _events(found: RunOverview) -> str:
    if not found.events:
        return ""
    return f"<h2>Events</h2>{events_table(_shareable(found.events))}"


def _shareable(events: Iterable[Event]) -> list[Event]:
    return [replace(event, message=shorten_homes(event.message)) for event in events]


def _predictions(found: RunOverview) -> str:
    """The terms of the fullest device's predictions: other ranks' differ in shards only."""
    device = found.fullest
    if device is None or not device.predictions:
        return ""
    parts = ["<h2>How the prediction is made</h2>"]
    for record in device.predictions:
        name = {"analytic": "Closed formulas", "dry_run": "Dry run"}[record.method.value]
        parts.append(
            f"<details><summary>{name}, {len(record.terms)} terms, for {text(device.label)}"
            f"</summary>{terms_table(record.terms)}</details>"
        )
        if record.not_modelled:
            notes = "".join(f"<li>{text(note)}</li>" for note in record.not_modelled)
            parts.append(f'<div class="note"><p>Not in the prediction:</p><ul>{notes}</ul></div>')
    return "".join(parts)


def _words() -> str:
    return f"<details><summary>What the names mean</summary>{classes_help()}</details>"
