"""Stores checked before a command starts something that takes long."""

from __future__ import annotations

import contextlib
import os

from vramscope.storage.engine import redacted, sqlite_path
from vramscope.storage.errors import StoreNotFound, StoreUnavailable
from vramscope.storage.reader import RunReader


def check_readable(url: str) -> None:
    """Raise a StorageError unless the store can be shown; one that is not there yet can."""
    with contextlib.suppress(StoreNotFound), RunReader(url):
        pass


def check_recordable(url: str) -> None:
    """Raise a StorageError unless runs can be recorded there; a new store is made later."""
    check_readable(url)
    path = sqlite_path(url)
    if path is None:
        return
    remedy = "Name another place with --db or VRAMSCOPE_DB."
    if not path.parent.is_dir():
        raise StoreUnavailable(redacted(url), f"there is no folder {path.parent}", remedy)
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise StoreUnavailable(redacted(url), f"{target} may not be written", remedy)
