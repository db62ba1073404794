"""The figure that a training row measured, out of the prediction of its scenario."""

from __future__ import annotations

import re

from published import Answer, Row
from published_models import Unanswered
from vramscope.profiler.analytic import Prediction
from vramscope.profiler.analytic.overheads import Band, device_band
from vramscope.storage.records import Phase


def reason_of(prediction: Prediction) -> str:
    """Why the sum is unknown: the first of the notes that leaves a class open."""
    open_notes = ("activations:", "optimizer_state:", "parallelism.", "offload.", "lora.")
    notes = [n for n in prediction.not_modelled if n.startswith(open_notes)]
    return notes[0] if notes else "unknown"


def asked(row: Row, prediction: Prediction) -> Answer:
    """The figure that the row measured, out of the prediction.

    Raises:
        Unanswered: It could not be predicted; the reason is the prediction's own.
    """
    phases, quantity = prediction.phases, row.quantity
    why = reason_of(prediction)
    if quantity in CLASSES:
        return Answer(_class_bytes(row, prediction, why))
    if quantity in ("end", "start") or row.says(AROUND_STEP, "measured"):
        return Answer(_instant(row, prediction, why))
    if row.says("total memory .profile", "measured"):
        use = phases[Phase.BACKWARD]
        return Answer(sum(getattr(use, name) or 0 for name in CLASSES))
    peak = prediction.peak.allocated
    if peak is None or prediction.peak_phase is None:
        raise Unanswered(why)
    if quantity in ("reserved", "device"):
        assert prediction.reserved is not None
        band = prediction.reserved
        if quantity == "device":
            band = _device(row, band)
        return Answer(band.usual, band.low, band.high)
    return Answer(peak)


AROUND_STEP = r"(before|after).optimizer.step(,|: )|before optimizer\.step$"
CLASSES = ("parameters", "gradients", "optimizer_state", "activations")


def _class_bytes(row: Row, prediction: Prediction, why: str) -> int:
    """Bytes of one class.

    Where the row says what was allocated, with what the allocator rounds up; else as tensors
    count themselves.
    """
    phase = Phase.FORWARD if row.quantity == "activations" else Phase.IDLE
    if row.says("LOMO", "measured"):
        phase = Phase.BACKWARD
    held = getattr(prediction.phases[phase], row.quantity)
    if held is None:
        raise Unanswered(why)
    if row.says("allocated|phase_peak|reserved", "measured"):
        return int(held)
    return sum(
        t.bytes
        for t in prediction.terms
        if t.memory_class.value == row.quantity
        and not t.name.startswith("rounding")
        and ("(only in " not in t.name or phase.value in t.name.split("(only in ")[1])
    )


def _instant(row: Row, prediction: Prediction, why: str) -> int:
    """What is allocated before a step, at its end, or around the optimizer's first one."""
    phases = prediction.phases
    idle = phases[Phase.IDLE]
    if idle.allocated is None or idle.gradients is None or idle.optimizer_state is None:
        raise Unanswered(why)
    if row.quantity == "start":
        return idle.allocated - idle.gradients - (idle.temporaries or 0) + _workspaces(prediction)
    if row.says("DDP wrap", "measured"):
        return idle.allocated - idle.gradients - idle.optimizer_state - _outputs(prediction)
    peak = row.says("peak", "measured")
    if row.says("before.optimizer", "measured"):
        passes = [phases[p].allocated for p in (Phase.FORWARD, Phase.BACKWARD)]
        if peak and None not in passes:
            return max(p for p in passes if p is not None) - idle.optimizer_state
        return idle.allocated - idle.optimizer_state
    step = phases[Phase.OPTIMIZER].allocated
    return step if peak and step is not None else idle.allocated


def _workspaces(prediction: Prediction) -> int:
    return sum(t.bytes for t in prediction.terms if "workspaces" in t.name)


def _outputs(prediction: Prediction) -> int:
    """What only a step leaves behind: outputs, the batch, workspaces."""
    return prediction.phases[Phase.IDLE].temporaries or 0


def _device(row: Row, reserved: Band) -> Band:
    """With the context that the row's notes give for that machine, where they do."""
    said = re.search(r"[Cc]ontext about (\d+) M", str(row.notes or ""))
    return device_band(reserved, row.gpu, int(said[1]) * 2**20 if said else None)
