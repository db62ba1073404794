"""What can go wrong on the command line, each with an exit code of its own.

    Exception
    ├── CommandError                 1
    │   ├── OutputNotWritable       10
    │   ├── ScenarioNotUsable       11
    │   ├── PortTaken               12
    │   ├── ExtraMissing            13
    │   ├── ScriptNotFound          14
    │   ├── ProcessFailed           15
    │   └── Interrupted            130
    └── vramscope.storage.errors.StorageError, see ``EXIT_CODES``

Usage errors (an unknown option, a value that is no choice) are typer's own: exit code 2.
``vramscope run`` passes the exit code of the script on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from vramscope.storage import errors as store


class CommandError(Exception):
    """Something went wrong that one message can explain; printed without a traceback."""

    exit_code: ClassVar[int] = 1


class OutputNotWritable(CommandError):
    """The output file cannot be written."""

    exit_code = 10


class ScenarioNotUsable(CommandError):
    """A scenario or a model's config.json cannot be read, or asks for what does not exist."""

    exit_code = 11


class PortTaken(CommandError):
    """Nothing can listen on the port."""

    exit_code = 12


class ExtraMissing(CommandError):
    """A command needs packages that are not installed."""

    exit_code = 13


class ScriptNotFound(CommandError):
    """The script to run is not there."""

    exit_code = 14


class ProcessFailed(CommandError):
    """A process that the command started did not do its work."""

    exit_code = 15


class Interrupted(CommandError):
    """Ctrl-C."""

    exit_code = 130


EXIT_CODES: Mapping[type[store.StorageError], int] = {
    store.RunNotFound: 3,
    store.AmbiguousRun: 4,
    store.StoreNotFound: 5,
    store.StoreTooOld: 6,
    store.StoreTooNew: 7,
    store.NotAVramscopeStore: 8,
    store.StoreUnavailable: 9,
}
"""The store's errors; a kind that is not here has the code of its nearest base, at last 1."""


def exit_code_of(error: CommandError | store.StorageError) -> int:
    """The code with which the command ends after this error."""
    if isinstance(error, CommandError):
        return error.exit_code
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), 1)
