"""The tables. Alembic (``migrations/``) makes them; a test holds that the two agree.

Sizes are bytes, ``*_s`` seconds, ``*_ns`` nanoseconds since the Unix epoch, ``*_at`` UTC.
``steps`` and ``rollups`` have the same columns: a rollup row *is* the step with the highest
``peak_allocated`` of its bucket, so that a spike of one step survives any zoom and the stack
of classes still adds up.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    true,
)
from sqlalchemy.types import TypeDecorator

from .records import MEMORY_LINES

REVISIONS: tuple[str, ...] = ("0001", "0002", "0003")
"""Every revision ever released, oldest first; the last is the one this code reads."""

VERSION_TABLE = "vramscope_schema"
"""Alembic's version table, named so that a store is told from another project's database."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

RowId = BigInteger().with_variant(Integer, "sqlite")


class UtcDateTime(TypeDecorator[datetime]):
    """Timezone-aware instants in UTC, also where the database keeps no time zone (SQLite)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; a naive datetime is taken as UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give back what was stored as an aware datetime in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _lines(prefix: str) -> list[Column[int]]:
    return [Column(f"{prefix}_{line}", BigInteger) for line in MEMORY_LINES]


def _step_columns() -> list[Column[object]]:
    return [
        Column("started_ns", BigInteger, nullable=False),
        Column("duration_s", Double, nullable=False),
        Column("micro_steps", Integer, nullable=False),
        Column("skipped", Boolean, nullable=False),
        Column("detail", Boolean, nullable=False),
        Column("complete", Boolean, nullable=False, server_default=true()),
        Column("carried", Boolean, nullable=False),
        Column("peak_phase", String(16)),
        Column("peak_module", Text),
        Column("master_weights", BigInteger),
        Column("requested", BigInteger),
        Column("device_used", BigInteger),
        Column("process_used", BigInteger),
        Column("outside_allocator", BigInteger),
        Column("other_processes", BigInteger),
        Column("driver_reserved", BigInteger),
        Column("host_pinned", BigInteger),
        Column("paged", BigInteger),
        *_lines("end"),
        *_lines("peak"),
    ]


def _device_key() -> Column[int]:
    return Column(
        "device_id",
        RowId,
        ForeignKey("devices.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    )


def _run_reference() -> Column[str]:
    return Column("run_id", String(64), ForeignKey("runs.id", ondelete="CASCADE"), nullable=False)


runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("status_message", Text),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("heartbeat_at", UtcDateTime),
    Column("world_size", Integer, nullable=False),
    Column("settings", JSON, nullable=False),
    Column("environment", JSON, nullable=False),
    Column("lost_records", BigInteger, nullable=False),
    Index(None, "started_at"),
    Index(None, "name"),
)

devices = Table(
    "devices",
    metadata,
    Column("id", RowId, primary_key=True),
    _run_reference(),
    Column("rank", Integer, nullable=False),
    Column("host", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("index", Integer, nullable=False),
    Column("uuid", Text),
    Column("name", Text),
    Column("total_bytes", BigInteger),
    Column("driver_total_bytes", BigInteger),
    Column("unified", Boolean),
    Column("last_step", BigInteger),
    Column("peak_step", BigInteger),
    UniqueConstraint("run_id", "rank", "host", "kind", "index"),
)
"""``last_step`` and ``peak_step`` are kept by the writer, in the same transaction as the rows:
a list of runs reads two rows a device, not all of its steps."""

steps = Table(
    "steps",
    metadata,
    _device_key(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    *_step_columns(),
    sqlite_with_rowid=False,
)

rollups = Table(
    "rollups",
    metadata,
    _device_key(),
    Column("level", BigInteger, primary_key=True, autoincrement=False),
    Column("bucket", BigInteger, primary_key=True, autoincrement=False),
    Column("step", BigInteger, nullable=False),
    *_step_columns(),
    sqlite_with_rowid=False,
)

phases = Table(
    "phases",
    metadata,
    _device_key(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("phase", String(16), nullable=False),
    Column("duration_s", Double, nullable=False),
    *_lines("peak"),
    sqlite_with_rowid=False,
)

modules = Table(
    "modules",
    metadata,
    _device_key(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("module", String(512), primary_key=True),
    Column("dtype", String(32), primary_key=True, server_default=""),
    Column("activations", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

timeline = Table(
    "timeline",
    metadata,
    _device_key(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("offset_s", Double, nullable=False),
    Column("phase", String(16), nullable=False),
    *(Column(line, BigInteger) for line in MEMORY_LINES),
    sqlite_with_rowid=False,
)

peak_groups = Table(
    "peak_groups",
    metadata,
    _device_key(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("memory_class", String(24), nullable=False),
    Column("shape", Text, nullable=False),
    Column("dtype", String(32), nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    Column("id", RowId, primary_key=True),
    _run_reference(),
    Column("device_id", RowId, ForeignKey("devices.id", ondelete="CASCADE")),
    Column("kind", String(16), nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("message", Text, nullable=False),
    Column("step", BigInteger),
    Column("phase", String(16)),
    Column("bytes", BigInteger),
    Index(None, "run_id"),
)

predictions = Table(
    "predictions",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("device_id", RowId, ForeignKey("devices.id", ondelete="CASCADE"), nullable=False),
    Column("method", String(16), nullable=False),
    *_lines("peak"),
    Column("peak_phase", String(16)),
    Column("peak_low", BigInteger),
    Column("peak_high", BigInteger),
    Column("device_used", BigInteger),
    Column("not_modelled", JSON, nullable=False),
    Column("scenario", JSON, nullable=False),
    Index(None, "device_id"),
)

prediction_phases = Table(
    "prediction_phases",
    metadata,
    Column(
        "prediction_id",
        RowId,
        ForeignKey("predictions.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("phase", String(16), primary_key=True),
    *_lines("peak"),
    sqlite_with_rowid=False,
)

prediction_terms = Table(
    "prediction_terms",
    metadata,
    Column(
        "prediction_id",
        RowId,
        ForeignKey("predictions.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("memory_class", String(24)),
    Column("bytes", BigInteger, nullable=False),
    Column("formula", Text, nullable=False),
    Column("source", Text, nullable=False),
    sqlite_with_rowid=False,
)
