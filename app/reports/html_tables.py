"""Tables of the HTML report that no page of the dashboard has in this form."""

from __future__ import annotations

from collections.abc import Iterable

from vramscope.storage.records import ModuleRecord, PhaseRecord, PredictionTerm

from ..blocks import text
from ..format import CLASS_LABELS, PHASE_LABELS, UNKNOWN, duration, size, whole_bytes
from ..overview import modules_in_all_dtypes

TOP_MODULES = 15


def phases_table(phases: Iterable[PhaseRecord]) -> str:
    """The phases of one step, each at its own peak."""
    rows = (
        (
            PHASE_LABELS[p.phase],
            duration(p.duration_s),
            size(p.peak.allocated),
            size(p.peak.reserved),
        )
        for p in phases
    )
    return _table(("Phase", "Duration", "Allocated", "Reserved"), rows)


def modules_part(modules: Iterable[ModuleRecord], step: int) -> str:
    """What the modules held for backward at one step, the largest first, folded away."""
    ranked = modules_in_all_dtypes(modules)
    rows = ((m.module or "(root)", size(m.activations)) for m in ranked[:TOP_MODULES])
    shown = f"the {TOP_MODULES} largest of {len(ranked)}" if len(ranked) > TOP_MODULES else "all"
    return (
        f"<details><summary>Modules at step {step:,}, {shown}</summary>"
        f"{_table(('Module', 'Activations'), rows)}</details>"
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """The first column is text, the others numbers."""
    names = "".join(
        f'<th class="r">{text(name)}</th>' if place else f"<th>{text(name)}</th>"
        for place, name in enumerate(head)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="r">{text(cell)}</td>' if place else f"<td>{text(cell)}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="vs-scroll"><table class="vs-table"><thead><tr>{names}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def terms_table(terms: Iterable[PredictionTerm]) -> str:
    """Every summand of a prediction with its formula and source."""
    rows = []
    for term in terms:
        label = UNKNOWN if term.memory_class is None else CLASS_LABELS[term.memory_class]
        rows.append(
            f"<tr><td>{label}</td><td>{text(term.name)}</td>"
            f"<td><code>{text(term.formula)}</code>"
            f'<div class="vs-quiet">{text(term.source)}</div></td>'
            f'<td class="r" title="{whole_bytes(term.bytes)}">{size(term.bytes)}</td></tr>'
        )
    return (
        '<div class="vs-scroll"><table class="vs-table"><thead><tr><th>Class</th><th>Term</th>'
        '<th>Formula and source</th><th class="r">Size</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
