"""What can go wrong with a store. Every message says what, which value, and what to do.

StorageError
├── StoreNotFound         nothing is stored there yet
├── StoreTooOld           written by an older vramscope; ``vramscope db upgrade`` mends it
├── StoreTooNew           written by a newer vramscope
├── NotAVramscopeStore    a file or database that belongs to something else
├── StoreUnavailable      a wrong URL, an unreachable server, no permission
└── RunLookupError        the store is fine, the run asked for is not
    ├── RunNotFound
    └── AmbiguousRun
"""

from __future__ import annotations

from collections.abc import Sequence


class StorageError(Exception):
    """Root of every error that this package raises at run time."""


class StoreNotFound(StorageError):
    """Nothing is stored at the place asked for."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(
            f"There is no vramscope store at {where} yet. Record a first run with "
            "`vramscope demo` or `vramscope run train.py`, or name another store "
            "with --db or VRAMSCOPE_DB."
        )


class StoreTooOld(StorageError):
    """The store's schema is older than this version of vramscope."""

    def __init__(self, where: str, found: str | None, expected: str) -> None:
        self.where, self.found, self.expected = where, found, expected
        super().__init__(
            f"The store at {where} has schema {found or 'none'}, this vramscope needs {expected}. "
            "Stop what writes to it, keep a copy, and run `vramscope db upgrade`."
        )


class StoreTooNew(StorageError):
    """The store's schema is from a later version of vramscope."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        self.where, self.found, self.expected = where, found, expected
        super().__init__(
            f"The store at {where} has schema {found}, this vramscope knows only up to {expected}. "
            "Install a newer vramscope: `pip install --upgrade vramscope`."
        )


class NotAVramscopeStore(StorageError):
    """A file or a database that something else made; it is left as it is."""

    def __init__(self, where: str, found: str) -> None:
        self.where, self.found = where, found
        super().__init__(
            f"{where} is not a vramscope store: {found}. It was left as it is; "
            "name another store with --db or VRAMSCOPE_DB."
        )


class StoreUnavailable(StorageError):
    """A store that cannot be opened: a wrong URL, no permission, an unreachable server."""

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        self.where, self.reason, self.remedy = where, reason, remedy
        super().__init__(f"Cannot open the store {where}: {reason.rstrip('. ')}. {remedy}")


class RunLookupError(StorageError):
    """The run asked for cannot be told."""


class RunNotFound(RunLookupError):
    """No run has this id, id prefix or name."""

    def __init__(self, key: str, near: Sequence[str] = (), *, where: str = "the store") -> None:
        self.key, self.near = key, tuple(near)
        hint = f"Did you mean {_listed(near)}? " if near else ""
        super().__init__(
            f"No run {key!r} in {where}. {hint}`vramscope runs` lists all; a run is named by its "
            "id, the first four or more digits of it, or its name."
        )


class AmbiguousRun(RunLookupError):
    """Several runs have ids that start like this."""

    def __init__(self, key: str, matches: Sequence[str]) -> None:
        self.key, self.matches = key, tuple(matches)
        super().__init__(f"{key!r} could be {_listed(matches)}. Give more digits of the run's id.")


class StorageWarning(UserWarning):
    """A writer could not keep what it was given; training goes on."""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
