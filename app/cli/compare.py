"""``vramscope compare``: two runs by class at their peaks and step ends, with a verdict."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from vramscope.storage.reader import RunReader
from vramscope.storage.records import MemoryUse

from ..format import PHASE_LABELS, setting
from ..overview import DeviceOverview, RunOverview, differences, overview
from ..reports.privacy import shareable
from ..reports.run_json import memory_mapping, run_mapping
from ..verdict import Setting, differing_settings, verdict
from . import options, terminal
from .books import add_books, largest_of
from .tables import Scale, add, say, table

EXAMPLES = (
    "vramscope compare demo-adamw demo-sgd-momentum",
    "vramscope compare 3f9a 81c0 --json",
)


def compare(
    a: options.RunA, b: options.RunB, db: options.Db = None, as_json: options.Json = False
) -> None:
    """Compare two runs by memory class, with a verdict.

    Each run is taken at its fullest device. The difference is B less A.
    """
    with RunReader(db) as reader:
        first, second = overview(reader, a), overview(reader, b)
    differing = differing_settings(first.run.settings, second.run.settings)
    peaks = _use(first, "peak_use"), _use(second, "peak_use")
    ends = _use(first, "end_use"), _use(second, "end_use")
    sentence = verdict(first.run.name, second.run.name, *peaks, differing)
    if as_json:
        terminal.print_json(_mapping(first, second, peaks, ends, differing, sentence))
        return
    console = terminal.out()
    say(console, sentence, "")
    for title, books, caption in (
        ("At the peak", peaks, f"{_peak_of('A', first)}; {_peak_of('B', second)}."),
        ("At the end of the last step", ends, ""),
    ):
        _books(console, title, (first, second), books, caption)
    _settings(console, differing)


def _use(found: RunOverview, which: str) -> MemoryUse:
    if found.fullest is None:
        return MemoryUse()
    use: MemoryUse = getattr(found.fullest, which)
    return use


def _books(
    console: Console,
    title: str,
    runs: tuple[RunOverview, RunOverview],
    books: tuple[MemoryUse, MemoryUse],
    caption: str,
) -> None:
    scale = Scale.of(largest_of(*books))
    names = [f"{letter}: {found.run.name[:30]}" for letter, found in zip("AB", runs, strict=True)]
    made = table(title, ("", *names, "B − A", "of A"), caption=f"{scale.caption}. {caption}")
    add_books(made, books, scale, difference=(1, 0))
    console.print(made)
    say(console, "")


def _peak_of(letter: str, found: RunOverview) -> str:
    device = found.fullest
    if device is None or device.peak is None:
        return f"{letter} has no step yet"
    phase = f", in {PHASE_LABELS[device.peak.peak_phase]}" if device.peak.peak_phase else ""
    return f"{letter}: {device.label}, step {device.peak.step:,}{phase}"


def _settings(console: Console, differing: Mapping[str, tuple[Setting, Setting]]) -> None:
    if not differing:
        say(console, "No recorded setting differs.")
        return
    made = table("Settings that differ", ("", "A", "B"), texts=3)
    for name, (before, after) in differing.items():
        add(made, name, setting(before), setting(after))
    console.print(made)


def _mapping(
    first: RunOverview,
    second: RunOverview,
    peaks: tuple[MemoryUse, MemoryUse],
    ends: tuple[MemoryUse, MemoryUse],
    differing: Mapping[str, tuple[Setting, Setting]],
    sentence: str,
) -> dict[str, object]:
    return {
        "verdict": sentence,
        "a": _run_mapping(first),
        "b": _run_mapping(second),
        "peak": _books_mapping(*peaks),
        "end": _books_mapping(*ends),
        "settings": {
            name: {"a": shareable({name: before})[name], "b": shareable({name: after})[name]}
            for name, (before, after) in differing.items()
        },
    }


def _run_mapping(found: RunOverview) -> dict[str, object]:
    device: DeviceOverview | None = found.fullest
    return {
        **run_mapping(found.run),
        "device": None if device is None else device.device.id,
        "peak_step": None if device is None or device.peak is None else device.peak.step,
        "last_step": None if device is None or device.last is None else device.last.step,
    }


def _books_mapping(a: MemoryUse, b: MemoryUse) -> dict[str, object]:
    return {
        "a": memory_mapping(a),
        "b": memory_mapping(b),
        "b_minus_a": dict(differences(b, a)),
    }
