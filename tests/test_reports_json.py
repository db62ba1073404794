from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from vramscope.app.reports import json_export, json_schema
from vramscope.storage.reader import RunReader
from vramscope.storage.records import MEMORY_LINES, DeviceInfo, RunInfo, RunStatus
from vramscope.storage.writer import RunWriter

DOCS = Path(__file__).parents[1] / "docs" / "export.md"
DRIVER = (
    "device_used",
    "process_used",
    "outside_allocator",
    "other_processes",
    "driver_reserved",
)
"""What the driver says, among the keys of a step's peak."""
RUN = "3f2a9c01b7d4"


def exported(store: Path, run_id: str = RUN) -> dict[str, Any]:
    with RunReader(store) as reader:
        document: dict[str, Any] = json.loads("".join(json_export(reader, run_id)))
    return document


PLANS: dict[str, dict[str, Any]] = {
    "completed on a CPU": {},
    "two GPUs, out of memory": {
        "kind": "cuda",
        "devices": 2,
        "capacity": 80 * 2**30,
        "oom_at": 9,
        "status": RunStatus.OUT_OF_MEMORY,
        "message": "out of memory",
        "steps": 10,
    },
    "nothing but allocated known": {"unknown": True, "predicts": False, "steps": 3},
    "no step yet": {"steps": 0, "predicts": False},
    "odd settings": {"steps": 1, "settings": {"lr": float("nan"), "clip": float("inf")}},
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_every_export_is_valid_against_its_schema(
    plan: dict[str, Any], recorded: Callable[..., Path]
) -> None:
    document = exported(recorded(**plan))
    schema = json.loads(json_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(document)


def test_the_contract_keys_are_there_exactly(recorded: Callable[..., Path]) -> None:
    document = exported(recorded(kind="cuda", oom_at=3, steps=4))
    assert list(document) == [
        "format",
        "version",
        "run",
        "devices",
        "steps",
        "events",
        "predictions",
    ]
    assert document["format"] == "vramscope-run"
    assert document["version"] == 1
    run = ["id", "name", "status", "started_at", "ended_at", "settings", "environment"]
    assert list(document["run"])[: len(run)] == run
    device = ["id", "rank", "host", "kind", "index", "uuid", "name", "total_bytes"]
    assert list(document["devices"][0]) == [*device, "driver_total_bytes", "unified"]
    step = document["steps"][0]
    assert {"step", "device", "duration_s", "micro_steps", "end", "peak"} <= set(step)
    assert {"complete", "peak_module"} <= set(step)
    assert set(MEMORY_LINES) <= set(step["end"])
    assert {"phase", "device_used", *MEMORY_LINES} <= set(step["peak"])
    prediction = document["predictions"][0]
    expected = {"device", "method", "peak", "phases", "terms", "not_modelled"}
    assert expected <= set(prediction)
    assert set(MEMORY_LINES) <= set(prediction["peak"])
    assert all(set(MEMORY_LINES) == set(use) for use in prediction["phases"].values())
    assert list(prediction["terms"][0]) == ["name", "class", "bytes", "formula", "source"]


def test_the_figures_are_those_of_the_store(recorded: Callable[..., Path]) -> None:
    store = recorded(kind="cuda", devices=2, capacity=80 * 2**30, steps=5)
    document = exported(store)
    with RunReader(store) as reader:
        for device in reader.devices(RUN):
            assert device.id is not None
            steps = [s for s in document["steps"] if s["device"] == device.id]
            assert [s["step"] for s in steps] == [1, 2, 3, 4, 5]
            for shown, kept in zip(steps, reader.iter_steps(RUN, device.id), strict=True):
                assert {line: shown["end"][line] for line in MEMORY_LINES} == dict(kept.end.items())
                assert {line: shown["peak"][line] for line in MEMORY_LINES} == dict(
                    kept.peak.items()
                )
                for name in DRIVER:
                    assert shown["peak"][name] == getattr(kept, name)
                    assert shown["peak"][name] is not None
                assert (shown["phases"] is not None) == kept.detail
                assert shown["complete"] is kept.complete
                assert shown["peak_module"] == kept.peak_module


def test_unknown_is_null_and_never_zero(recorded: Callable[..., Path]) -> None:
    step = exported(recorded(unknown=True, predicts=False, steps=1))["steps"][0]
    assert step["end"]["parameters"] is None
    assert [step["peak"][name] for name in DRIVER] == [None] * len(DRIVER)
    assert step["end"]["allocated"] is not None


def test_instants_are_utc_and_steps_keep_their_nanoseconds(recorded: Callable[..., Path]) -> None:
    start = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
    document = exported(recorded(started_at=start, steps=2, step_s=0.000000001))
    assert document["run"]["started_at"] == "2026-03-01T09:30:00Z"
    assert document["steps"][1]["started_at"] == "2026-03-01T09:30:00.000000001Z"


def test_home_folders_do_not_leave(store_path: Path) -> None:
    run = RunInfo(
        id=RUN,
        name="n",
        started_at=datetime.now(UTC),
        settings={"data": "/home/ada/data", "config": "--cfg=/Users/ada/c.json"},
        environment={"command": "python /nfs/home/ada/train.py --out /root/out"},
    )
    writer = RunWriter(store_path, run, [DeviceInfo(host="h", kind="cpu")])
    writer.close(RunStatus.FAILED, "no file /home/ada/x")
    found = exported(store_path)["run"]
    assert found["settings"] == {"data": "~/data", "config": "--cfg=~/c.json"}
    assert found["environment"]["command"] == "python ~/train.py --out ~/out"
    assert found["status_message"] == "no file ~/x"


def test_a_long_run_is_exported_in_constant_memory(
    store_path: Path, run_builders: tuple[Any, Any, Any]
) -> None:
    plan, record, _ = run_builders
    record(str(store_path), plan(steps=2500, detail_every=10**9))
    with RunReader(store_path) as reader:
        pieces = json_export(reader, RUN)
        longest, total = 0, 0
        tracemalloc.start()
        for piece in pieces:
            longest, total = max(longest, len(piece)), total + len(piece)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert total > 1_800_000
    assert longest < 400_000
    assert peak < 6_000_000


def test_progress_counts_rows(recorded: Callable[..., Path]) -> None:
    seen: list[int] = []
    with RunReader(recorded(steps=450)) as reader:
        for _ in json_export(reader, RUN, progress=seen.append):
            pass
    assert seen == [200, 400]


def test_the_schema_names_every_line_of_the_books() -> None:
    memory = json.loads(json_schema())["$defs"]["memory"]
    assert memory["required"] == list(MEMORY_LINES)
    assert list(memory["properties"]) == list(MEMORY_LINES)


def test_the_documented_schema_is_the_packaged_one() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert block == json_schema()


def test_the_document_names_every_key_beside_the_contract() -> None:
    text = DOCS.read_text(encoding="utf-8")
    definitions = json.loads(json_schema())["$defs"]
    for name in ("run", "device", "step", "event", "prediction", "memory"):
        for key in definitions[name]["properties"]:
            assert re.search(rf"\b{key}\b", text.split("### JSON Schema")[0]), (name, key)
