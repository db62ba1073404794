"""What happened at a step, on the chart over steps."""

from __future__ import annotations

from typing import Any

from vramscope.app.charts import memory_over_steps
from vramscope.storage.reader import StepTable
from vramscope.storage.records import Event, EventKind

MIB = 2**20


def table(steps: int = 200, complete: bool | None = None) -> StepTable:
    columns: dict[str, list[Any]] = {
        "step": list(range(1, steps + 1)),
        "peak_parameters": [MIB] * steps,
        "peak_allocated": [MIB] * steps,
    }
    if complete is not None:
        columns["complete"] = [True] * (steps - 1) + [complete]
    return StepTable(level=1, columns=columns)


def event(kind: EventKind, step: int | None, message: str = "", size: int | None = None) -> Event:
    return Event(kind=kind, at_ns=0, message=message, step=step, bytes=size)


def lines(figure: dict[str, Any]) -> list[int]:
    return [s["x0"] for s in figure["layout"]["shapes"] if s["x0"] == s["x1"]]


def labels(figure: dict[str, Any], narrow: bool = False) -> dict[str, dict[str, Any]]:
    notes = figure["narrow" if narrow else "layout"]["annotations"]
    return {note["text"]: note for note in notes if "hovertext" in note}


def test_every_kind_is_a_line_with_its_words() -> None:
    figure = memory_over_steps(
        table(),
        events=[
            event(EventKind.LEAK, 40, "activations grow by 1.2 MiB a step"),
            event(EventKind.SPIKE, 120, "one step", 40 * MIB),
            event(EventKind.NOTE, 180, "warm-up <b>is over</b>"),
            event(EventKind.WARNING, 90, "not drawn"),
            event(EventKind.NOTE, None, "of no step"),
        ],
    )

    assert sorted(lines(figure)) == [40, 120, 180]
    assert list(labels(figure)) == [
        "leak: activations grow by 1.2 MiB a step",
        "spike +40.00 MiB",
        "warm-up &lt;b&gt;is over&lt;/b&gt;",
    ]
    assert list(labels(figure, narrow=True)) == ["leak", "spike", "note"]
    leak = next(iter(labels(figure).values()))
    assert leak["hovertext"] == "step 40: activations grow by 1.2 MiB a step"


def test_labels_that_would_overlap_use_two_rows_and_then_none() -> None:
    figure = memory_over_steps(
        table(), events=[event(EventKind.SPIKE, n, size=n * MIB) for n in (20, 21, 22)]
    )

    assert lines(figure) == [20, 21, 22]
    shifts = [note["yshift"] for note in labels(figure).values()]
    assert len(shifts) == 2
    assert shifts[0] == 0 > shifts[1]


def test_out_of_memory_keeps_its_label_before_all_others() -> None:
    crowd = [event(EventKind.NOTE, 150 + n, "a note of some length") for n in range(40)]

    figure = memory_over_steps(table(), events=[*crowd, event(EventKind.OOM, 180)])

    assert "✖ out of memory at step 180" in labels(figure)


def test_the_same_on_many_ranks_is_one_mark() -> None:
    figure = memory_over_steps(table(), events=[event(EventKind.OOM, 200)] * 8)

    assert lines(figure) == [200]


def test_a_step_that_the_run_ended_in_is_marked() -> None:
    alone = memory_over_steps(table(complete=False))
    known = memory_over_steps(table(complete=False), events=[event(EventKind.OOM, 200)])

    assert list(labels(alone)) == ["✖ ended inside step 200"]
    assert list(labels(known)) == ["✖ out of memory at step 200"]
    assert labels(memory_over_steps(table(complete=True))) == {}


def test_marks_have_room_above_the_stack() -> None:
    bare = memory_over_steps(table())
    marked = memory_over_steps(table(), events=[event(EventKind.SPIKE, 20)])

    assert marked["layout"]["yaxis"]["range"][1] > bare["layout"]["yaxis"]["range"][1]
    assert "annotations" not in bare["narrow"]


def test_the_capacitys_name_keeps_its_corner() -> None:
    figure = memory_over_steps(
        table(), capacity=2**40, events=[event(EventKind.SPIKE, 2, size=MIB)]
    )

    (spike,) = labels(figure).values()
    assert spike["yshift"] < 0
