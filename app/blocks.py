"""Blocks of HTML for the pages: header, cards and small tables. Pure: values in, a string out.

Every string that comes from a run passes through :func:`text`, which leaves no markup in it.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vramscope.storage.records import Event, EventKind, MemoryUse, Phase, RunInfo, RunStatus

from .format import (
    CLASS_COLOURS,
    CLASS_HELP,
    CLASS_LABELS,
    PHASE_LABELS,
    STACK,
    STATUS_HELP,
    STATUS_LABELS,
    UNKNOWN,
    percent,
    plain,
    setting,
    size,
    whole_bytes,
)

Tone = Literal["", "good", "warn", "bad"]

_STATUS_TONE: dict[RunStatus, str] = {
    RunStatus.RUNNING: "live",
    RunStatus.COMPLETED: "good",
    RunStatus.FAILED: "bad",
    RunStatus.INTERRUPTED: "warn",
    RunStatus.OUT_OF_MEMORY: "bad",
    RunStatus.STALE: "warn",
}

STYLE = (
    "<style>:root { "
    "--vs-live: light-dark(#0B6FB3, #6FBDEE); --vs-good: light-dark(#00714F, #3FCF9F); "
    "--vs-warn: light-dark(#8F5B00, #F0B84A); --vs-bad: light-dark(#B3261E, #FF8A80); }</style>"
    """<style>
.vs-head h1 { font-size: 1.75rem; font-weight: 650; line-height: 1.2; margin: 0; padding: 0;
  overflow-wrap: anywhere; }
.vs-line { display: flex; flex-wrap: wrap; gap: .35rem .9rem; align-items: center;
  margin-top: .5rem; opacity: .85; font-size: .9rem; }
.vs-badge { display: inline-flex; align-items: center; gap: .4rem; padding: .1rem .6rem;
  border-radius: 999px; font-size: .8rem; font-weight: 600; border: 1px solid currentColor; }
.vs-badge::before { content: ""; width: .5rem; height: .5rem; border-radius: 50%;
  background: currentColor; }
