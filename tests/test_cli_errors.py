"""Bad input: one clear message on standard error, an exit code of its own, no traceback."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vramscope.app.cli import errors
from vramscope.storage import schema

RUN = "3f2a9c01b7d4"


def assert_refused(shown: Any, code: int, *words: str) -> None:
    assert shown.code == code
    assert shown.out == ""
    assert shown.err.startswith("vramscope: error: ")
    assert shown.err.count("vramscope: error: ") == 1
    assert "Traceback" not in shown.err
    for word in words:
        assert word in shown.err


COMMANDS_ON_A_RUN = (("show",), ("export",), ("compare", RUN))


@pytest.mark.parametrize("command", COMMANDS_ON_A_RUN)
def test_an_unknown_run_names_near_ones(
    command: tuple[str, ...], recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(name="llama-7b", steps=1)
    assert_refused(vramscope(*command, "lama-7b", "--db", store), 3, "lama-7b", "llama-7b")


@pytest.mark.parametrize("command", COMMANDS_ON_A_RUN)
def test_an_ambiguous_start_names_the_candidates(
    command: tuple[str, ...], recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    recorded(steps=1)
    recorded(id="aa1111111111", steps=0)
    store = recorded(id="aa1122222222", steps=0)
    shown = vramscope(*command, "aa11", "--db", store)
    assert_refused(shown, 4, "aa1111111111", "aa1122222222")


ALL_READERS = (("runs",), ("show", RUN), ("compare", RUN, RUN), ("export", RUN), ("db", "status"))


@pytest.mark.parametrize("command", [*ALL_READERS, ("db", "upgrade")])
def test_a_store_that_is_not_there(
    command: tuple[str, ...], tmp_path: Path, vramscope: Callable[..., Any]
) -> None:
    store = tmp_path / "none.db"
    assert_refused(vramscope(*command, "--db", store), 5, str(store), "vramscope demo")
    assert not store.exists()


@pytest.mark.parametrize("command", [*ALL_READERS, ("db", "upgrade"), ("demo",), ("ui",)])
@pytest.mark.parametrize("content", ["text", "database"])
def test_a_file_of_somebody_else_is_left_as_it_is(
    command: tuple[str, ...], content: str, tmp_path: Path, vramscope: Callable[..., Any]
) -> None:
    store = tmp_path / "theirs.db"
    if content == "text":
        store.write_text("not a database, but long enough to have a header of its own\n" * 20)
    else:
        with sqlite3.connect(store) as connection:
            connection.execute("CREATE TABLE invoices (id INTEGER)")
        connection.close()
    before = store.read_bytes()
    assert_refused(vramscope(*command, "--db", store), 8, str(store))
    assert store.read_bytes() == before
    assert os.listdir(tmp_path) == ["theirs.db"]


@pytest.mark.parametrize("command", [*ALL_READERS, ("db", "upgrade"), ("demo",), ("ui",)])
@pytest.mark.parametrize("url", ["mysql://ada:secret@host/db", "postgresql://ada:secret@:x/db"])
def test_a_wrong_url_is_named_without_its_password(
    command: tuple[str, ...], url: str, vramscope: Callable[..., Any]
) -> None:
    shown = vramscope(*command, "--db", url)
    assert_refused(shown, 9)
    assert "secret" not in shown.err


def other_schema(store: Path, revision: str) -> None:
    with sqlite3.connect(store) as connection:
        connection.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = ?", (revision,))
    connection.close()


@pytest.mark.parametrize("command", [*ALL_READERS, ("demo",), ("ui",)])
def test_a_store_from_the_future(
    command: tuple[str, ...], recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(steps=1)
    other_schema(store, "9999")
    shown = vramscope(*command, "--db", store)
    assert_refused(shown, 7, "9999", "newer vramscope")


def test_an_old_store_names_the_upgrade(
    recorded: Callable[..., Path],
    vramscope: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = recorded(steps=1)
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9999"))
    assert_refused(vramscope("runs", "--db", store), 6, "vramscope db upgrade")
    shown = vramscope("db", "status", "--db", store, "--json")
    assert shown.code == 6
    assert json.loads(shown.out)["state"] == "too_old"


def test_db_status_and_upgrade_of_a_current_store(
    recorded: Callable[..., Path], vramscope: Callable[..., Any]
) -> None:
    store = recorded(steps=1)
    assert "1 run," in vramscope("db", "status", "--db", store).out
    document = json.loads(vramscope("db", "status", "--db", store, "--json").out)
    assert document["state"] == "current"
    assert document["size_bytes"] == store.stat().st_size
    assert "up to date" in vramscope("db", "upgrade", "--db", store).out
    document = json.loads(vramscope("db", "upgrade", "--db", store, "--json").out)
    assert document["from"] == document["to"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("show", RUN, "--bogus"),
        ("bogus",),
        ("export", RUN, "--format", "xml"),
        ("runs", "--status", "asleep"),
        ("runs", "--limit", "0"),
        ("predict",),
        ("predict", "a.yaml", "--zero-stage", "4"),
        ("demo", "--port", "70000"),
        ("run",),
        ("run", "--bogus", "train.py"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_a_hint(
    arguments: tuple[str, ...], vramscope: Callable[..., Any]
) -> None:
    shown = vramscope(*arguments)
    assert shown.code == 2
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert "Usage" in shown.err


def test_the_environment_names_the_store(
    recorded: Callable[..., Path],
    vramscope: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VRAMSCOPE_DB", str(recorded(steps=1)))
    assert RUN in vramscope("runs").out


def test_ctrl_c_is_one_line_and_130(
    recorded: Callable[..., Path],
    vramscope: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pressed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vramscope.app.cli.runs.RunReader", pressed)
    shown = vramscope("runs", "--db", recorded(steps=0))
    assert (shown.code, shown.out, shown.err) == (130, "", "vramscope: Interrupted.\n")


def test_an_error_knows_the_code_of_its_nearest_base() -> None:
    class Special(errors.store.RunNotFound):
        pass

    assert errors.exit_code_of(Special("x")) == errors.EXIT_CODES[errors.store.RunNotFound]
    assert errors.exit_code_of(errors.store.StorageError("x")) == 1
