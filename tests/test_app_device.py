"""A device as a whole: allocator and driver add up, and what is unknown is not drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from vramscope.app.charts import device_bars
from vramscope.app.device_blocks import device_table
from vramscope.app.device_use import DEVICE_STACK, device_use, device_uses, why_unknown
from vramscope.app.format import CLASS_COLOURS, DEVICE_COLOURS, DEVICE_HELP, DEVICE_LABELS
from vramscope.storage.records import DeviceInfo, MemoryUse, StepRecord

MIB, GIB = 2**20, 2**30
MAIN = Path(__file__).resolve().parents[1] / "app" / "main.py"
GPU = DeviceInfo(
    host="h",
    kind="cuda",
    name="NVIDIA H100",
    total_bytes=79 * GIB,
    driver_total_bytes=80 * GIB,
    unified=False,
)
END = MemoryUse(allocated=12 * GIB, reserved=20 * GIB)
PEAK = MemoryUse(allocated=18 * GIB, reserved=20 * GIB)


def step(**changes: Any) -> StepRecord:
    """A step on a card with 3 GiB of other processes and 487 MiB of context."""
    values: dict[str, Any] = {
        "device_used": 23 * GIB + 999 * MIB,
        "outside_allocator": 487 * MIB,
        "other_processes": 3 * GIB,
        "driver_reserved": 512 * MIB,
        "end": END,
        "peak": PEAK,
    }
    return StepRecord(
        device=1, step=7, started_ns=0, duration_s=0.1, micro_steps=1, **{**values, **changes}
    )


def test_what_is_in_use_has_a_name_to_the_byte() -> None:
    use = device_use(GPU, step(), END)
    assert use is not None
    assert dict(use.lines()) == {
        "allocated": 12 * GIB,
        "cached": 8 * GIB,
        "outside_allocator": 487 * MIB,
        "other_processes": 3 * GIB,
        "driver_reserved": 512 * MIB,
        "untold": 0,
    }
    assert use.used == step().device_used
    assert use.free == 80 * GIB - use.used


def test_at_the_peak_the_others_hold_what_they_held_at_the_end() -> None:
    uses = device_uses(GPU, step(), step())
    peak, end = uses.values()
    assert [*uses] == ["Peak, step 7", "End, step 7"]
    assert (peak.allocated, peak.cached) == (18 * GIB, 2 * GIB)
    assert peak.used == end.used


@pytest.mark.parametrize("unknown", ["outside_allocator", "other_processes", "driver_reserved"])
def test_what_the_driver_does_not_tell_apart_is_a_line_of_its_own(unknown: str) -> None:
    known = getattr(step(), unknown)
    use = device_use(GPU, step(**{unknown: None}), END)
    assert use is not None
    assert getattr(use, unknown) is None
    assert use.untold == known
    assert use.used == step().device_used
    table = device_table({"End": use})
    assert DEVICE_LABELS[unknown] in table
    assert "—" in table
    drawn = {trace["name"] for trace in device_bars({"End": use})["data"]}
    assert DEVICE_LABELS[unknown] not in drawn
    assert DEVICE_LABELS["untold"] in drawn


def test_an_allocator_that_has_grown_since_the_driver_was_asked_is_not_negative() -> None:
    grown = MemoryUse(allocated=12 * GIB, reserved=24 * GIB)
    use = device_use(GPU, step(end=grown), grown)
    assert use is not None
    assert use.untold == 0
    assert use.used == 27 * GIB + 999 * MIB


def test_without_a_total_nothing_is_said_of_what_is_free() -> None:
    use = device_use(DeviceInfo(host="h", kind="cuda"), step(), END)
    assert use is not None
    assert use.free is None
    assert "<span>Free</span>" not in device_table({"End": use})
    assert not device_bars({"End": use})["layout"]["shapes"]


@pytest.mark.parametrize(
    "changes",
    [{"device_used": None}, {"end": MemoryUse(allocated=1), "peak": MemoryUse(allocated=1)}],
    ids=["no driver", "no allocator"],
)
def test_an_unknown_device_has_no_bar(changes: dict[str, Any]) -> None:
    assert device_uses(GPU, step(**changes), step(**changes)) == {}
    assert device_bars({})["data"] == []


def test_why_there_is_no_bar_is_said_of_gpus_only() -> None:
    assert why_unknown(DeviceInfo(host="h", kind="cpu")) is None
    assert "NVML" in (why_unknown(GPU) or "")
    shared = DeviceInfo(host="h", kind="cuda", unified=True)
    assert "shares its memory with the host" in (why_unknown(shared) or "")


@pytest.mark.parametrize("dark", [False, True])
def test_the_bar_is_plain_json_with_the_figures_in_the_hover(dark: bool) -> None:
    figure = device_bars(device_uses(GPU, step(), step()), dark)
    json.dumps(figure, allow_nan=False)
    hovers = " ".join(trace["hovertemplate"] for trace in figure["data"])
    assert "Outside the allocator 487.0 MiB" in hovers
    assert f"{487 * MIB:,} B" in hovers
    assert {trace["y"][0] for trace in figure["data"]} == {"Peak, step 7", "End, step 7"}


def test_every_line_of_a_device_has_words_and_a_colour() -> None:
    assert set(DEVICE_LABELS) == set(DEVICE_HELP) == {*DEVICE_STACK, "free", "total"}
    assert set(DEVICE_COLOURS) == set(DEVICE_STACK)
    assert len(set(DEVICE_COLOURS.values())) == len(DEVICE_STACK)
    assert set(DEVICE_COLOURS.values()) & set(CLASS_COLOURS.values()) == {CLASS_COLOURS["cached"]}


def run_page() -> str:
    at = AppTest.from_file(str(MAIN), default_timeout=20)
    at.switch_page("views/run.py")
    at.run()
    assert not at.exception, at.exception
    shown = " ".join(element.proto.body for element in at.get("html"))
    parts = [*at.subheader, *at.caption]
    return " ".join([re.sub(r"<[^>]+>", " ", shown), *(part.value for part in parts)])


@pytest.mark.usefixtures("store")
def test_the_run_page_shows_a_gpu_as_a_whole(recorded: Callable[..., Path]) -> None:
    recorded(kind="cuda", capacity=GIB, steps=5)
    page = run_page()
    for words in ("On the device", "Outside the allocator", "487.0 MiB", "Free", "1.13 GiB"):
        assert words in page
    assert "Not told apart" not in page


@pytest.mark.usefixtures("store")
def test_the_run_page_says_when_the_driver_said_nothing(recorded: Callable[..., Path]) -> None:
    recorded(kind="cuda", capacity=GIB, steps=5, unknown=True, predicts=False)
    page = run_page()
    assert "The driver (NVML) did not say" in page
    assert "Outside the allocator" not in page


@pytest.mark.usefixtures("store")
def test_a_cpu_run_has_no_such_section(recorded: Callable[..., Path]) -> None:
    recorded(steps=5)
    assert "On the device" not in run_page()


def test_show_says_whose_the_memory_is(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    shown = vramscope("show", "3f2a", "--db", recorded(kind="cuda", capacity=GIB, steps=5)).out
    lines = {line.split("  ")[0]: line.split() for line in shown.splitlines()}
    assert lines["On the device"] == ["On", "the", "device"]
    assert lines["Outside the allocator"][-2:] == ["0.48", "0.48"]
    assert lines["All of the device"][-2:] == ["1.13", "1.13"]


def test_show_says_nothing_of_it_for_a_cpu(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    assert "On the device" not in vramscope("show", "3f2a", "--db", recorded(steps=5)).out
