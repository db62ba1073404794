"""Blocks of HTML and cards for the Plan page: pure, values in, a string out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass

from vramscope.profiler.analytic import Scenario
from vramscope.profiler.analytic.fit import Fit, Verdict
from vramscope.storage.records import MemoryClass, MemoryUse

from .blocks import Card, Tone, books_lines, class_name, size_cell, table, text
from .format import CLASS_LABELS, STACK, UNKNOWN, count, percent, size
from .plan_settings import model_name
from .plans import VERDICT_WORDS, Change, Largest, Plan
from .verdict import differing_settings

_TONES: Mapping[Verdict | None, Tone] = {"yes": "good", "tight": "warn", "no": "bad", None: ""}
_OF_THE_MODEL = ("architecture", "tensors", "model_class", "notes", "activations_unknown")
_HEAD = {"yes": "Yes", "tight": "Tight", "no": "No", None: UNKNOWN}


def plan_cards(plan: Plan, name: str = "") -> list[Card]:
    """Peak, fit, where it fits, and how large it may become.

    Args:
        plan: What is planned.
        name: ``A`` or ``B``, where there are two.
    """
    before = f"{name}: " if name else ""
    return [
        _parameters(plan, before),
        _peak(plan, before),
        _fit(plan, before),
        _fits_from(plan, before),
        _largest(f"{before}largest micro-batch", plan.micro_batch, plan, "micro_batch"),
        _largest(f"{before}largest sequence", plan.sequence, plan, "sequence"),
    ]


def _capital(label: str) -> str:
    return label[:1].upper() + label[1:]


def _parameters(plan: Plan, before: str) -> Card:
    tensors = list(plan.scenario.inventory.counted())
    numel = sum(t.numel * n for t, n in tensors)
    trained = sum(t.numel * n for t, n in tensors if t.trainable)
    note = "all trained" if trained == numel else f"{_amount(trained)} of them trained"
    return Card(
        label=_capital(f"{before}parameters"),
        value=_amount(numel),
        note="none trained" if not trained else note,
        help=f"{count(numel)} parameters, {count(trained)} of them trained; tied ones once.",
    )


def _amount(numel: int) -> str:
    return f"{numel / 1e9:.2f} B" if numel >= 1e9 else f"{numel / 1e6:.1f} M"


def _peak(plan: Plan, before: str) -> Card:
    prediction = plan.prediction
    if prediction.peak_phase is None or prediction.peak_high is None:
        return Card(
            label=_capital(f"{before}predicted peak"),
            value=f"≥ {size(prediction.peak_low)}",
            note="not all of it is known",
            tone="warn",
            help="What is known adds up to this; the peak may be higher.",
        )
    low, high = prediction.peak_low, prediction.peak_high
    spread = "" if low in (None, high) else f" · from {size(low)}"
    return Card(
        label=_capital(f"{before}predicted peak"),
        value=size(high),
        note=f"in {prediction.peak_phase.value}{spread}",
        help="The most that tensors will hold on one device, at any instant of a step.",
    )


def _fit(plan: Plan, before: str) -> Card:
    fit = plan.fit
    left = fit.headroom_bytes
    if left is None:
        note = f"of {size(plan.gpu.total_bytes)}"
    elif left >= 0:
        note = f"{size(left)} free, {percent(left / plan.gpu.total_bytes)}"
    else:
        note = f"{size(-left)} too much"
    return Card(
        label=_capital(f"{before}fits on {plan.gpu.name}"),
        value=_HEAD[fit.verdict],
        note=note,
        tone=_TONES[fit.verdict],
        help=f"Usually {size(fit.needed_bytes)} needed, at least {size(fit.needed_low)}, at most "
        f"{size(fit.needed_high)}, of {size(plan.gpu.total_bytes)}.",
    )


def _fits_from(plan: Plan, before: str) -> Card:
    smallest = plan.fits_from
    label = _capital(f"{before}smallest that fits")
    if smallest is None:
        known = plan.fit.needed_bytes is not None
        return Card(label=label, value=UNKNOWN, note="none of the list" if known else "not known")
    name, _, memory = smallest.name.rpartition(" ")
    name, _, amount = name.rpartition(" ")
    return Card(
        label=label,
        value=name,
        note=f"{amount} {memory}, {size(smallest.total_bytes)} usable",
        help="The smallest GPU of the list on which it fits for sure.",
    )


def _largest(label: str, found: Largest, plan: Plan, field: str) -> Card:
    present = getattr(plan.scenario.batch, field, None)
    help_text = f"On {plan.gpu.name}, with all else as it is; now {count(present)}."
    label = _capital(label)
    if found.surely is None or found.at_most is None:
        return Card(label=label, value=UNKNOWN, note="not known", help=help_text)
    if found.at_most == 0:
        return Card(label=label, value="0", note="not even 1 fits", tone="bad", help=help_text)
    if found.surely == 0:
        value = f"≤ {count(found.at_most)}"
        return Card(label=label, value=value, note="none for sure", tone="warn", help=help_text)
    note = "for sure"
    if found.at_most != found.surely:
        note += f"; {count(found.at_most)} at most"
    return Card(label=label, value=count(found.surely), note=note, help=help_text)


def unknown_classes(phases: Mapping[str, MemoryUse]) -> tuple[str, ...]:
    """The classes that are not predicted in some phase."""
    return tuple(c for c in MemoryClass if any(getattr(use, c) is None for use in phases.values()))


def unknown_sentence(plan: Plan, phases: Mapping[str, MemoryUse]) -> str:
    """Which classes are not predicted, and why; empty where all are."""
    names = [CLASS_LABELS[name].lower() for name in unknown_classes(phases)]
    if not names:
        return ""
    why = plan.scenario.activations_unknown
    because = f": {why}" if why else ", see what is not in the figures"
    return f"Not predicted: {' and '.join(names)}{because}. What is shown is the least."


def phases_table(phases: Mapping[str, MemoryUse]) -> str:
    """The books of every phase by class: one column a phase."""
    rows = []
    held = books_lines(*phases.values())
    unknown = unknown_classes(phases)
    for line in [*(n for n in STACK if n in held or n in unknown), "allocated"]:
        total = ' class="t"' if line == "allocated" else ""
        cells = "".join(
            f'<td class="r" title="{hint}">{shown}</td>'
            for shown, hint in (size_cell(getattr(use, line)) for use in phases.values())
        )
        rows.append(f"<tr{total}><td>{class_name(line)}</td>{cells}</tr>")
    return table([("Class", False), *((_capital(name), True) for name in phases)], rows)


def gpu_table(fits: Sequence[Fit], focus: str) -> str:
    """Every GPU with what it has, what is needed there, and the verdict."""
    rows = []
    for fit in fits:
        tone = _TONES[fit.verdict]
        chosen = ' class="t"' if fit.gpu.name == focus else ""
        needed = size(fit.needed_bytes)
        band = f"at least {size(fit.needed_low)}, at most {size(fit.needed_high)}"
        if fit.needed_bytes is None:
            needed = f"≥ {size(fit.needed_low)}"
        left = UNKNOWN if fit.headroom_bytes is None else size(fit.headroom_bytes, signed=True)
        rows.append(
            f'<tr{chosen}><td title="{text(fit.gpu.source)}">{text(fit.gpu.name)}</td>'
            f'<td class="w vs-{tone}">{VERDICT_WORDS[fit.verdict]}</td>'
            f'<td class="r">{size(fit.gpu.total_bytes)}</td>'
            f'<td class="r" title="{text(band)}">{needed}</td>'
            f'<td class="r">{left}</td></tr>'
        )
    head = [("GPU", False), ("", False), ("Usable", True), ("Needed", True), ("Left", True)]
    return table(head, rows)


def change_line(change: Change) -> str:
    """One change: what, how much less, its price, and where it would then fit."""
    remedy = change.remedy
    where = ""
    if change.fits_from is not None:
        where = f" · then fits from <span class='w'>{text(change.fits_from.name)}</span>"
    return (
        f'<div class="vs-change"><strong>{size(-remedy.saved_bytes)}</strong>'
        f"&ensp;{text(remedy.change)}"
        f'<div class="vs-quiet">price: {text(remedy.price)}{where}</div></div>'
    )


def way_sentence(plan: Plan) -> str:
    """What would make it fit for sure on the GPU in focus; empty where nothing is needed."""
    way = plan.way
    if way is None or (way.fits and not way.steps):
        return ""
    if not way.steps:
        return f"No change that is known here makes it smaller on {plan.gpu.name}."
    changes = ", then ".join(step.change for step in way.steps)
    peak = f"the peak is then {size(way.peak_bytes)}"
    if way.fits:
        return f"To fit on {plan.gpu.name} for sure: {changes}; {peak}."
    return f"It does not fit on {plan.gpu.name}, even with {changes}; {peak}."


Setting = str | int | float | bool | None


def differing(a: Scenario, b: Scenario) -> dict[str, tuple[Setting, Setting]]:
    """The settings in which two scenarios differ, by dotted names; two models are one setting."""
    names = model_name(a), model_name(b)
    ours, theirs = _settings(a), _settings(b)
    if names[0] == names[1]:
        ours, theirs = (
            {**_flat(s.architecture, "architecture"), **flat}
            for s, flat in ((a, ours), (b, theirs))
        )
    else:
        ours, theirs = ({"model": n, **flat} for n, flat in zip(names, (ours, theirs), strict=True))
    return differing_settings(ours, theirs)


def _settings(scenario: Scenario) -> dict[str, Setting]:
    """What is not the model itself; defaults are there too."""
    found = _flat(scenario, "")
    return {k: v for k, v in found.items() if not k.startswith(_OF_THE_MODEL)}


def _flat(value: object, name: str) -> dict[str, Setting]:
    """Nested settings by dotted names; one of a list of one has the list's name."""
    if is_dataclass(value):
        parts = [(f.name, getattr(value, f.name)) for f in fields(value)]
    elif isinstance(value, tuple) and not all(isinstance(v, str | int | float) for v in value):
        parts = [(str(place), v) for place, v in enumerate(value)] if len(value) > 1 else []
        if len(value) == 1:
            return _flat(value[0], name)
    else:
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else value
        assert isinstance(shown, str | int | float | bool | None), "a setting is plain"
        return {name: shown}
    found: dict[str, Setting] = {}
    for key, inner in parts:
        found |= _flat(inner, f"{name}.{key}" if name else key)
    return found
