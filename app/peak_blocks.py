"""The peak of one step in words and as a table: where it stood, and what it was made of."""

from __future__ import annotations

from collections.abc import Sequence

from vramscope.storage.records import MemoryUse, PeakGroup, Phase, StepRecord

from .blocks import class_name, text
from .format import (
    CLASS_LABELS,
    STACK,
    count,
    module_path,
    percent,
    size,
    whole_bytes,
)

_SHARES_NAMED = 2
_WHERE = {
    Phase.FORWARD: "in forward",
    Phase.BACKWARD: "in backward",
    Phase.OPTIMIZER: "in the optimizer's step",
    Phase.IDLE: "between the phases",
    Phase.EVAL: "in evaluation",
}


def peak_sentence(step: StepRecord) -> str:
    """Where a step's peak stood and what held most of it, as plain text.

    Such as ``The peak of step 300, 42.10 MiB, was reached in backward, in transformer.h.3.mlp;
    optimizer state holds 33.4 % of it, activations 28.6 %.``
    """
    if step.peak.allocated is None:
        return f"The peak of step {step.step:,} is not known."
    until = "" if step.complete else ", as far as it came"
    words = f"The peak of step {step.step:,}{until}, {size(step.peak.allocated)}, was reached"
    where = []
    if step.peak_phase is not None:
        where.append(f" {_WHERE[step.peak_phase]}")
    if step.peak_module is not None:
        where.append(f" in {module_path(step.peak_module)}")
    words += ",".join(where) if where else " at a place that is not known"
    shares = _largest_shares(step.peak, step.peak.allocated)
    return f"{words}; {shares}." if shares else f"{words}."


def _largest_shares(use: MemoryUse, whole: int) -> str:
    held = sorted(((getattr(use, line) or 0, line) for line in STACK), reverse=True)
    named = [(value, line) for value, line in held[:_SHARES_NAMED] if value and whole]
    parts = []
    for n, (value, line) in enumerate(named):
        label = CLASS_LABELS[line]
        shown = label if label.startswith("KV") else label[0].lower() + label[1:]
        verb = "" if n else (" hold" if label.endswith("s") else " holds")
        parts.append(f"{shown}{verb} {percent(value / whole)}{'' if n else ' of it'}")
    return ", ".join(parts)


def peak_groups_table(groups: Sequence[PeakGroup]) -> str:
    """The largest groups of tensors that were alive at a step's peak, the largest first."""
    rows = "".join(_group_row(g) for g in sorted(groups, key=lambda g: g.position))
    return (
        '<div class="vs-scroll"><table class="vs-table"><thead><tr><th>Class</th><th>Shape</th>'
        '<th>Dtype</th><th class="r">Tensors</th><th class="r">Together</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _group_row(group: PeakGroup) -> str:
    return (
        f'<tr><td class="w">{class_name(group.memory_class.value)}</td>'
        f"<td>{text(group.shape) or 'one number'}</td>"
        f'<td>{text(group.dtype)}</td><td class="r">{count(group.count)}</td>'
        f'<td class="r" title="{whole_bytes(group.bytes)}">{size(group.bytes)}</td></tr>'
    )


__all__ = ["peak_groups_table", "peak_sentence"]
