"""The two streams: what is printed, how wide, and when a progress bar may show."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_WIDTH_OF_A_FILE = 160


def out() -> Console:
    """The console of standard output, for what was asked for."""
    return _console(sys.stdout)


def err() -> Console:
    """The console of standard error, for what is said beside it."""
    return _console(sys.stderr)


def print_json(value: object) -> None:
    """Print one JSON document: bytes as whole numbers, unknown as null."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2))


def complain(message: str, *, mild: bool = False) -> None:
    """Print an error, once, the same way everywhere; a mild one is no fault of anybody."""
    console = err()
    head = "vramscope:" if mild else "[bold red]vramscope: error:[/]"
    console.print(head, end=" ", markup=True)
    console.print(message, soft_wrap=True)


def survive_odd_characters() -> None:
    """Let a name that the terminal's encoding does not have be printed as ``?``."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


@contextmanager
def progress(label: str, total: int | None, *, show: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, or none.

    Args:
        label: What is being done.
        total: How many parts there are; ``None`` when not known.
        show: Whether the caller's output leaves the terminal free for it. A bar shows only
            when both streams are terminals.

    Yields:
        A function that takes how many parts are done.
    """
    if not (show and sys.stdout.isatty() and sys.stderr.isatty()):
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err(), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


def _console(stream: TextIO) -> Console:
    """A console that shows strings from a run as they are: no markup, no emoji codes."""
    width = None if stream.isatty() else _WIDTH_OF_A_FILE
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
