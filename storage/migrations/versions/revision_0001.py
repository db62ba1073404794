"""The first schema. Written out, not derived from today's models: a revision never changes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_LINES = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "autocast_cache",
    "buffers",
    "communication",
    "kv_cache",
    "temporaries",
    "unattributed",
    "allocated",
    "reserved",
)
_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make every table in an empty database."""
    _make_runs()
    _make_steps()
    _make_details()
    _make_events()
    _make_predictions()


def _lines(prefix: str) -> list[sa.Column[Any]]:
    return [sa.Column(f"{prefix}_{line}", sa.BigInteger()) for line in _LINES]


def _step_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("started_ns", sa.BigInteger(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("micro_steps", sa.Integer(), nullable=False),
        sa.Column("skipped", sa.Boolean(), nullable=False),
        sa.Column("detail", sa.Boolean(), nullable=False),
        sa.Column("carried", sa.Boolean(), nullable=False),
        sa.Column("peak_phase", sa.String(16)),
        sa.Column("master_weights", sa.BigInteger()),
        sa.Column("requested", sa.BigInteger()),
        sa.Column("device_used", sa.BigInteger()),
        sa.Column("process_used", sa.BigInteger()),
        sa.Column("host_pinned", sa.BigInteger()),
        sa.Column("paged", sa.BigInteger()),
        *_lines("end"),
        *_lines("peak"),
    ]


def _device_key(table: str) -> list[Any]:
    return [
        sa.Column("device_id", _ROW_ID, nullable=False, autoincrement=False),
        sa.ForeignKeyConstraint(
            ["device_id"],
            ["devices.id"],
            name=f"fk_{table}_device_id_devices",
            ondelete="CASCADE",
        ),
    ]


def _run_reference(table: str) -> list[Any]:
    return [
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=f"fk_{table}_run_id_runs", ondelete="CASCADE"
        ),
    ]


def _make_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("status_message", sa.Text()),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True)),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("lost_records", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_started_at", "runs", ["started_at"])
    op.create_index("ix_runs_name", "runs", ["name"])
    op.create_table(
        "devices",
        sa.Column("id", _ROW_ID, nullable=False),
        *_run_reference("devices"),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.Text()),
        sa.Column("name", sa.Text()),
        sa.Column("total_bytes", sa.BigInteger()),
        sa.Column("last_step", sa.BigInteger()),
        sa.Column("peak_step", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
        sa.UniqueConstraint(
            "run_id",
            "rank",
            "host",
            "kind",
            "index",
            name="uq_devices_run_id_rank_host_kind_index",
        ),
    )


def _make_steps() -> None:
    op.create_table(
        "steps",
        *_device_key("steps"),
        sa.Column("step", sa.BigInteger(), nullable=False, autoincrement=False),
        *_step_columns(),
        sa.PrimaryKeyConstraint("device_id", "step", name="pk_steps"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rollups",
        *_device_key("rollups"),
        sa.Column("level", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("bucket", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        *_step_columns(),
        sa.PrimaryKeyConstraint("device_id", "level", "bucket", name="pk_rollups"),
        sqlite_with_rowid=False,
    )


def _make_details() -> None:
    op.create_table(
        "phases",
        *_device_key("phases"),
        sa.Column("step", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("sequence", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        *_lines("peak"),
        sa.PrimaryKeyConstraint("device_id", "step", "sequence", name="pk_phases"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "modules",
        *_device_key("modules"),
        sa.Column("step", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("module", sa.String(512), nullable=False),
        sa.Column("activations", sa.BigInteger(), nullable=False),
        sa.Column("parameters", sa.BigInteger()),
        sa.PrimaryKeyConstraint("device_id", "step", "module", name="pk_modules"),
        sqlite_with_rowid=False,
    )


def _make_events() -> None:
    op.create_table(
        "events",
        sa.Column("id", _ROW_ID, nullable=False),
        *_run_reference("events"),
        sa.Column("device_id", _ROW_ID),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger()),
        sa.Column("phase", sa.String(16)),
        sa.Column("bytes", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["device_id"],
            ["devices.id"],
            name="fk_events_device_id_devices",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_run_id", "events", ["run_id"])


def _make_predictions() -> None:
    op.create_table(
        "predictions",
        sa.Column("id", _ROW_ID, nullable=False),
        *_device_key("predictions"),
        sa.Column("method", sa.String(16), nullable=False),
        *_lines("peak"),
        sa.Column("peak_phase", sa.String(16)),
        sa.Column("peak_low", sa.BigInteger()),
        sa.Column("peak_high", sa.BigInteger()),
        sa.Column("device_used", sa.BigInteger()),
        sa.Column("not_modelled", sa.JSON(), nullable=False),
        sa.Column("scenario", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_predictions"),
    )
    op.create_index("ix_predictions_device_id", "predictions", ["device_id"])
    op.create_table(
        "prediction_phases",
        *_prediction_key("prediction_phases"),
        sa.Column("phase", sa.String(16), nullable=False),
        *_lines("peak"),
        sa.PrimaryKeyConstraint("prediction_id", "phase", name="pk_prediction_phases"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "prediction_terms",
        *_prediction_key("prediction_terms"),
        sa.Column("position", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("memory_class", sa.String(24)),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("formula", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("prediction_id", "position", name="pk_prediction_terms"),
        sqlite_with_rowid=False,
    )


def _prediction_key(table: str) -> list[Any]:
    return [
        sa.Column("prediction_id", _ROW_ID, nullable=False, autoincrement=False),
        sa.ForeignKeyConstraint(
            ["prediction_id"],
            ["predictions.id"],
            name=f"fk_{table}_prediction_id_predictions",
            ondelete="CASCADE",
        ),
    ]
