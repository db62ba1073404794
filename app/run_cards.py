"""The cards of one device of one run: pure, from a device's view to what stands on them."""

from __future__ import annotations

from vramscope.storage.records import StepRecord

from .blocks import Card, Tone
from .data import DeviceView
from .format import PHASE_LABELS, UNKNOWN, count, duration, percent, relative_error, size

CARRIED = "○"
"""Marks what was carried over from the last detail step."""

NEARLY_FULL = 0.05
GOOD_ERROR = 0.05


def run_cards(view: DeviceView) -> list[Card]:
    """Peak, headroom, prediction and steps of one device."""
    return [_peak(view), _headroom(view), _predicted(view), _steps(view.last)]


def _peak(view: DeviceView) -> Card:
    peak = view.peak
    if peak is None:
        return Card(label="Peak allocated", value=UNKNOWN, note="no step has ended yet")
    where = [f"step {peak.step:,}"]
    if peak.peak_phase is not None:
        where.append(f"in {PHASE_LABELS[peak.peak_phase]}")
    mark = f" · {CARRIED} carried" if peak.carried else ""
    return Card(
        label="Peak allocated",
        value=size(peak.peak.allocated),
        note=" · ".join(where) + mark,
        help="The most that live tensors held at any step. "
        + (f"{CARRIED} some figures are those of the last detail step." if peak.carried else ""),
    )


def most_held(view: DeviceView) -> int | None:
    """The most that the device gave to this process: reserved, allocated where unknown."""
    if view.peak is None:
        return None
    reserved = view.peak.peak.reserved
    return view.peak.peak.allocated if reserved is None else reserved


def _headroom(view: DeviceView) -> Card:
    capacity = view.device.total_bytes
    held = most_held(view)
    if capacity is None:
        why = "host memory has no fixed limit" if view.device.kind == "cpu" else "not reported"
        return Card(
            label="Headroom",
            value=UNKNOWN,
            note=f"no capacity known: {why}",
            help="Capacity of the device minus the most that was reserved.",
        )
    if held is None:
        return Card(label="Headroom", value=UNKNOWN, note=f"of {size(capacity)}")
    left = capacity - held
    tone: Tone = "bad" if left < NEARLY_FULL * capacity else "good"
    return Card(
        label="Headroom",
        value=size(left),
        note=f"{percent(left / capacity)} of {size(capacity)} free",
        help="Capacity of the device minus the most that was reserved.",
        tone=tone,
    )


def _predicted(view: DeviceView) -> Card:
    if view.analytic is None or view.analytic.peak.allocated is None:
        return Card(label="Predicted peak", value=UNKNOWN, note="no prediction for this device")
    predicted = view.analytic.peak.allocated
    measured = view.peak.peak.allocated if view.peak is not None else None
    error = relative_error(predicted, measured)
    tone: Tone = ""
    if error is None:
        note = "nothing measured yet"
    elif abs(error) < 0.0005:
        note, tone = "as measured", "good"
    else:
        note = f"{percent(abs(error))} too {'high' if error > 0 else 'low'}"
        tone = "good" if abs(error) <= GOOD_ERROR else "warn"
    band = ""
    if view.analytic.peak_low is not None and view.analytic.peak_high is not None:
        band = f" Between {size(view.analytic.peak_low)} and {size(view.analytic.peak_high)}."
    return Card(
        label="Predicted peak",
        value=size(predicted),
        note=note,
        help=f"What closed formulas say from the run's settings alone.{band}",
        tone=tone,
    )


def _steps(last: StepRecord | None) -> Card:
    if last is None:
        return Card(label="Steps", value="0", note="none has ended yet")
    if not last.complete:
        return Card(
            label="Steps",
            value=count(last.step),
            note=f"the last broke off after {duration(last.duration_s)}",
            help="The run ended inside its last step.",
        )
    noun = "micro-step" if last.micro_steps == 1 else "micro-steps"
    return Card(
        label="Steps",
        value=count(last.step),
        note=f"{last.micro_steps} {noun} · {last.duration_s * 1e3:,.0f} ms the last",
        help="A step ends when the optimizer has stepped.",
    )
