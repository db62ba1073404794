"""What happens inside a detail step: its timeline, the tensors at its peak, modules by dtype.

Steps and rollups get columns with a constant default, which no database rewrites a table for.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
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
    """Widen what is there and add two tables; no row is lost."""
    for table in ("steps", "rollups"):
        op.add_column(
            table, sa.Column("complete", sa.Boolean(), nullable=False, server_default=sa.true())
        )
        op.add_column(table, sa.Column("peak_module", sa.Text()))
    _tell_modules_apart_by_dtype()
    _make_timeline()
    _make_peak_groups()


def _tell_modules_apart_by_dtype() -> None:
    """SQLite cannot change a primary key: there the table is copied, a server alters it."""
    with op.batch_alter_table(
        "modules", copy_from=_modules_of_0001(), table_kwargs={"sqlite_with_rowid": False}
    ) as modules:
        modules.add_column(sa.Column("dtype", sa.String(32), nullable=False, server_default=""))
        modules.drop_constraint("pk_modules", type_="primary")
        modules.create_primary_key("pk_modules", ["device_id", "step", "module", "dtype"])


def _modules_of_0001() -> sa.Table:
    return sa.Table(
        "modules",
        sa.MetaData(),
        *_step_key("modules"),
        sa.Column("module", sa.String(512), nullable=False),
        sa.Column("activations", sa.BigInteger(), nullable=False),
        sa.Column("parameters", sa.BigInteger()),
        sa.PrimaryKeyConstraint("device_id", "step", "module", name="pk_modules"),
    )


def _make_timeline() -> None:
    op.create_table(
        "timeline",
        *_step_key("timeline"),
        sa.Column("sequence", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("offset_s", sa.Double(), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        *(sa.Column(line, sa.BigInteger()) for line in _LINES),
        sa.PrimaryKeyConstraint("device_id", "step", "sequence", name="pk_timeline"),
        sqlite_with_rowid=False,
    )


def _make_peak_groups() -> None:
    op.create_table(
        "peak_groups",
        *_step_key("peak_groups"),
        sa.Column("position", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("memory_class", sa.String(24), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("dtype", sa.String(32), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device_id", "step", "position", name="pk_peak_groups"),
        sqlite_with_rowid=False,
    )


def _step_key(table: str) -> list[Any]:
    return [
        sa.Column("device_id", _ROW_ID, nullable=False, autoincrement=False),
        sa.Column("step", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.ForeignKeyConstraint(
            ["device_id"],
            ["devices.id"],
            name=f"fk_{table}_device_id_devices",
            ondelete="CASCADE",
        ),
    ]
