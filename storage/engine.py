"""Where a store is, and how a writer connects to it.

Two dialects: SQLite (one file, one host) and PostgreSQL (several hosts). Reading a SQLite
file safely beside a live writer has rules of its own: see ``readonly.py``.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from .errors import StoreUnavailable

ENVIRONMENT_VARIABLE = "VRAMSCOPE_DB"
DEFAULT_FILE = "vramscope.db"
BUSY_TIMEOUT_MS = 5000
CONNECT_TIMEOUT_S = 5

_POSTGRES_NAMES = frozenset({"postgres", "postgresql", "postgresql+psycopg"})
_SQLITE_NAMES = frozenset({"sqlite", "sqlite+pysqlite"})
_URL_HELP = (
    "Give the path of a file, sqlite:///path/to/file.db, or postgresql://user:password@host/name."
)


def default_url() -> str:
    """URL of ``$VRAMSCOPE_DB`` (a URL or a path), else of ``vramscope.db`` in this folder."""
    return normalise_url(None)


def normalise_url(url_or_path: str | Path | None) -> str:
    """One spelling for every way to name a store.

    Args:
        url_or_path: a path (made absolute, ``~`` expanded), a ``sqlite:///`` or a
            ``postgresql://`` URL, or ``None`` for the default.

    Returns:
        A ``sqlite:////absolute/path`` or ``postgresql+psycopg://`` URL, password included:
        show it through :func:`redacted` only.

    Raises:
        StoreUnavailable: for any other kind of URL.
    """
    text = str(url_or_path or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_FILE)
    if "://" not in text:
        if text.split(":", 1)[0] in _SQLITE_NAMES | _POSTGRES_NAMES and ":" in text:
            raise StoreUnavailable(text, "this is not a URL", _URL_HELP)
        return _sqlite_url(text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise StoreUnavailable(redacted(text), "this is not a URL", _URL_HELP) from error
    if url.drivername in _SQLITE_NAMES:
        if not url.database or url.database == ":memory:":
            raise StoreUnavailable(text, "a store in memory dies with its process", _URL_HELP)
        return _sqlite_url(url.database)
    if url.drivername in _POSTGRES_NAMES:
        return url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    raise StoreUnavailable(
        redacted(text), f"{url.drivername!r} is neither sqlite nor postgresql", _URL_HELP
    )


def redacted(url: str | Path | URL) -> str:
    """The URL without its password, as it may be shown; a SQLite URL as a plain path."""
    text = str(url) if not isinstance(url, URL) else url.render_as_string(hide_password=False)
    if "://" not in text:
        return text
    try:
        parsed = make_url(text)
    except (ArgumentError, ValueError):
        scheme, rest = text.split("://", 1)
        return f"{scheme}://{rest.rpartition('@')[2]}"
    if parsed.drivername in _SQLITE_NAMES and parsed.database:
        return parsed.database
    if "password" in parsed.query:
        parsed = parsed.update_query_dict({"password": "***"})
    return parsed.render_as_string(hide_password=True)


def sqlite_path(url: str) -> Path | None:
    """The file of a normalised SQLite URL; ``None`` for a server."""
    parsed = make_url(url)
    if parsed.drivername in _SQLITE_NAMES and parsed.database:
        return Path(parsed.database)
    return None


def writer_engine(url: str) -> Engine:
    """An engine whose transactions take the write lock when they begin.

    On SQLite the busy timeout comes first and the journal mode is left to :func:`enable_wal`:
    another program's database must not be turned into a WAL file by looking at it.
    """
    if sqlite_path(url) is None:
        return postgres_engine(url)
    engine = create_engine(url, poolclass=NullPool, json_serializer=to_json)

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def postgres_engine(url: str, *, read_only: bool = False) -> Engine:
    """An engine for a PostgreSQL store.

    Raises:
        StoreUnavailable: psycopg is not installed.
    """
    arguments: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S}
    options: dict[str, Any] = {}
    if read_only:
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    try:
        return create_engine(
            url,
            json_serializer=to_json,
            pool_pre_ping=True,
            pool_size=2,
            connect_args={**arguments, "application_name": "vramscope"},
            execution_options=options,
        )
    except ImportError as error:
        raise StoreUnavailable(
            redacted(url),
            "the PostgreSQL driver is not installed",
            "Install it with `pip install 'vramscope[postgres]'`.",
        ) from error
    except (ArgumentError, ValueError) as error:
        raise StoreUnavailable(redacted(url), "this is not a URL", _URL_HELP) from error


def enable_wal(connection: sqlite3.Connection) -> None:
    """Let readers read while this connection writes (outside any transaction)."""
    connection.execute("PRAGMA journal_mode=WAL").fetchall()


def to_json(value: object) -> str:
    """JSON that every database takes: no NaN, no NUL, no lone surrogate, unknown types as text."""
    return json.dumps(_plain(value), allow_nan=False)


def clean_text(text: str) -> str:
    """Text that every database takes: lone surrogates and NUL replaced."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "�")


def _sqlite_url(path: str) -> str:
    absolute = Path(path).expanduser().absolute()
    return URL.create("sqlite", database=str(absolute)).render_as_string(hide_password=False)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return clean_text(str(value))
