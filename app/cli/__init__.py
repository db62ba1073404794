"""The ``vramscope`` command: one module a sub-command, one place that prints errors and exits."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from vramscope.storage.errors import StorageError

from . import terminal
from .commands import app
from .errors import CommandError, Interrupted, exit_code_of

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process.

    Args:
        arguments: What follows the command's name; ``None`` takes ``sys.argv``.

    Raises:
        SystemExit: Always; the codes are in :mod:`.errors` and ``docs/cli.md``.
    """
    terminal.survive_odd_characters()
    _let_blocks_end_on_signals()
    try:
        app(args=None if arguments is None else list(arguments), prog_name="vramscope")
    except (CommandError, StorageError) as error:
        terminal.complain(str(error), mild=isinstance(error, Interrupted))
        sys.exit(exit_code_of(error))


def _let_blocks_end_on_signals() -> None:
    """End like Ctrl-C does when asked from outside: half-written files and children are tidied."""

    def leave(signum: int, frame: FrameType | None) -> None:
        sys.exit(128 + signum)

    if threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(kind) is not signal.SIG_IGN:  # as under nohup
                signal.signal(kind, leave)
