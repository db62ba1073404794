"""``vramscope db``: the schema of a store."""

from __future__ import annotations

from vramscope.storage import schema
from vramscope.storage.engine import normalise_url, redacted, sqlite_path
from vramscope.storage.errors import StoreTooNew, StoreTooOld
from vramscope.storage.reader import RunReader
from vramscope.storage.upgrade import upgrade as upgrade_store

from ..format import size
from . import options, terminal
from .tables import say

UPGRADE_EXAMPLES = ("vramscope db upgrade", "vramscope db upgrade --db runs.db")
STATUS_EXAMPLES = ("vramscope db status", "vramscope db status --db runs.db --json")


def upgrade(db: options.Db = None, as_json: options.Json = False) -> None:
    """Bring a store of an older vramscope to this one's schema.

    Stop what writes to it, and keep a copy.
    """
    url = normalise_url(db)
    before, after = upgrade_store(url)
    if as_json:
        terminal.print_json({"store": redacted(url), "from": before, "to": after})
        return
    where = redacted(url)
    text = (
        f"{where} is up to date (schema {after})."
        if before == after
        else f"{where}: schema {before or 'none'} → {after}."
    )
    say(terminal.out(), text)


def status(db: options.Db = None, as_json: options.Json = False) -> None:
    """Say whether a store can be read, its schema and how much it holds.

    A store that is too old or too new ends with the exit code that it has everywhere.
    """
    url = normalise_url(db)
    path = sqlite_path(url)
    size_bytes = path.stat().st_size if path is not None and path.is_file() else None
    facts: dict[str, object] = {"store": redacted(url), "size_bytes": size_bytes}
    try:
        with RunReader(url) as reader:
            total = reader.runs(limit=1).total
    except (StoreTooOld, StoreTooNew) as error:
        if as_json:
            facts |= {"state": _STATES[type(error)], "schema": error.found, "runs": None}
            terminal.print_json(facts)
        raise
    newest = schema.REVISIONS[-1]
    if as_json:
        terminal.print_json({**facts, "state": "current", "schema": newest, "runs": total})
        return
    noun = "run" if total == 1 else "runs"
    say(terminal.out(), f"{redacted(url)}: schema {newest}, {total:,} {noun}, {size(size_bytes)}.")


_STATES = {StoreTooOld: "too_old", StoreTooNew: "too_new"}
