"""Which schema a store has, and how it comes to the one that this code knows.

Alembic is imported only where a schema is made: a process that joins an existing store, and
every reader, go without it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from . import schema
from .engine import (
    enable_wal,
    normalise_url,
    redacted,
    sqlite_path,
    writer_engine,
)
from .errors import NotAVramscopeStore, StoreNotFound, StoreTooNew, StoreTooOld
from .failures import opening_error, retry_busy

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).with_name("migrations")
_ADVISORY_LOCK = 0x7672616D  # "vram": PostgreSQL's way to let one process at a time migrate

_alembic_lock = threading.Lock()  # Alembic's env context is global to the process


def upgrade(url: str | Path | None) -> tuple[str | None, str]:
    """Bring an existing store to the newest schema, in one transaction.

    Returns:
        The revision found (``None`` for an empty file or database) and the one it has now.

    Raises:
        StorageError: no store there, not ours, from a later version, or not reachable.
    """
    target = normalise_url(url)
    path = sqlite_path(target)
    if path is not None and not path.exists():
        raise StoreNotFound(str(path))
    engine = writer_engine(target)
    try:
        return _migrate(engine, redacted(target), upgrade_old=True)
    except DBAPIError as error:
        raise opening_error(error, redacted(target)) from error
    finally:
        engine.dispose()


def ensure_schema(engine: Engine, where: str) -> None:
    """Make the schema in an empty store; leave one that is up to date as it is.

    Many processes may call this at the same moment on one fresh file or database.

    Raises:
        StorageError: the store is old (it is not upgraded under other writers), new or not ours.
    """
    _migrate(engine, where, upgrade_old=False)


def check_schema(connection: Connection, where: str) -> None:
    """Raise unless the store has exactly the schema that this code reads."""
    revision = found_revision(connection, where)
    newest = schema.REVISIONS[-1]
    if revision == newest:
        return
    if revision is None or revision in schema.REVISIONS:
        raise StoreTooOld(where, revision, newest)
    raise StoreTooNew(where, revision, newest)


def found_revision(connection: Connection, where: str) -> str | None:
    """The revision that the store says it has; ``None`` when its version table is empty.

    Raises:
        StoreNotFound: there is no table at all.
        NotAVramscopeStore: there are tables, none of them ours.
    """
    tables = table_names(connection)
    if schema.VERSION_TABLE not in tables:
        if not tables:
            raise StoreNotFound(where)
        shown = ", ".join(sorted(tables)[:3]) + (", …" if len(tables) > 3 else "")
        raise NotAVramscopeStore(where, f"it holds other tables ({shown})")
    revision: str | None = connection.execute(
        text(f"SELECT version_num FROM {schema.VERSION_TABLE}")
    ).scalar()
    return revision


def table_names(connection: Connection) -> set[str]:
    """Names of the tables in the database (on PostgreSQL: in the search path's first schema)."""
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' "
            "ESCAPE '\\'"
        )
        return {row[0] for row in rows}
    return set(inspect(connection).get_table_names())


def _migrate(engine: Engine, where: str, *, upgrade_old: bool) -> tuple[str | None, str]:
    def attempt() -> tuple[str | None, str]:
        with engine.connect() as connection:
            _refuse_foreign(connection, where)
            if connection.dialect.name == "sqlite":
                enable_wal(connection.connection.dbapi_connection)  # type: ignore[arg-type]
            with connection.begin():
                return _migrate_locked(connection, where, upgrade_old=upgrade_old)

    return retry_busy(attempt)


def _refuse_foreign(connection: Connection, where: str) -> None:
    """Look before anything is changed: even switching to WAL would change a file not ours."""
    with connection.begin():
        if table_names(connection):
            found_revision(connection, where)


def _migrate_locked(
    connection: Connection, where: str, *, upgrade_old: bool
) -> tuple[str | None, str]:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    newest = schema.REVISIONS[-1]
    empty = not table_names(connection)
    found = None if empty else found_revision(connection, where)
    if not empty and found != newest:
        if found is not None and found not in schema.REVISIONS:
            raise StoreTooNew(where, found, newest)
        if not upgrade_old:
            raise StoreTooOld(where, found, newest)
    if found != newest:
        _run_alembic(connection)
    return found, newest


def _run_alembic(connection: Connection) -> None:
    from alembic import command

    with _alembic_lock:
        command.upgrade(alembic_config(connection), "head")


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, made in memory: where the revisions lie, and the connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
