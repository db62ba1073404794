"""What runs, show and compare print."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vramscope.app.cli.tables import Scale
from vramscope.app.format import GIB, MIB
from vramscope.storage.records import MEMORY_LINES, RunStatus

RUN = "3f2a9c01b7d4"


def row(text: str, start: str) -> list[str]:
    """The cells of the first line that starts like this."""
    line = next(line for line in text.splitlines() if line.startswith(start))
    return re.split(r"\s{2,}", line.strip())


@pytest.mark.parametrize(
    ("sizes", "value", "shown"),
    [
        ([3 * GIB.bytes], 3 * GIB.bytes, "3.00"),
        ([300 * GIB.bytes], 5 * MIB.bytes, "<0.1"),
        ([3 * GIB.bytes], 0, "0.00"),
        ([3 * GIB.bytes], -1, "−<0.01"),
        ([3 * GIB.bytes], None, "—"),
        ([512], 512, "512"),
        ([None, None], None, "—"),
        ([7_000_559_616 * 4], 7_000_559_616 * 4, "26.08"),
    ],
)
def test_a_table_has_one_scale(sizes: list[int | None], value: int | None, shown: str) -> None:
    assert Scale.of(sizes).number(value) == shown


def test_the_scale_says_its_unit() -> None:
    assert Scale.of([GIB.bytes]).caption == "Sizes in GiB (2³⁰ bytes)"
    assert Scale.of([12]).caption == "Sizes in bytes"


def test_runs_lists_peak_capacity_and_error(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(kind="cuda", capacity=80 * 2**30, parameters=4 * 2**30, steps=5)
    shown = vramscope("runs", "--db", store)
    assert shown.code == 0
    cells = row(shown.out, RUN)
    assert cells[1:3] == ["gpt-small adamw fp32", "Completed"]
    assert cells[8] == "80.00"
    assert cells[-1].endswith("%")
    assert "Sizes in GiB" in shown.out


def test_runs_as_json_gives_bytes_and_null(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(steps=5, predicts=False)
    document = json.loads(vramscope("runs", "--db", store, "--json").out)
    (run,) = document["runs"]
    assert document["total"] == 1
    assert run["id"] == RUN
    assert run["last_step"] == 5
    assert isinstance(run["peak_allocated_bytes"], int)
    assert run["capacity_bytes"] is None
    assert run["predicted_peak_bytes"] is None


def test_runs_filters_and_says_when_nothing_is_left(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(steps=1)
    recorded(id="aa11bb22cc33", name="llama", steps=1, status=RunStatus.FAILED)
    assert "gpt-small" not in vramscope("runs", "--db", store, "--search", "llama").out
    assert "llama" in vramscope("runs", "--db", store, "--status", "failed").out
    assert "1 of 2 runs" in vramscope("runs", "--db", store, "--limit", 1).out
    assert "No run fits" in vramscope("runs", "--db", store, "--search", "zzz").out


def test_show_puts_predicted_beside_measured(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(steps=60, notes=("warm-up is over",))
    shown = vramscope("show", "gpt-small adamw fp32", "--db", store)
    assert shown.code == 0
    assert row(shown.out, "Parameters") == ["Parameters", "52.0", "52.0", "0.0", "0.0 %"]
    assert "the residual is measured − predicted" in shown.out
    assert "At the peak, step 14, in forward" in shown.out
    assert "At the end of the last step, 60" in shown.out
    assert row(shown.out, "optimizer") == ["optimizer", "AdamW"]
    assert "warm-up is over" in shown.out


def test_show_is_honest_about_what_is_unknown(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(unknown=True, predicts=False, steps=2)
    shown = vramscope("show", RUN[:4], "--db", store).out
    assert "capacity —" in shown
    assert "Parameters" not in shown
    assert row(shown, "Allocated") == ["Allocated", "208.0"]
    device = json.loads(vramscope("show", RUN, "--db", store, "--json").out)["devices"][0]
    assert device["peak_step"]["peak"]["parameters"] is None
    assert device["predictions"] == []


def test_show_before_the_first_step(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    shown = vramscope("show", RUN, "--db", recorded(steps=0))
    assert shown.code == 0
    assert "No step has been recorded yet." in shown.out
    assert row(shown.out, "Parameters")[1] == "—"


def test_show_as_json_holds_the_residual(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    document = json.loads(vramscope("show", RUN, "--db", recorded(steps=20), "--json").out)
    (device,) = document["devices"]
    (prediction,) = device["predictions"]
    for line in MEMORY_LINES:
        measured, predicted = device["peak_step"]["peak"][line], prediction["peak"][line]
        expected = None if measured is None or predicted is None else measured - predicted
        assert prediction["residual"][line] == expected


def test_a_runs_words_are_shown_as_they_are(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    name = "[red]x[/] :smile: \x1b[31m"
    shown = vramscope("show", RUN, "--db", recorded(name=name, steps=1)).out
    assert "[red]x[/] :smile:" in shown
    assert "\x1b" not in shown


def test_compare_gives_a_verdict_and_the_difference(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(steps=20)
    recorded(
        id="aa11bb22cc33",
        name="sgd",
        steps=20,
        parameters=26 * 2**20,
        settings={"optimizer": "SGD", "momentum": 0.9},
    )
    shown = vramscope("compare", RUN, "sgd", "--db", store)
    assert shown.code == 0
    assert shown.out.startswith("sgd peaks ")
    assert row(shown.out, "Parameters") == ["Parameters", "52.0", "26.0", "−26.0", "−50.0 %"]
    assert row(shown.out, "momentum") == ["momentum", "—", "0.9"]
    document = json.loads(vramscope("compare", RUN, "sgd", "--db", store, "--json").out)
    assert document["peak"]["b_minus_a"]["parameters"] == -26 * 2**20
    assert document["settings"] == {
        "optimizer": {"a": "AdamW", "b": "SGD"},
        "momentum": {"a": None, "b": 0.9},
    }
    assert document["verdict"].endswith(".")


def test_compare_with_a_run_that_has_no_step(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(steps=3)
    recorded(id="aa11bb22cc33", name="empty", steps=0)
    shown = vramscope("compare", "empty", RUN, "--db", store)
    assert shown.code == 0
    assert "No verdict: the peak of empty is unknown." in shown.out
