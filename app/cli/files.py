"""Output files that are whole or not there."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from .errors import OutputNotWritable


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """A stream that becomes the file at ``path`` only when everything has been written.

    The text goes to a hidden file beside it, which is renamed at the end and removed on any
    error, Ctrl-C included; what stood at ``path`` before stays until then. ``None`` and ``-``
    are standard output; a device or a pipe is written to directly.

    Raises:
        OutputNotWritable: The folder is missing, or the system does not let us write.
    """
    if path is None or str(path) == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    target = path.expanduser().resolve()
    if not target.parent.is_dir():
        raise OutputNotWritable(
            f"Cannot write {path}: there is no folder {target.parent}. Make it, or name another "
            "file with --output."
        )
    try:
        if target.exists() and not target.is_file():
            if target.is_dir():
                raise IsADirectoryError(21, "this is a folder")
            with target.open("w", encoding="utf-8", errors="replace", newline="") as stream:
                yield stream
            return
        with _beside(target) as stream:
            yield stream
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        reason = error.strerror or str(error)
        raise OutputNotWritable(
            f"Cannot write {path}: {reason.lower()}. Nothing was left there; name another file "
            "with --output."
        ) from error


@contextmanager
def _beside(target: Path) -> Iterator[TextIO]:
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = os.open(part, flags, 0o666)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="replace", newline="") as stream:
            yield stream
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
