"""The export command: formats, files that are whole or not there, progress."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vramscope.app.cli import files, terminal
from vramscope.app.cli.errors import OutputNotWritable

RUN = "3f2a9c01b7d4"


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ((), '{"format": "vramscope-run"'),
        (("--format", "json"), '{"format": "vramscope-run"'),
        (("--format", "csv"), "step,device,"),
        (("--format", "html"), "<!doctype html>"),
    ],
)
def test_without_a_file_it_prints_only_the_export(
    arguments: tuple[str, ...],
    start: str,
    recorded: Callable[..., Path],
    vramscope: Callable[..., Any],
) -> None:
    shown = vramscope("export", RUN, *arguments, "--db", recorded(steps=3))
    assert shown.code == 0
    assert shown.out.startswith(start)
    assert shown.err == ""


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("run.csv", "step,device,"),
        ("run.HTML", "<!doctype html>"),
        ("run.htm", "<!doctype html>"),
        ("run.json", '{"format"'),
        ("run", '{"format"'),
    ],
)
def test_the_files_ending_says_the_format(
    name: str,
    start: str,
    recorded: Callable[..., Path],
    vramscope: Callable[..., Any],
    tmp_path: Path,
) -> None:
    target = tmp_path / "out" / name
    target.parent.mkdir()
    shown = vramscope("export", RUN, "-o", target, "--db", recorded(steps=3))
    assert (shown.code, shown.out) == (0, "")
    assert str(target) in shown.err
    assert target.read_text(encoding="utf-8").startswith(start)
    assert os.listdir(target.parent) == [name]


def test_the_same_run_exports_to_the_same_bytes(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(steps=30)
    for kind in ("json", "csv", "html"):
        first = vramscope("export", RUN, "--format", kind, "--db", store).out
        assert vramscope("export", RUN, "--format", kind, "--db", store).out == first


def test_a_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with files.open_output(tmp_path / "x") as stream:
            stream.write("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    target.write_text("old")

    def interrupted() -> None:
        with files.open_output(target) as stream:
            stream.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with files.open_output(tmp_path / "link") as stream:
        stream.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_device_is_written_to_directly() -> None:
    with files.open_output(Path("/dev/null")) as stream:
        stream.write("x")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("place", ["missing/x.json", "."])
def test_a_place_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    with pytest.raises(OutputNotWritable, match="--output"), files.open_output(tmp_path / place):
        pytest.fail("nothing can be written there")


def test_a_full_disk_is_one_message(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    shown = vramscope("export", RUN, "-o", "/dev/full", "--db", recorded(steps=3))
    assert shown.code == 10
    assert "no space left on device" in shown.err


def test_a_name_that_is_no_text_does_not_break_an_export(
    recorded: Callable[..., Path], vramscope: Callable[..., Any], tmp_path: Path
) -> None:
    store = recorded(steps=1, settings={"file": "caf\udce9", "emoji": "🦙"})
    for kind in ("json", "html"):
        target = tmp_path / f"x.{kind}"
        assert vramscope("export", RUN, "-o", target, "--db", store).code == 0
        assert "🦙" in target.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_stopping_an_export_leaves_no_half_file(
    kind: signal.Signals, recorded: Callable[..., Path], tmp_path: Path
) -> None:
    store = recorded(steps=40)
    folder = tmp_path / "out"
    folder.mkdir()
    slow = (
        "import sys, time\n"
        "from vramscope.app.cli import export, main\n"
        "def pieces(*arguments):\n"
        "    for _ in range(400):\n"
        "        yield 'x'\n"
        "        time.sleep(0.05)\n"
        "export.json_export = lambda *a, **k: pieces()\n"
        f"main(['export', '{RUN}', '-o', '{folder / 'x.json'}', '--db', '{store}'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", slow], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not os.listdir(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert os.listdir(folder), "the export has begun"
    process.send_signal(kind)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + kind
    assert "Traceback" not in said
    assert os.listdir(folder) == []


class Terminal:
    """A stream that says that it is a terminal."""

    def __init__(self, answer: bool) -> None:
        self.answer, self.written = answer, ""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return self.answer

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("out", "err", "wanted", "bar"),
    [
        (True, True, True, True),
        (False, True, True, False),
        (True, False, True, False),
        (True, True, False, False),
    ],
)
def test_a_bar_shows_only_where_nothing_else_is_printed(
    out: bool, err: bool, wanted: bool, bar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    standard, error = Terminal(out), Terminal(err)
    monkeypatch.setattr(sys, "stdout", standard)
    monkeypatch.setattr(sys, "stderr", error)
    with terminal.progress("Exporting steps", 10, show=wanted) as done:
        done(5)
    assert standard.written == ""
    assert ("Exporting steps" in error.written) == bar


def test_an_html_report_is_not_poured_into_a_terminal(
    recorded: Callable[..., Path],
    vramscope: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = recorded(steps=1)
    monkeypatch.setattr("vramscope.app.cli.export._is_terminal", lambda: True)
    shown = vramscope("export", RUN, "--format", "html", "--db", store)
    assert shown.code == 2
    assert "-o" in shown.err


def test_without_plotly_the_extra_is_named(
    recorded: Callable[..., Path],
    vramscope: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from vramscope.app.reports import html_page

    html_page._plotly.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly", None)
    shown = vramscope("export", RUN, "-o", tmp_path / "x.html", "--db", recorded(steps=1))
    assert shown.code == 13
    assert "pip install '.[dashboard]'" in shown.err
    assert not (tmp_path / "x.html").exists()
    assert vramscope("export", RUN, "--db", tmp_path / "runs.db").code == 0
    json.loads(vramscope("export", RUN, "--db", tmp_path / "runs.db").out)
