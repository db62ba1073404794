"""What a database's error means for a person. Decided by result codes, never by an error's text."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError

from .errors import NotAVramscopeStore, StorageError, StoreUnavailable

START_TIMEOUT_S = 30.0
"""How long a process waits for others that set up the same store at the same moment."""

_T = TypeVar("_T")

_SQLITE_REASONS: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: (
        "the database is locked by another process",
        "Close what keeps it locked.",
    ),
    sqlite3.SQLITE_LOCKED: (
        "the database is locked by another process",
        "Close what keeps it locked.",
    ),
    sqlite3.SQLITE_FULL: ("the disk is full", "Free some space, or name a store elsewhere."),
    sqlite3.SQLITE_IOERR: (
        "the disk reported an error",
        "Check the disk and its quota; a store must lie on a local file system.",
    ),
    sqlite3.SQLITE_READONLY: ("it may not be written", "Check its owner and permissions."),
    sqlite3.SQLITE_PERM: ("it may not be written", "Check its owner and permissions."),
    sqlite3.SQLITE_CANTOPEN: (
        "the file cannot be opened",
        "Check that its folder exists and that you may write there.",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "the file is damaged",
        "Restore a copy, or record into a new file.",
    ),
}


class StoreGone(StoreUnavailable):
    """What this process wrote to is not there any more; nothing will bring it back."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason, "Start the training again to record it.")


def sqlite_code(error: BaseException) -> int | None:
    """SQLite's primary result code behind an exception, if there is one."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def is_busy(error: BaseException) -> bool:
    """Somebody else holds the lock; the same call may succeed a moment later."""
    return sqlite_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_outage(error: BaseException) -> bool:
    """The store, not the record, is at fault: the same rows may be taken later."""
    if isinstance(error, StorageError | OperationalError | DisconnectionError | OSError):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return sqlite_code(error) in _SQLITE_REASONS


def explain(error: BaseException) -> tuple[str, str]:
    """Reason and remedy, each a phrase for a person."""
    if isinstance(error, StoreUnavailable):
        return error.reason, error.remedy
    code = sqlite_code(error)
    if code in _SQLITE_REASONS:
        return _SQLITE_REASONS[code]
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    reason = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    return reason, "Check that the server runs, that its address is right and that you may log in."


def opening_error(error: BaseException, where: str) -> StorageError:
    """The error of our tree for a store that could not be opened or read."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, OSError):
        return StoreUnavailable(
            where,
            error.strerror or str(error),
            "Check that its folder exists and that you may write there.",
        )
    if sqlite_code(error) == sqlite3.SQLITE_NOTADB:
        return NotAVramscopeStore(where, "it is not a SQLite database")
    reason, remedy = explain(error)
    return StoreUnavailable(where, reason, remedy)


def retry_busy(attempt: Callable[[], _T], *, timeout_s: float = START_TIMEOUT_S) -> _T:
    """Call until the database is not locked; SQLite's own timeout does not cover every lock.

    (Switching the journal mode fails at once when another process is doing the same.)
    """
    deadline = time.monotonic() + timeout_s
    pause_s = 0.005
    while True:
        try:
            return attempt()
        except (DBAPIError, sqlite3.OperationalError) as error:
            if not is_busy(error) or time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)
