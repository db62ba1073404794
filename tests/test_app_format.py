"""Units, words, colours and escaping."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
from vramscope.app import format as rim
from vramscope.app.format import DARK, LIGHT, UNKNOWN, duration, md, percent, pl, plain, size
from vramscope.storage.records import MEMORY_LINES, MemoryClass, Phase, RunStatus

CONFIG = Path(__file__).resolve().parents[1] / "app" / ".streamlit" / "config.toml"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, UNKNOWN),
        (0, "0 B"),
        (512, "512 B"),
        (1024, "1.00 KiB"),
        (7_000_559_616 * 4, "26.08 GiB"),
        (7_000_559_616 * 2, "13.04 GiB"),
        (7_000_559_616, "6.52 GiB"),
        (7_000_559_616 // 2, "3.26 GiB"),
        (80 * 2**30, "80.00 GiB"),
        (141 * 2**30, "141.0 GiB"),
        (3 * 2**40, "3.00 TiB"),
        (-5 * 2**20, "−5.00 MiB"),
    ],
)
def test_sizes_are_binary_and_named(value: int | None, text: str) -> None:
    assert size(value) == text


def test_differences_have_a_sign_and_nothing_has_none() -> None:
    assert size(2**30, signed=True) == "+1.00 GiB"
    assert size(0, signed=True) == "0 B"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, UNKNOWN),
        (0.0123, "+1.2 %"),
        (-0.5, "−50.0 %"),
        (0.0001, "0.0 %"),
        (9.5, "+950 %"),
        (12.0, "> 999 %"),
        (-12.0, "< −999 %"),
    ],
)
def test_percentages(ratio: float | None, text: str) -> None:
    assert percent(ratio, signed=True) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, UNKNOWN),
        (31e-6, "31 µs"),
        (0.0125, "12.5 ms"),
        (3.24, "3.2 s"),
        (245, "4 min 05 s"),
        (2 * 3600 + 600, "2 h 10 min"),
        (3 * 86400, "3 d 0 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_markdown_of_a_name_is_escaped_to_the_last_sign() -> None:
    escaped = md("![x](http://evil/x.png) :red[a] $b$ <b> `c`\n# d")

    assert re.findall(r"(?<!\\)[!\[\]()$<>`:#*_]", escaped) == []
    assert "\n" not in escaped


def test_plotly_text_of_a_name_is_escaped_and_cut() -> None:
    assert pl("<b>x</b>") == "&lt;b&gt;x&lt;/b&gt;"
    assert len(pl("n" * 100)) == 40


def test_plain_text_has_no_control_or_direction_signs() -> None:
    assert plain("a\x00b\u202ec\r\nd") == "a b c d"


def test_every_line_of_the_books_has_a_label_and_a_sentence() -> None:
    for line in (*MEMORY_LINES, "cached"):
        assert rim.CLASS_LABELS[line]
        assert rim.CLASS_HELP[line].endswith(".")


def test_every_class_has_a_colour_of_its_own() -> None:
    named = (*(c.value for c in MemoryClass), "unattributed", "cached")

    assert len({rim.CLASS_COLOURS[name] for name in named}) == len(named)


def test_every_status_and_phase_has_words() -> None:
    assert set(rim.STATUS_LABELS) == set(rim.STATUS_HELP) == set(RunStatus)
    assert set(rim.PHASE_LABELS) == set(Phase)


def test_the_pages_theme_has_the_charts_colours() -> None:
    theme = tomllib.loads(CONFIG.read_text())["theme"]

    for name, palette in (("light", LIGHT), ("dark", DARK)):
        assert theme[name]["backgroundColor"] == palette.background
        assert theme[name]["secondaryBackgroundColor"] == palette.surface
        assert theme[name]["textColor"] == palette.text
    assert "base" not in theme, "the page follows the system's light or dark mode"


def test_a_themes_colours_are_no_class_colours() -> None:
    for palette in (LIGHT, DARK):
        assert not set(dataclasses.asdict(palette).values()) & set(rim.CLASS_COLOURS.values())
