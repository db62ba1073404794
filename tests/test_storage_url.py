"""The ways to name a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from vramscope.storage.engine import default_url, normalise_url, redacted, sqlite_path, to_json


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("VRAMSCOPE_DB", raising=False)
    return tmp_path


def test_the_default_is_a_file_here(folder: Path) -> None:
    assert default_url() == f"sqlite:///{folder}/vramscope.db"


def test_the_environment_names_the_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMSCOPE_DB", "other.db")
    assert default_url() == f"sqlite:///{folder}/other.db"
    monkeypatch.setenv("VRAMSCOPE_DB", "postgresql://h/x")
    assert default_url() == "postgresql+psycopg://h/x"
    monkeypatch.setenv("VRAMSCOPE_DB", "")
    assert default_url() == f"sqlite:///{folder}/vramscope.db"


@pytest.mark.parametrize(
    ("given", "file"),
    [
        ("runs.db", "runs.db"),
        (Path("sub/runs.db"), "sub/runs.db"),
        ("~/runs.db", "home/runs.db"),
        ("sqlite:///runs.db", "runs.db"),
        ("sqlite+pysqlite:///runs.db", "runs.db"),
        ("a b #1.db", "a b #1.db"),
        ("50%.db", "50%.db"),
    ],
)
def test_a_path_is_a_sqlite_file(folder: Path, given: str | Path, file: str) -> None:
    url = normalise_url(given)
    assert url.startswith("sqlite:////")
    assert sqlite_path(url) == folder / file
    assert normalise_url(url) == url
    assert redacted(url) == str(folder / file)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgres_goes_through_psycopg_3(scheme: str) -> None:
    url = normalise_url(f"{scheme}://me:p%40ss@db:5433/runs?sslmode=require")
    assert url == "postgresql+psycopg://me:p%40ss@db:5433/runs?sslmode=require"
    assert sqlite_path(url) is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@db/runs", "postgresql://me:***@db/runs"),
        ("postgresql://db/runs", "postgresql://db/runs"),
        ("/data/runs.db", "/data/runs.db"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db/runs?user=me&password=hunter2",
        "postgresql://me:hunter2@db:port/runs",
        "weird://me:hunter2@",
    ],
)
def test_a_password_in_an_odd_place_is_not_shown_either(url: str) -> None:
    assert "hunter2" not in redacted(url)


def test_json_is_what_every_database_takes() -> None:
    nested = {"a": float("inf"), "b": ("x\0", {"c": Path("/p")}), 3: None, "d": True}
    assert to_json(nested) == ('{"a": "inf", "b": ["x\\ufffd", {"c": "/p"}], "3": null, "d": true}')
    assert to_json("\ud800") == '"?"'