.vs-live { color: var(--vs-live); } .vs-good { color: var(--vs-good); }
.vs-warn { color: var(--vs-warn); } .vs-bad { color: var(--vs-bad); }
.vs-live::before { animation: vs-pulse 1.6s ease-in-out infinite; }
@keyframes vs-pulse { 50% { opacity: .25; } }
@media (prefers-reduced-motion: reduce) { .vs-live::before { animation: none; } }
.vs-cards { display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.vs-card { border: 1px solid rgba(128,140,160,.3); border-radius: .5rem; padding: .7rem .9rem;
  min-width: 0; }
.vs-card .k { font-size: .82rem; opacity: .75; }
.vs-card .v { font-size: 1.55rem; font-weight: 600; line-height: 1.25; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.vs-card .n { font-size: .82rem; opacity: .85; overflow-wrap: anywhere; }
.vs-card .n.vs-good, .vs-card .n.vs-bad, .vs-card .n.vs-warn { opacity: 1; font-weight: 600; }
.vs-scroll { overflow-x: auto; }
.vs-table { border-collapse: collapse; width: 100%; font-size: .88rem; }
.vs-table th { text-align: left; font-weight: 600; opacity: .75; font-size: .8rem; }
.vs-table th, .vs-table td { padding: .3rem .6rem .3rem 0; vertical-align: top;
  border-bottom: 1px solid rgba(128,140,160,.22); }
.vs-table td { overflow-wrap: anywhere; }
.vs-table .r { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
.vs-table .w { white-space: nowrap; overflow-wrap: normal; }
.vs-table tr.t td { font-weight: 600; border-top: 1px solid rgba(128,140,160,.5); }
.vs-table code { font-size: .82rem; overflow-wrap: anywhere; background: none; padding: 0;
  color: inherit; }
.vs-table [title] { cursor: help; }
.vs-swatch { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px;
  flex: none; }
.vs-name { display: inline-flex; gap: .45rem; align-items: baseline; }
@media (max-width: 560px) { .vs-table { font-size: .82rem; }
  .vs-table th, .vs-table td { padding-right: .45rem; } }
.vs-quiet { opacity: .7; }
.vs-change { line-height: 1.4; }
.vs-change .vs-quiet { font-size: .88rem; }
.vs-change .w { white-space: nowrap; }
.vs-verdict { border-left: 4px solid #0072B2; padding: .5rem .9rem; font-size: 1.08rem;
  line-height: 1.45; overflow-wrap: anywhere; background: rgba(128,140,160,.10);
  border-radius: 0 .5rem .5rem 0; }
.vs-alert { border-left: 4px solid var(--vs-bad); padding: .6rem .9rem; overflow-wrap: anywhere;
  background: light-dark(rgba(179,38,30,.07), rgba(255,138,128,.10));
  border-radius: 0 .5rem .5rem 0; line-height: 1.45; }
.vs-alert.vs-was { border-color: var(--vs-warn); background: rgba(128,140,160,.10); }
.vs-alert p { margin: .25rem 0 0; max-width: none; font-size: .92rem; }
.vs-alert h2 { font-size: 1.08rem; font-weight: 650; margin: 0; padding: 0; }
.vs-h3 { font-size: 1rem; font-weight: 600; margin: 0; padding: 0; }
.vs-alert p.vs-way { font-size: 1rem; font-weight: 600; }
</style>"""
)
"""The blocks' style sheet; it follows the ``color-scheme`` of the page around it."""


def text(value: object, limit: int = 400) -> str:
    """Any value as text that HTML cannot mistake for markup."""
    return html.escape(plain(str(value), limit))


def badge(status: RunStatus) -> str:
    """A run's status with its meaning on hover."""
    return (
        f'<span class="vs-badge vs-{_STATUS_TONE[status]}" title="{STATUS_HELP[status]}">'
        f"{STATUS_LABELS[status]}</span>"
    )


def header(run: RunInfo, facts: Iterable[str]) -> str:
    """A run's name, status and a line of facts."""
    line = "".join(f"<span>{text(fact)}</span>" for fact in facts)
    message = ""
    if run.status_message:
        message = f'<div class="vs-line">{text(run.status_message, 600)}</div>'
    return (
        f'<div class="vs-head"><h1>{text(run.name, 120)}</h1>'
        f'<div class="vs-line">{badge(run.status)}{line}</div>{message}</div>'
    )


_ALERT_LINES = 20


def out_of_memory(run: RunInfo, events: Sequence[Event]) -> str:
    """How the run ran out of memory, and what would have taken less; empty when it did not.

    The first line of the event is the error as it was raised, those after it are what to do.
    """
    found = [e for e in events if e.kind is EventKind.OOM]
    ended = run.status is RunStatus.OUT_OF_MEMORY
    if not found and not ended:
        return ""
    event = found[-1] if found else None
    where = "" if event is None or event.step is None else f" at step {event.step:,}"
    if event is not None and event.phase is not None and event.phase is not Phase.IDLE:
        where += f", in {PHASE_LABELS[event.phase]}"
    went_on = "" if ended else "; the run went on"
    message = event.message if event is not None else run.status_message or ""
    lines = [line for line in message.splitlines() if line.strip()][:_ALERT_LINES]
    shown = "".join(
        f'<p class="{"vs-way" if n else "vs-error"}">{text(line, 1000)}</p>'
        for n, line in enumerate(lines)
    )
    others = len(found) - 1
    if others > 0:
        shown += f"<p>{others:,} more such {'event' if others == 1 else 'events'} before it.</p>"
    tone = "" if ended else " vs-was"
    return (
        f'<div class="vs-alert{tone}" role="alert"><h2>Ran out of memory{where}{went_on}</h2>'
        f"{shown}</div>"
    )


def without_repeating(run: RunInfo, events: Sequence[Event]) -> RunInfo:
    """The run without its message, where :func:`out_of_memory` says it already."""
    if run.status is not RunStatus.OUT_OF_MEMORY or not run.status_message:
        return run
    said = [e.message for e in events if e.kind is EventKind.OOM]
    repeated = not said or said[-1].startswith(run.status_message)
    return replace(run, status_message=None) if repeated else run


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One figure of a page: what it is, its value, and a note under it."""

    label: str
    value: str
    note: str = ""
    help: str = ""
    tone: Tone = ""


def cards(shown: Sequence[Card]) -> str:
    """Cards in a row that wraps."""
    parts = []
    for card in shown:
        tone = f" vs-{card.tone}" if card.tone else ""
        parts.append(
            f'<div class="vs-card" title="{text(card.help)}">'
            f'<div class="k">{text(card.label)}</div>'
            f'<div class="v">{text(card.value)}</div>'
            f'<div class="n{tone}">{text(card.note)}</div></div>'
        )
    return f'<div class="vs-cards">{"".join(parts)}</div>'


def table(head: Sequence[tuple[str, bool]], rows: Iterable[str]) -> str:
    """A table of escaped rows under headings, each with whether it stands at the right."""
    columns = "".join(
        f'<th class="r">{text(name)}</th>' if right else f"<th>{text(name)}</th>"
        for name, right in head
    )
    body = "".join(rows)
    return (
        f'<div class="vs-scroll"><table class="vs-table"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def class_name(line: str) -> str:
    """A line of the books with its colour and its sentence."""
    colour = CLASS_COLOURS.get(line)
    swatch = f'<span class="vs-swatch" style="background:{colour}"></span>' if colour else ""
    return (
        f'<span class="vs-name" title="{text(CLASS_HELP[line])}">{swatch}'
        f"<span>{CLASS_LABELS[line]}</span></span>"
    )


def _cells(values: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<td class="r" title="{hint}">{shown}</td>' for shown, hint in values)


def size_cell(value: int | None, *, signed: bool = False) -> tuple[str, str]:
    """A size and, for hovering, its bytes."""
    return size(value, signed=signed), whole_bytes(value)


def _residual(measured: int | None, predicted: int | None) -> list[tuple[str, str]]:
    if measured is None or predicted is None:
        return [(UNKNOWN, ""), (UNKNOWN, "")]
    difference = measured - predicted
    share = None if measured == 0 else difference / measured
    shown = "0 B" if difference == 0 else size(difference, signed=True)
    return [
        (shown, whole_bytes(difference)),
        (percent(share, signed=True) if measured else UNKNOWN, ""),
    ]


def books_lines(*books: MemoryUse | None) -> list[str]:
    """The lines worth a row: what any of the books holds, in the order of the stack."""
    return [n for n in STACK if any(b is not None and getattr(b, n) for b in books)]


def residual_table(measured: MemoryUse, predicted: MemoryUse | None) -> str:
    """Measured beside predicted by class; the residual is measured minus predicted."""
    rows = []
    for line in [*books_lines(measured, predicted), "allocated", "reserved"]:
        mine = getattr(measured, line)
        theirs = None if predicted is None else getattr(predicted, line)
        if line == "reserved" and mine is None and theirs is None:
            continue
        total = ' class="t"' if line == "allocated" else ""
        values = [size_cell(mine), size_cell(theirs), *_residual(mine, theirs)]
        rows.append(f"<tr{total}><td>{class_name(line)}</td>{_cells(values)}</tr>")
    head = [
        ("Class", False),
        ("Measured", True),
        ("Predicted", True),
        ("Residual", True),
        ("of measured", True),
    ]
    return table(head, rows)


def difference_table(a: MemoryUse, b: MemoryUse) -> str:
    """Two runs' books by class and what B holds more."""
    rows = []
    for line in [*books_lines(a, b), "allocated", "cached", "reserved"]:
        left, right = getattr(a, line), getattr(b, line)
        if line in ("cached", "reserved") and left is None and right is None:
            continue
        delta = None if left is None or right is None else right - left
        total = ' class="t"' if line == "allocated" else ""
        shown = ("0 B", "0 B") if delta == 0 else size_cell(delta, signed=True)
        values = [size_cell(left), size_cell(right), shown]
        rows.append(f"<tr{total}><td>{class_name(line)}</td>{_cells(values)}</tr>")
    return table([("Class", False), ("A", True), ("B", True), ("B − A", True)], rows)


def mapping_table(values: Mapping[str, object], name: str = "Setting") -> str:
    """A flat mapping: names as recorded, values as text."""
    rows = (
        f"<tr><td>{text(key)}</td><td>{text(setting(value))}</td></tr>"
        for key, value in values.items()
    )
    return table([(name, False), ("Value", False)], rows)


def differing_table(differing: Mapping[str, tuple[object, object]]) -> str:
    """The settings that are not equal, with both values."""
    rows = (
        f"<tr><td>{text(key)}</td><td>{text(setting(a))}</td><td>{text(setting(b))}</td></tr>"
        for key, (a, b) in differing.items()
    )
    return table([("Setting", False), ("A", False), ("B", False)], rows)


_EVENT_TONE = {EventKind.OOM: "bad", EventKind.WARNING: "warn", EventKind.LEAK: "warn"}
_EVENT_LABELS = {
    EventKind.OOM: "Out of memory",
    EventKind.LEAK: "Leak",
    EventKind.SPIKE: "Spike",
    EventKind.NOTE: "Note",
    EventKind.WARNING: "Warning",
}


def events_table(events: Sequence[Event]) -> str:
    """What happened beside the steps."""
    rows = []
    for event in events:
        tone = _EVENT_TONE.get(event.kind, "")
        where = UNKNOWN if event.step is None else f"{event.step:,}"
        phase = "" if event.phase is None else f" · {PHASE_LABELS[event.phase]}"
        rows.append(
            f'<tr><td class="r">{where}</td>'
            f'<td class="vs-{tone}">{_EVENT_LABELS[event.kind]}</td>'
            f'<td>{text(event.message, 1000)}<span class="vs-quiet">{phase}</span></td>'
            f'<td class="r">{size(event.bytes)}</td></tr>'
        )
    head = [("Step", True), ("Kind", False), ("What", False), ("Size", True)]
    return table(head, rows)


def classes_help() -> str:
    """Every class with its colour and one sentence."""
    rows = (
        f"<tr><td class='w'>{class_name(line)}</td><td>{text(CLASS_HELP[line])}</td></tr>"
        for line in CLASS_LABELS
    )
    return table([("Name", False), ("What it is", False)], rows)
