"""Figures: what is drawn, in which unit, and what is left out. Pure functions, no browser."""

from __future__ import annotations

import base64
import json
from array import array
from typing import Any

import pytest
from vramscope.app.charts import (
    RunSeries,
    devices_heat_map,
    difference_by_class,
    measured_beside_predicted,
    memory_over_steps,
    phases_in_step,
    two_runs_over_steps,
)
from vramscope.storage.reader import StepTable
from vramscope.storage.records import (
    MEMORY_LINES,
    Event,
    EventKind,
    MemoryUse,
    Phase,
    PhaseRecord,
)

MIB = 2**20
GIB = 2**30


def table(steps: int = 100, *, level: int = 1, **values: int | None) -> StepTable:
    """Steps that all hold the same; ``peak_parameters=…`` and the like."""
    columns: dict[str, list[Any]] = {"step": list(range(1, steps + 1))}
    for which in ("peak", "end"):
        for line in MEMORY_LINES:
            columns[f"{which}_{line}"] = [values.get(f"{which}_{line}")] * steps
    columns["device_used"] = [values.get("device_used")] * steps
    columns["peak_phase"] = ["backward"] * steps
    for flag in ("detail", "carried", "skipped"):
        columns[flag] = [False] * steps
    return StepTable(level=level, columns=columns)


def decoded(packed: dict[str, str]) -> list[float]:
    kind = {"f4": "f", "f8": "d"}[packed["dtype"]]
    return list(array(kind, base64.b64decode(packed["bdata"])))


def names(figure: dict[str, Any]) -> list[str]:
    return [trace["name"] for trace in figure["data"]]


def words(figure: dict[str, Any]) -> list[str]:
    return [note["text"] for note in figure["layout"]["annotations"]]


@pytest.mark.parametrize(
    ("held", "unit"), [(300 * MIB, "MiB"), (3 * GIB, "GiB"), (40 * 1024, "KiB")]
)
def test_one_unit_is_chosen_by_the_largest_value_and_named(held: int, unit: str) -> None:
    figure = memory_over_steps(table(peak_parameters=held, peak_allocated=held))

    assert unit in words(figure)
    assert f"{unit}<extra>" in figure["data"][0]["hovertemplate"]
    assert 1 <= figure["layout"]["yaxis"]["range"][1] < 1024


def test_a_small_class_is_hovered_in_a_unit_of_its_own() -> None:
    figure = memory_over_steps(
        table(peak_parameters=3 * GIB, peak_buffers=12 * 1024, peak_allocated=3 * GIB)
    )

    buffers = next(t for t in figure["data"] if t["name"] == "Buffers")
    assert "KiB" in buffers["hovertemplate"]
    assert decoded(buffers["customdata"])[0] == 12


def test_what_is_unknown_or_empty_is_not_drawn() -> None:
    figure = memory_over_steps(table(peak_parameters=MIB, peak_gradients=0, peak_allocated=MIB))

    assert names(figure) == ["Parameters", "Allocated"]


def test_the_cached_band_stands_on_the_stack_up_to_reserved() -> None:
    figure = memory_over_steps(
        table(peak_parameters=MIB, peak_allocated=MIB, peak_reserved=3 * MIB)
    )

    cached = next(t for t in figure["data"] if t["name"] == "Cached, free")
    assert decoded(cached["y"])[0] == 2
    assert cached["fillpattern"]["shape"] == "/"


def test_a_capacity_far_above_is_named_not_drawn_to_scale() -> None:
    small = table(peak_parameters=GIB, peak_allocated=GIB)
    near = table(peak_parameters=70 * GIB, peak_allocated=70 * GIB)

    far = memory_over_steps(small, capacity=80 * GIB)
    close = memory_over_steps(near, capacity=80 * GIB)

    assert far["layout"]["yaxis"]["range"][1] < 2
    assert "↑ capacity 80.00 GiB" in words(far)
    assert close["layout"]["yaxis"]["range"][1] > 80
    assert any(s["y0"] == 80 for s in close["layout"]["shapes"])


def test_the_predicted_level_is_dashed() -> None:
    figure = memory_over_steps(
        table(peak_parameters=MIB, peak_allocated=MIB), predicted=MemoryUse(allocated=2 * MIB)
    )

    assert "predicted 2.00 MiB" in words(figure)
    assert any(s["line"]["dash"] == "dash" for s in figure["layout"]["shapes"])


def test_few_steps_are_bars_and_many_are_areas() -> None:
    few = memory_over_steps(table(1, peak_parameters=MIB, peak_allocated=MIB))
    many = memory_over_steps(table(41, peak_parameters=MIB, peak_allocated=MIB))

    assert few["data"][0]["type"] == "bar"
    assert many["data"][0]["stackgroup"]


def test_no_step_says_so() -> None:
    assert words(memory_over_steps(table(0))) == ["No step has ended yet."]


