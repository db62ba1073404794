"""What an export must not give away: home folders in paths, and what a spreadsheet would run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

Plain = str | int | float | bool | None

# A home as people's systems lay it out (/home/x, /Users/x, /nfs/home/x, /root), but neither a
# path of a web address nor a folder that merely starts like one.
_HOME = re.compile(
    r"(?<![\w.~-])(?<!:/)(?:/[\w.@-]+){0,3}/(?:home|Users)/[^/\s'\",:;]+"
    r"|(?<![\w.~/-])/root(?=$|[/\s'\",:;])"
    r"|(?<!\w)[A-Za-z]:\\Users\\[^\\\s'\",:;]+"
)
_RUNS_IN_A_SPREADSHEET = ("=", "+", "-", "@", "\t", "\r")


def shorten_homes(text: str) -> str:
    """Write ``~`` for every home folder in a text, whoever's it is."""
    own = str(Path.home())
    if len(own) > 1:
        text = re.sub(rf"{re.escape(own)}(?=$|[/\s'\",:;])", "~", text)
    return _HOME.sub("~", text)


def neutralise(text: str) -> str:
    """Put a quote before a text that a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(_RUNS_IN_A_SPREADSHEET) else text


def shareable(values: Mapping[str, Plain]) -> dict[str, Plain]:
    """Settings or environment as they leave the machine: homes shortened, finite numbers only.

    JSON has no word for NaN and infinity: they become the strings ``"nan"`` and ``"inf"``.
    """
    return {name: _shareable_value(value) for name, value in values.items()}


def shareable_tree(value: object) -> object:
    """The same for a nested mapping, such as a scenario."""
    if isinstance(value, Mapping):
        return {str(name): shareable_tree(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [shareable_tree(inner) for inner in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return _shareable_value(value)
    return shorten_homes(str(value))


def _shareable_value(value: Plain) -> Plain:
    if isinstance(value, str):
        return shorten_homes(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
