"""Opening a store to read it, beside whoever writes it, without leaving anything behind.

A SQLite file in WAL mode cannot simply be opened read-only. Tried with SQLite 3.40:

====================================  ==================================================
state of the files                    what is done
====================================  ==================================================
``-wal`` and ``-shm`` (live writer)   ``mode=ro``; ``immutable`` would not see the log
no ``-wal`` (closed cleanly)          ``immutable=1``, looked at again afterwards: ``ro``
                                      would make a ``-wal`` that locks the owner out
``-wal`` without ``-shm`` (crash)     the file's owner ``mode=ro``; others read a copy
not in WAL mode                       ``mode=ro``
====================================  ==================================================

Every read opens, fetches and closes: a read transaction left open would let the writer's log
grow without end, and a file that was deleted and made anew would not be noticed.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from .engine import postgres_engine, sqlite_path, to_json
from .errors import StoreNotFound, StoreUnavailable

_T = TypeVar("_T")
_Mode = Literal["ro", "immutable", "copy"]
_Signature = tuple[tuple[int, int, int, int] | None, ...]

_TRIES = 6
_BUSY_TIMEOUT_S = 2.0
_WAL_HEADER = 2  # byte 18 of the file: 1 is a rollback journal, 2 is WAL


class Source(Protocol):
    """Where a reader reads."""

    def read(self, work: Callable[[Connection], _T]) -> _T:
        """Call ``work`` with a connection that sees one state of the store."""
        ...

    def close(self) -> None:
        """Let go of what is kept open."""
        ...


def open_source(url: str) -> Source:
    """The source for a normalised URL; nothing is opened yet."""
    path = sqlite_path(url)
    return PostgresSource(url) if path is None else SqliteSource(path)


class PostgresSource:
    """Read-only transactions on a server."""

    def __init__(self, url: str) -> None:
        self._engine = postgres_engine(url, read_only=True)

    def read(self, work: Callable[[Connection], _T]) -> _T:
        """Call ``work`` in one read-only transaction."""
        with self._engine.connect() as connection:
            return work(connection)

    def close(self) -> None:
        """Close the pooled connections."""
        self._engine.dispose()


class SqliteSource:
    """Short read-only looks at one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wal = path.with_name(path.name + "-wal")
        self._shm = path.with_name(path.name + "-shm")
        self._engines: dict[str, Engine] = {}
        self._lock = threading.Lock()
        self._copy: tuple[_Signature, tempfile.TemporaryDirectory[str]] | None = None

    def read(self, work: Callable[[Connection], _T]) -> _T:
        """Call ``work`` on one state of the file; more than once if the file changes meanwhile.

        Raises:
            StoreNotFound: there is no such file.
            StoreUnavailable: the path cannot be read.
            sqlalchemy.exc.DBAPIError: what SQLite said.
        """
        for attempt in range(_TRIES):
            before = self._signature()
            mode = self._mode()
            try:
                result = self._read_once(mode, work)
            except DBAPIError:
                if attempt + 1 == _TRIES or self._signature() == before:
                    raise
            else:
                if mode != "immutable" or self._signature() == before:
                    return result
            time.sleep(0.01 * attempt)
        return self._read_once("ro", work)

    def close(self) -> None:
        """Remove a temporary copy, if one was needed."""
        with self._lock:
            copy, self._copy = self._copy, None
            for engine in self._engines.values():
                engine.dispose()
            self._engines.clear()
        if copy is not None:
            copy[1].cleanup()

    def _read_once(self, mode: _Mode, work: Callable[[Connection], _T]) -> _T:
        with self._engine(mode).connect() as connection:
            return work(connection)

    def _mode(self) -> _Mode:
        if self._wal.exists():
            if self._shm.exists() or self._may_make_shm():
                return "ro"
            return "copy"
        try:
            with self._path.open("rb") as file:
                header = file.read(20)
        except OSError as error:
            raise self._unreadable(error) from error
        return "immutable" if header[18:19] == bytes([_WAL_HEADER]) else "ro"

    def _may_make_shm(self) -> bool:
        owner = self._path.stat().st_uid == os.geteuid()
        return owner and os.access(self._path.parent, os.W_OK)

    def _engine(self, mode: _Mode) -> Engine:
        path = self._copied() if mode == "copy" else self._path
        option = "immutable=1" if mode == "immutable" else "mode=ro"
        uri = f"file:{quote(str(path))}?{option}"
        with self._lock:
            if uri not in self._engines:
                self._engines[uri] = _readonly_engine(uri)
            return self._engines[uri]

    def _copied(self) -> Path:
        """A copy of the file and its log: the log of a crash cannot be read in place."""
        with self._lock:
            signature = self._signature()
            if self._copy is None or self._copy[0] != signature:
                folder = tempfile.TemporaryDirectory(prefix="vramscope-")
                for source in (self._path, self._wal):
                    shutil.copy(source, folder.name)
                self._copy = (signature, folder)
            return Path(self._copy[1].name) / self._path.name

    def _signature(self) -> _Signature:
        try:
            status = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from error
        if self._path.is_dir():
            raise StoreUnavailable(
                str(self._path), "this is a folder", f"Name a file in it: {self._path}/vramscope.db"
            )
        return (_stamp(status), *(_stamp_of(path) for path in (self._wal, self._shm)))

    def _unreadable(self, error: OSError) -> StoreNotFound | StoreUnavailable:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return StoreNotFound(str(self._path))
        return StoreUnavailable(
            str(self._path), error.strerror or str(error), "Check that you may read it."
        )


def _readonly_engine(uri: str) -> Engine:
    engine = create_engine(
        "sqlite://", creator=partial(_open, uri), poolclass=NullPool, json_serializer=to_json
    )

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")  # one state of the store for all of a read's queries

    return engine


def _open(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA query_only=1")
    # Even a read-only connection would create the file of an ATTACH.
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _stamp_of(path: Path) -> tuple[int, int, int, int] | None:
    try:
        return _stamp(path.stat())
    except FileNotFoundError:
        return None
