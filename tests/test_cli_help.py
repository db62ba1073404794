"""Every command: help, an example, a section in the document. Taken from the command itself."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from vramscope.app.cli import errors
from vramscope.app.cli.commands import app
from vramscope.storage import errors as store_errors

DOCS = Path(__file__).parents[1] / "docs" / "cli.md"
EXPECTED = {
    "demo",
    "run",
    "ui",
    "runs",
    "show",
    "predict",
    "plan",
    "compare",
    "export",
    "db upgrade",
    "db status",
}


def all_commands() -> dict[str, Any]:
    root: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            found |= {f"{name} {inner}": each for inner, each in command.commands.items()}
        else:
            found[name] = command
    return found


COMMANDS = all_commands()


def section(name: str) -> str:
    text = DOCS.read_text(encoding="utf-8")
    assert f"\n## {name}\n" in text, f"docs/cli.md has no section {name!r}"
    return text.split(f"\n## {name}\n")[1].split("\n## ")[0]


def examples_of(command: Any) -> list[str]:
    lines = command.epilog.replace("\\[", "[").splitlines()
    assert lines[0] == "Examples"
    return [line.strip() for line in lines[1:]]


def test_the_commands_are_those_that_are_promised() -> None:
    assert set(COMMANDS) == EXPECTED


@pytest.mark.parametrize("name", COMMANDS)
def test_help_reads_well(name: str, vramscope: Callable[..., Any]) -> None:
    shown = vramscope(*name.split(), "--help")
    assert shown.code == 0
    summary = COMMANDS[name].help.split("\n\n")[0]
    assert summary.endswith(".")
    assert len(summary) <= 72
    assert re.sub(r"\s+", " ", summary) in re.sub(r"\s+", " ", shown.out)
    assert "Examples" in shown.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_documented_and_can_be_parsed(name: str) -> None:
    documented = section(name)
    for example in examples_of(COMMANDS[name]):
        assert example in documented
        words = shlex.split(re.split(r" [|>] ", example)[0])
        words = words[words.index("vramscope") + 1 + len(name.split()) :]
        COMMANDS[name].make_context(name, words).close()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_sentence(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if parameter.name != "help":
            assert (parameter.help or "").endswith("."), parameter.name


@pytest.mark.parametrize("name", sorted(EXPECTED - {"demo", "run", "ui", "export"}))
def test_commands_with_figures_print_json(name: str) -> None:
    assert any("--json" in parameter.opts for parameter in COMMANDS[name].params)


@pytest.mark.parametrize("name", sorted(EXPECTED - {"predict", "plan"}))
def test_commands_on_a_store_take_its_url(name: str) -> None:
    assert any("--db" in parameter.opts for parameter in COMMANDS[name].params)


def test_the_version_is_the_packages(vramscope: Callable[..., Any]) -> None:
    shown = vramscope("--version")
    assert shown.code == 0
    assert re.fullmatch(r"vramscope \d+\.\d+\.\d+\S*\n", shown.out)


def test_no_command_is_help(vramscope: Callable[..., Any]) -> None:
    assert "Commands" in vramscope().out


def error_classes(root: type[Exception]) -> list[type[Exception]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in error_classes(child))]


def test_every_error_has_an_exit_code_of_its_own_that_is_documented() -> None:
    codes = {kind: kind.exit_code for kind in error_classes(errors.CommandError)}
    codes |= dict(errors.EXIT_CODES)
    assert len(set(codes.values())) == len(codes)
    assert not {0, 2} & set(codes.values())
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.M)}
    assert set(codes.values()) | {0, 2, 143} == documented


def test_every_error_of_the_store_has_an_exit_code() -> None:
    groups = {store_errors.StorageError, store_errors.RunLookupError}
    public = {
        kind
        for kind in error_classes(store_errors.StorageError)
        if kind.__module__ == store_errors.__name__
    }
    assert public - groups == set(errors.EXIT_CODES)


def test_the_command_line_needs_neither_torch_nor_the_dashboards_packages() -> None:
    code = (
        "import sys, vramscope.app.cli, vramscope.app.reports;"
        "print(sorted({'torch', 'streamlit', 'pandas', 'plotly', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
