"""Turn the store that ``gpu_check.py`` filled into JSON and a Markdown table.

``python benchmarks/gpu_report.py STORE FOLDER CONTEXT`` where CONTEXT is a JSON object with the
tests' outcome and the failures, kept in the result as they are.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    MEMORY_LINES,
    DeviceInfo,
    MemoryUse,
    PredictionRecord,
    RunInfo,
    StepRecord,
)

MIB = 1 << 20


def books(use: MemoryUse) -> dict[str, int | None]:
    return dict(use.items())


def one_run(reader: RunReader, run: RunInfo, device: DeviceInfo) -> dict[str, object]:
    """Measured and predicted bytes of one run on its first device."""
    assert device.id is not None
    peak = reader.peak_step(run.id, device.id)
    last = reader.last_step(run.id, device.id)
    unattributed = [record.end.unattributed for record in reader.iter_steps(run.id, device.id)]
    return {
        "name": run.name,
        "status": run.status.value,
        "settings": dict(run.settings),
        "steps": last.step if last else 0,
        "measured": _measured(peak, last),
        "unattributed_at_step_ends_max": max(
            (abs(u) for u in unattributed if u is not None), default=None
        ),
        "predictions": [
            _predicted(record)
            for record in reader.predictions(run.id)
            if record.device == device.id
        ],
    }


def _measured(peak: StepRecord | None, last: StepRecord | None) -> dict[str, object] | None:
    if peak is None or last is None:
        return None
    return {
        "end": books(last.end),
        "peak": books(peak.peak),
        "peak_step": peak.step,
        "peak_phase": peak.peak_phase and peak.peak_phase.value,
        "device_used": peak.device_used,
        "process_used": peak.process_used,
        "outside_allocator": peak.outside_allocator,
        "other_processes": peak.other_processes,
        "driver_reserved": peak.driver_reserved,
    }


def _predicted(record: PredictionRecord) -> dict[str, object]:
    return {
        "method": record.method.value,
        "peak": books(record.peak),
        "peak_phase": record.peak_phase and record.peak_phase.value,
        "phases": {phase.value: books(use) for phase, use in record.phases.items()},
        "device_used": record.device_used,
        "not_modelled": list(record.not_modelled),
    }


def table(run: dict[str, object]) -> list[str]:
    """The peak of one run, class by class, as lines of Markdown."""
    measured = run["measured"]
    lines = [f"## {run['name']}", ""]
    if not isinstance(measured, dict):
        return [*lines, f"Nothing was recorded (status {run['status']}).", ""]
    lines += [
        f"{run['steps']} steps, status {run['status']}; peak at step {measured['peak_step']}, "
        f"{measured['peak_phase']}; unattributed at step ends at most "
        f"{run['unattributed_at_step_ends_max']} bytes.",
        "",
    ]
    predictions = run["predictions"]
    assert isinstance(predictions, list)
    heads = ["at the peak", "measured (bytes)", "MiB"]
    for prediction in predictions:
        heads += [f"{prediction['method']} (bytes)", "predicted − measured"]
    lines += ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name in MEMORY_LINES:
        value = measured["peak"][name]
        cells = [f"`{name}`", _bytes(value), "—" if value is None else f"{value / MIB:,.1f}"]
        for prediction in predictions:
            expected = prediction["peak"][name]
            cells += [_bytes(expected), _difference(expected, value)]
        if any(cell != "—" for cell in cells[1:]):
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _bytes(value: int | None) -> str:
    return "—" if value is None else f"{value:,}"


def _difference(predicted: int | None, measured: int | None) -> str:
    if predicted is None or measured is None:
        return "—"
    difference = predicted - measured
    share = f" ({difference / measured:+.2%})" if measured else ""
    return f"{difference:+,}{share}"


def main() -> int:
    store, folder, context = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    with RunReader(f"sqlite:///{store}") as reader:
        runs = [row.info for row in reversed(reader.runs().rows)]
        devices = [reader.devices(run.id)[0] for run in runs]
        results = [one_run(reader, run, device) for run, device in zip(runs, devices, strict=True)]
    if not results:
        print("gpu-check: no run was recorded")
        return 1
    environment = dict(runs[0].environment)
    device = devices[0].name or devices[0].kind
    document = {
        "format": "vramscope-gpu-check",
        "version": 1,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "total_bytes": devices[0].total_bytes,
        "environment": {k: v for k, v in environment.items() if "torch" in k or "python" in k},
        **context,
        "runs": results,
    }
    stem = "gpu-check-" + re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    (folder / f"{stem}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    tests = context["tests"]["summary"] if context.get("tests") else "not run"
    lines = [f"# Measured and predicted on {device}", "", f"CUDA tests: {tests}", ""]
    lines += [f"Failed: {failure}" for failure in context["failures"]]
    for result in results:
        lines += table(result)
    text = "\n".join(lines).rstrip() + "\n"
    (folder / f"{stem}.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"Written to {folder / stem}.json and .md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