def test_out_of_memory_is_marked_inside_the_axis() -> None:
    event = Event(kind=EventKind.OOM, at_ns=0, message="", step=101)

    figure = memory_over_steps(table(peak_parameters=MIB, peak_allocated=MIB), events=[event])

    assert "✖ out of memory at step 101" in words(figure)
    assert figure["layout"]["xaxis"]["autorangeoptions"]["maxallowed"] > 101


def test_a_title_from_a_run_is_escaped() -> None:
    figure = memory_over_steps(
        table(peak_parameters=MIB, peak_allocated=MIB), title="<a href=x>y</a>"
    )

    assert figure["layout"]["title"]["text"] == "&lt;a href=x&gt;y&lt;/a&gt;"


def test_predicted_is_hatched_in_the_measured_colours() -> None:
    use = MemoryUse(parameters=MIB, allocated=MIB)

    figure = measured_beside_predicted(use, use)

    measured, predicted = figure["data"]
    assert measured["marker"]["color"] == predicted["marker"]["color"]
    assert "pattern" in predicted["marker"]
    assert "pattern" not in measured["marker"]


def test_measured_stands_alone_without_a_prediction() -> None:
    figure = measured_beside_predicted(MemoryUse(parameters=MIB, allocated=MIB), None)

    assert {y for t in figure["data"] for y in t["y"]} == {"Measured"}


def phase(sequence: int, name: Phase, held: int) -> PhaseRecord:
    use = MemoryUse(parameters=held, allocated=held)
    return PhaseRecord(device=0, step=1, sequence=sequence, phase=name, duration_s=0.01, peak=use)


def test_phases_keep_their_order_and_name_the_highest() -> None:
    figure = phases_in_step(
        [
            phase(2, Phase.OPTIMIZER, MIB),
            phase(0, Phase.FORWARD, 2 * MIB),
            phase(1, Phase.IDLE, MIB),
        ]
    )

    assert figure["layout"]["xaxis"]["ticktext"] == ["forward<br>10 ms", "optimizer<br>10 ms"]
    assert "peak 2.00 MiB" in words(figure)


def test_the_waterfall_ends_at_the_difference_in_total() -> None:
    a = MemoryUse(parameters=MIB, activations=6 * MIB, allocated=7 * MIB)
    b = MemoryUse(parameters=2 * MIB, activations=2 * MIB, allocated=4 * MIB)

    bars = difference_by_class(a, b)["data"][0]

    assert bars["y"] == ["Parameters", "Activations", "Allocated, B − A"]
    assert bars["x"] == [1, -4, -3]
    assert bars["base"] == [0, 1, 0]


@pytest.mark.parametrize("other", [MemoryUse(), MemoryUse(parameters=MIB, allocated=MIB)])
def test_the_waterfall_says_when_there_is_nothing_to_draw(other: MemoryUse) -> None:
    figure = difference_by_class(MemoryUse(parameters=MIB, allocated=MIB), other)

    assert figure["data"] == []
    assert len(words(figure)) == 1


def test_two_runs_share_their_axes() -> None:
    small = RunSeries(name="a", table=table(50, peak_parameters=MIB, peak_allocated=MIB))
    large = RunSeries(name="b", table=table(90, peak_parameters=9 * MIB, peak_allocated=9 * MIB))

    layout = two_runs_over_steps(small, large)["layout"]

    assert layout["xaxis2"]["matches"] == "x"
    assert layout["yaxis2"]["matches"] == "y"
    assert layout["yaxis"]["range"][1] > 9


def test_the_heat_map_keeps_a_spike_of_one_step() -> None:
    spiky = table(1000, peak_allocated=MIB)
    spiky.columns["peak_allocated"][500] = 9 * MIB

    heat = devices_heat_map([("rank 0", spiky)])["data"][0]

    assert max(v for v in heat["z"][0] if v is not None) == 9


@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_is_plain_json(dark: bool) -> None:
    full = table(
        peak_parameters=MIB, peak_allocated=MIB, peak_reserved=2 * MIB, device_used=3 * MIB
    )
    use = MemoryUse(parameters=MIB, allocated=MIB)
    run = RunSeries(name="x", table=full, capacity=4 * MIB, predicted=use)
    figures = [
        memory_over_steps(full, capacity=4 * MIB, predicted=use, dark=dark),
        measured_beside_predicted(use, use, dark, capacity=2 * MIB),
        phases_in_step([phase(0, Phase.FORWARD, MIB)], dark),
        difference_by_class(use, MemoryUse(parameters=0, allocated=0), dark),
        two_runs_over_steps(run, run, dark=dark),
        devices_heat_map([("a", full), ("b", full)], capacity=MIB, dark=dark),
    ]

    for figure in figures:
        assert json.loads(json.dumps(figure, allow_nan=False))["data"]
