"""The figure of one step from inside: its areas, its phases and its peak."""

from __future__ import annotations

import base64
import json
from array import array
from typing import Any

import pytest
from vramscope.app.charts import timeline_in_step
from vramscope.storage.records import MemoryUse, Phase, TimelinePoint

MIB = 2**20
GIB = 2**30


def point(sequence: int, ms: float, phase: Phase, **held: int) -> TimelinePoint:
    total = sum(held.values())
    use = MemoryUse(**held, allocated=total)
    return TimelinePoint(
        device=0, step=7, sequence=sequence, offset_s=ms / 1e3, phase=phase, use=use
    )


def step() -> list[TimelinePoint]:
    """Forward to 40 ms, backward to 90 ms, optimizer to 100 ms; the peak at 40 ms."""
    return [
        point(0, 1, Phase.FORWARD, parameters=10 * MIB),
        point(1, 39, Phase.FORWARD, parameters=10 * MIB, activations=29 * MIB),
        point(2, 40, Phase.BACKWARD, parameters=10 * MIB, activations=30 * MIB),
        point(3, 90, Phase.OPTIMIZER, parameters=10 * MIB, gradients=2048),
        point(4, 100, Phase.OPTIMIZER, parameters=10 * MIB),
    ]


def texts(notes: list[dict[str, Any]]) -> list[str]:
    return [note["text"] for note in notes]


def strip(figure: dict[str, Any]) -> list[tuple[float, float]]:
    shapes = figure["layout"]["shapes"]
    return [(round(s["x0"], 6), round(s["x1"], 6)) for s in shapes if s["type"] == "rect"]


def decoded(packed: dict[str, str]) -> list[float]:
    return list(array({"f4": "f", "f8": "d"}[packed["dtype"]], base64.b64decode(packed["bdata"])))


def test_classes_that_hold_something_are_stacked_over_milliseconds() -> None:
    figure = timeline_in_step(step())

    areas = [t for t in figure["data"] if t.get("stackgroup")]
    assert [t["name"] for t in areas] == ["Parameters", "Gradients", "Activations"]
    assert decoded(areas[2]["x"]) == pytest.approx([1, 39, 40, 90, 100])
    assert decoded(areas[0]["y"]) == [10] * 5
    assert "MiB" in texts(figure["layout"]["annotations"])


def test_a_small_class_is_hovered_in_a_unit_of_its_own() -> None:
    gradients = next(t for t in timeline_in_step(step())["data"] if t["name"] == "Gradients")

    assert "KiB" in gradients["hovertemplate"]
    assert max(v for v in decoded(gradients["customdata"]) if v == v) == 2


def test_phases_stand_above_from_one_instant_to_the_next() -> None:
    figure = timeline_in_step(step())

    assert strip(figure) == [(0, 40), (40, 90), (90, 100)]
    said = texts(figure["layout"]["annotations"])
    assert {"forward 40 ms", "backward 50 ms", "optimizer"} <= set(said)


def test_phases_too_short_for_a_name_have_less_and_less() -> None:
    points = [point(0, 0, Phase.FORWARD, parameters=MIB)]
    for n, (ms, phase) in enumerate([(900, Phase.BACKWARD), (960, Phase.OPTIMIZER)]):
        points.append(point(n + 1, ms, phase, parameters=MIB))
    points.append(point(3, 980, Phase.EVAL, parameters=MIB))
    points.append(point(4, 999, Phase.IDLE, parameters=MIB))
    points.append(point(5, 1000, Phase.IDLE, parameters=MIB))

    layout = timeline_in_step(points)["layout"]

    assert texts(layout["annotations"])[1:5] == ["forward 900 ms", "backward", "O", "E"]


def test_an_idle_instant_has_neither_a_band_nor_a_line_of_its_own() -> None:
    points = [
        point(0, 0, Phase.FORWARD, parameters=MIB),
        point(1, 50, Phase.IDLE, parameters=MIB),
        point(2, 51, Phase.FORWARD, parameters=MIB),
        point(3, 100, Phase.FORWARD, parameters=MIB),
    ]

    shapes = timeline_in_step(points)["layout"]["shapes"]

    assert [s["x0"] for s in shapes if s["type"] == "rect"] == pytest.approx([0, 51])
    assert [s["x0"] for s in shapes if s["type"] == "line"] == pytest.approx([51])


def test_the_peak_is_marked_with_its_size_and_module() -> None:
    figure = timeline_in_step(step(), peak_module="h.<3>.mlp")

    peak = figure["layout"]["annotations"][-1]
    assert peak["text"] == "<b>peak 40.00 MiB</b> · h.&lt;3&gt;.mlp"
    assert (peak["x"], peak["y"]) == pytest.approx((40, 40))
    assert figure["narrow"]["annotations"][-1]["text"] == "<b>peak 40.00 MiB</b>"


@pytest.mark.parametrize(
    ("module", "said"), [(None, ""), ("", " · the model itself"), ("a." * 40 + "end", ".a.end")]
)
def test_the_peaks_module_may_be_unknown_the_root_or_long(module: str | None, said: str) -> None:
    label = timeline_in_step(step(), peak_module=module)["layout"]["annotations"][-1]["text"]

    assert label.startswith("<b>peak 40.00 MiB</b>")
    assert label.removeprefix("<b>peak 40.00 MiB</b>").endswith(said)
    assert len(label) < 70


def test_the_capacity_is_drawn_once_half_of_it_is_used() -> None:
    near = timeline_in_step(step(), capacity=64 * MIB)
    far = timeline_in_step(step(), capacity=80 * GIB)

    assert "capacity 64.00 MiB" in texts(near["layout"]["annotations"])
    assert near["layout"]["yaxis"]["range"][1] > 64
    assert far["layout"]["yaxis"]["range"][1] < 50


def test_where_the_step_broke_off_is_marked() -> None:
    whole = timeline_in_step(step())["layout"]["shapes"]
    broken = timeline_in_step(step(), complete=False)["layout"]["shapes"]

    assert len(broken) == len(whole) + 1
    assert broken[-1]["x0"] == pytest.approx(100)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [
            TimelinePoint(
                device=0, step=1, sequence=0, offset_s=0, phase=Phase.IDLE, use=MemoryUse()
            )
        ],
    ],
)
def test_nothing_known_says_so(points: list[TimelinePoint]) -> None:
    figure = timeline_in_step(points)

    assert figure["data"] == []
    assert texts(figure["layout"]["annotations"]) == ["No timeline was recorded of this step."]


def test_classes_without_a_total_are_added_up() -> None:
    use = MemoryUse(parameters=MIB, activations=3 * MIB)
    only = TimelinePoint(device=0, step=1, sequence=0, offset_s=0, phase=Phase.FORWARD, use=use)

    assert "<b>peak 4.00 MiB</b>" in texts(timeline_in_step([only])["layout"]["annotations"])


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_plain_json(dark: bool) -> None:
    figure = timeline_in_step(step(), dark=dark, capacity=50 * MIB, complete=False)

    assert json.loads(json.dumps(figure, allow_nan=False))["data"]
