from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from vramscope.app.reports import csv_export
from vramscope.app.reports.privacy import neutralise, shareable, shareable_tree, shorten_homes
from vramscope.app.reports.run_csv import COLUMNS
from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    MEMORY_LINES,
    DeviceInfo,
    MemoryUse,
    RunInfo,
    RunStatus,
    StepRecord,
)
from vramscope.storage.writer import RunWriter

DOCS = Path(__file__).parents[1] / "docs" / "export.md"
RUN = "3f2a9c01b7d4"


def rows_of(store: Path) -> list[dict[str, str]]:
    with RunReader(store) as reader:
        text = "".join(csv_export(reader, RUN))
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_one_row_a_step_and_device_with_bytes(recorded: Callable[..., Path]) -> None:
    store = recorded(kind="cuda", devices=2, steps=7)
    rows = rows_of(store)
    assert len(rows) == 14
    assert list(rows[0]) == list(COLUMNS)
    with RunReader(store) as reader:
        device = reader.devices(RUN)[0]
        assert device.id is not None
        kept = next(iter(reader.iter_steps(RUN, device.id)))
    for line in MEMORY_LINES:
        for shown, value in (
            (rows[0][f"end_{line}_bytes"], getattr(kept.end, line)),
            (rows[0][f"peak_{line}_bytes"], getattr(kept.peak, line)),
        ):
            assert shown == ("" if value is None else str(value))


@pytest.mark.parametrize(
    ("module", "cell"),
    [(None, ""), ("", "(root)"), ("h.0.mlp", "h.0.mlp"), ("=h", "'=h")],
)
def test_a_step_says_its_peaks_module_and_whether_it_is_whole(
    module: str | None, cell: str, store_path: Path, make_step: Callable[..., StepRecord]
) -> None:
    run = RunInfo(id=RUN, name="n", started_at=datetime.now(UTC))
    writer = RunWriter(store_path, run, [DeviceInfo(host="h", kind="cpu")])
    for step, complete in ((1, True), (2, False)):
        writer.write(make_step(step, complete=complete, peak_module=module))
    writer.close(RunStatus.OUT_OF_MEMORY)
    rows = rows_of(store_path)
    assert [row["complete"] for row in rows] == ["true", "false"]
    assert [row["peak_module"] for row in rows] == [cell, cell]


def test_a_long_run_comes_in_pieces(recorded: Callable[..., Path]) -> None:
    seen: list[int] = []
    with RunReader(recorded(steps=1200)) as reader:
        pieces = list(csv_export(reader, RUN, progress=seen.append))
    assert len(pieces) == 3
    assert seen == [500, 1000]
    assert "".join(pieces).count("\r\n") == 1201


def test_a_run_without_steps_is_the_header_alone(recorded: Callable[..., Path]) -> None:
    assert rows_of(recorded(steps=0)) == []


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_host_that_looks_like_a_formula_is_neutralised(start: str, store_path: Path) -> None:
    run = RunInfo(id=RUN, name="n", started_at=datetime.now(UTC))
    writer = RunWriter(
        store_path, run, [DeviceInfo(host=f"{start}cmd", kind="cuda", name=f"{start}HYPERLINK()")]
    )
    step = StepRecord(
        device=0,
        step=1,
        started_ns=0,
        duration_s=0.1,
        micro_steps=1,
        end=MemoryUse(unattributed=-5),
        peak=MemoryUse(),
    )
    writer.write(step)
    writer.close(RunStatus.COMPLETED)
    (row,) = rows_of(store_path)
    assert row["host"] == f"'{start}cmd"
    assert row["device_name"] == f"'{start}HYPERLINK()"
    assert row["end_unattributed_bytes"] == "-5"


def test_the_columns_are_documented() -> None:
    text = DOCS.read_text(encoding="utf-8").split("## CSV")[1]
    for column in COLUMNS:
        lines = "|".join(MEMORY_LINES)
        pattern = re.sub(rf"^(end|peak)_({lines})_bytes$", r"\1_<line>_bytes", column)
        assert f"`{pattern}`" in text, column


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ada/train.py", "~/train.py"),
        ("python /home/ada/a.py --out=/home/bob/o", "python ~/a.py --out=~/o"),
        ("/Users/Ada/x", "~/x"),
        ("/nfs/home/ada/x", "~/x"),
        ("/mnt/lustre/home/ada", "~"),
        ("file:///home/ada/x", "file://~/x"),
        ("C:\\Users\\Ada\\x", "~\\x"),
        ("/root/x", "~/x"),
        ("'/root'", "'~'"),
        ("/rootfs/x", "/rootfs/x"),
        ("https://example.org/home/page", "https://example.org/home/page"),
        ("/srv/homework/x", "/srv/homework/x"),
        ("chroot/root", "chroot/root"),
        ("~/x", "~/x"),
        ("", ""),
    ],
)
def test_home_folders_are_shortened(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/elsewhere/me")
    assert shorten_homes(text) == shown


def test_ones_own_home_is_shortened_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/elsewhere/me")
    assert shorten_homes("at /elsewhere/me/x and /elsewhere/menu") == "at ~/x and /elsewhere/menu"


def test_values_that_json_has_no_word_for_become_text() -> None:
    assert shareable({"lr": float("nan"), "on": True, "n": 3}) == {"lr": "nan", "on": True, "n": 3}
    assert shareable_tree({"a": [{"b": float("inf")}], 1: Path("/x")}) == {
        "a": [{"b": "inf"}],
        "1": "/x",
    }


def test_only_text_at_risk_is_touched() -> None:
    assert [neutralise(text) for text in ("node-1", "", "a=b")] == ["node-1", "", "a=b"]
