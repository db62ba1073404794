"""What happened at a step, on the chart over steps: a line across the plot and a label on top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.storage.records import Event, EventKind

from .chart_stack import column
from .format import CLASS_COLOURS, palette, pl, size

if TYPE_CHECKING:
    from vramscope.storage.reader import StepTable

_DRAWN = (EventKind.OOM, EventKind.LEAK, EventKind.SPIKE, EventKind.NOTE)
"""What is drawn, the most telling first: where labels would overlap, the later kind has none."""

_WORDS_OF = {EventKind.LEAK: "leak", EventKind.SPIKE: "spike", EventKind.NOTE: "note"}
_MOST_LINES = 200
_ROWS = 2
_ROW_PX = 21
_CHARACTER = {False: 0.0062, True: 0.024}
"""Width of a character of a label, as a part of the plot; on a narrow chart by ``True``."""


class Mark(NamedTuple):
    """One mark: where, what it says, shortly too, and in full on hover."""

    step: int
    kind: EventKind
    text: str
    short: str
    hover: str


def marks_over_steps(events: Sequence[Event], table: StepTable) -> list[Mark]:
    """The marks of a run's events, and of steps inside which it ended.

    Several events of a kind at one step, as of many ranks, are one mark.
    """
    marks: dict[tuple[int, EventKind], Mark] = {}
    for event in events:
        if event.step is not None and event.kind in _DRAWN:
            marks.setdefault((event.step, event.kind), _mark(event, event.step))
    complete = column(table, "complete")
    for step, whole in zip(table.columns["step"], complete, strict=True):
        key = (step, EventKind.OOM)
        if whole is not None and not whole and key not in marks:
            text = f"✖ ended inside step {step:,}"
            marks[key] = Mark(step, EventKind.OOM, text, "✖ ended", text)
    ranked = sorted(marks.values(), key=lambda m: (_DRAWN.index(m.kind), m.step))
    return ranked[:_MOST_LINES]


def _mark(event: Event, step: int) -> Mark:
    hover = f"step {step:,}: {pl(event.message, 200)}"
    if event.kind is EventKind.OOM:
        text = f"✖ out of memory at step {step:,}"
        return Mark(step, event.kind, text, "✖ out of memory", hover)
    word = _WORDS_OF[event.kind]
    if event.kind is EventKind.LEAK:
        return Mark(step, event.kind, f"leak: {pl(event.message, 52)}", word, hover)
    if event.kind is EventKind.SPIKE:
        held = "" if event.bytes is None else f" {size(event.bytes, signed=True)}"
        return Mark(step, event.kind, f"{word}{held}", word, hover)
    return Mark(step, event.kind, pl(event.message, 24) or word, word, hover)


def mark_lines(marks: Sequence[Mark], dark: bool) -> list[dict[str, Any]]:
    """A vertical line for every mark."""
    return [
        {
            "type": "line",
            "x0": mark.step,
            "x1": mark.step,
            "yref": "y domain",
            "y0": 0,
            "y1": 1,
            "line": _line(mark.kind, dark),
        }
        for mark in marks
    ]


def _line(kind: EventKind, dark: bool) -> dict[str, Any]:
    colours = palette(dark)
    if kind is EventKind.OOM:
        return {"color": CLASS_COLOURS["communication"], "width": 2}
    if kind is EventKind.LEAK:
        return {"color": colours.capacity, "width": 1.5}
    return {"color": colours.text, "width": 1, "dash": "dot"}


def mark_labels(
    marks: Sequence[Mark],
    table: StepTable,
    dark: bool,
    *,
    narrow: bool = False,
    capacity_row: int | None = None,
) -> list[dict[str, Any]]:
    """Labels at the top of the plot, in two rows; one that fits in neither is left out.

    Args:
        marks: What to label, the most telling first.
        table: The steps that are drawn.
        dark: Colours for a dark page.
        narrow: Short words, for a chart that is less than 560 pixels wide.
        capacity_row: The row whose left end the capacity's label takes.
    """
    steps = table.columns["step"]
    span = max(steps[-1] - steps[0], 1)
    taken: list[list[tuple[float, float]]] = [[] for _ in range(_ROWS)]
    if capacity_row is not None:
        taken[capacity_row].append((-1.0, 24 * _CHARACTER[narrow]))
    labels = []
    for mark in marks:
        at = (mark.step - steps[0]) / span
        text = mark.short if narrow else mark.text
        width = (len(text) + 2) * _CHARACTER[narrow]
        left = at > 0.5
        ends = (at - width, at) if left else (at, at + width)
        row = next((n for n, used in enumerate(taken) if _free(ends, used)), None)
        if row is None:
            continue
        taken[row].append(ends)
        labels.append(_label(mark, text, row, left, dark))
    return labels


def _free(ends: tuple[float, float], used: Sequence[tuple[float, float]]) -> bool:
    return all(ends[1] <= low or ends[0] >= high for low, high in used)


def _label(mark: Mark, text: str, row: int, left: bool, dark: bool) -> dict[str, Any]:
    colours = palette(dark)
    label: dict[str, Any] = {
        "text": text,
        "hovertext": mark.hover,
        "x": mark.step,
        "xanchor": "right" if left else "left",
        "y": 1,
        "yref": "y domain",
        "yanchor": "top",
        "yshift": -row * _ROW_PX,
        "showarrow": False,
        "bgcolor": colours.surface,
        "borderpad": 2,
        "font": {"color": colours.text, "size": 12},
    }
    if mark.kind is EventKind.OOM:
        label.update(bgcolor=CLASS_COLOURS["communication"], font={"color": "#000000", "size": 12})
    if mark.kind is EventKind.LEAK:
        label["font"] = {"color": colours.capacity, "size": 12}
    return label
