"""What differs between two runs, in one sentence: pure, for every place that compares."""

from __future__ import annotations

from collections.abc import Mapping

from vramscope.storage.records import MEMORY_LINES, MemoryUse

from .format import CLASS_LABELS, UNKNOWN, percent, size

Setting = str | int | float | bool | None

_SAME_WITHIN = 0.001
_WORTH_NAMING = 0.1
_MOST_SETTINGS = 3
_HOLD_NOTHING = frozenset({"lr", "weight_decay"})
"""Settings that hold no memory: named last, if there is room."""
_PARTS = tuple(line for line in MEMORY_LINES if line not in ("allocated", "reserved"))


def verdict(
    a_name: str,
    b_name: str,
    a: MemoryUse,
    b: MemoryUse,
    differing: Mapping[str, tuple[Setting, Setting]],
) -> str:
    """Say which of two runs needs less at its peak, through which classes, with which settings.

    Args:
        a_name: Name of the first run, as its owner wrote it (escape the sentence for HTML or
            Markdown, not the name).
        b_name: Name of the second run.
        a: Books of the first run at its peak, in bytes.
        b: Books of the second run at its peak, in bytes.
        differing: The settings that are not equal, each with both values.

    Returns:
        One sentence that ends with a full stop. Unknown peaks are said to be unknown.
    """
    unknown = [name for name, use in ((a_name, a), (b_name, b)) if use.allocated is None]
    if a.allocated is None or b.allocated is None:
        return f"No verdict: the peak of {' and of '.join(unknown)} is unknown."
    difference = b.allocated - a.allocated
    if abs(difference) <= _SAME_WITHIN * max(a.allocated, b.allocated):
        head = f"{a_name} and {b_name} peak at the same {size(max(a.allocated, b.allocated))}"
    else:
        head = _difference_clause(a_name, b_name, a.allocated, difference) + _causes(
            a, b, difference
        )
    return f"{head}{_cached_clause(b_name, a, b)}; {_settings_clause(differing)}."


def differing_settings(
    a: Mapping[str, Setting], b: Mapping[str, Setting]
) -> dict[str, tuple[Setting, Setting]]:
    """The settings of two runs that are not equal, in the order of the first run.

    A setting that only one run has is paired with ``None``.
    """
    names = [*a, *(name for name in b if name not in a)]
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def _difference_clause(a_name: str, b_name: str, a_allocated: int, difference: int) -> str:
    word = "lower" if difference < 0 else "higher"
    share = f" ({percent(abs(difference) / a_allocated)})" if a_allocated else ""
    return f"{b_name} peaks {size(abs(difference))}{share} {word} than {a_name}"


def _causes(a: MemoryUse, b: MemoryUse, difference: int) -> str:
    """The classes that make most of the difference, and the one that works against it."""
    changes = {
        line: (getattr(b, line) or 0) - (getattr(a, line) or 0)
        for line in _PARTS
        if getattr(a, line) is not None or getattr(b, line) is not None
    }
    worth = {
        line: change
        for line, change in changes.items()
        if abs(change) >= _WORTH_NAMING * abs(difference)
    }
    ranked = sorted(worth, key=lambda line: -abs(worth[line]))
    along = [line for line in ranked if worth[line] * difference > 0][:2]
    against = [line for line in ranked if worth[line] * difference < 0][:1]
    text = ""
    if along:
        parts = [f"{_label(line)} ({size(worth[line], signed=True)})" for line in along]
        text += f", mostly in {' and '.join(parts)}"
    if against:
        text += f", against {_label(against[0])} ({size(worth[against[0]], signed=True)})"
    return text


def _cached_clause(b_name: str, a: MemoryUse, b: MemoryUse) -> str:
    """What the allocator keeps free, where that differs by much: no class can explain it."""
    if a.cached is None or b.cached is None:
        return ""
    more = b.cached - a.cached
    if abs(more) < _WORTH_NAMING * max(a.reserved or 0, b.reserved or 0):
        return ""
    word = "more" if more > 0 else "less"
    return f"; the allocator of {b_name} keeps {size(abs(more))} {word} that is free"


def _settings_clause(differing: Mapping[str, tuple[Setting, Setting]]) -> str:
    if not differing:
        return "no recorded setting differs"
    telling = sorted(differing, key=lambda name: name in _HOLD_NOTHING)[:_MOST_SETTINGS]
    shown = [
        f"{name} {_value(before)} → {_value(after)}"
        for name, (before, after) in ((name, differing[name]) for name in telling)
    ]
    rest = len(differing) - len(shown)
    more = f" and {rest} more" if rest else ""
    noun = "setting that differs is" if len(differing) == 1 else "settings that differ are"
    return f"the {noun} {', '.join(shown)}{more}"


def _value(value: Setting) -> str:
    return UNKNOWN if value is None else str(value)


def _label(line: str) -> str:
    label = CLASS_LABELS[line]
    return label if label[:2].isupper() else label.lower()
