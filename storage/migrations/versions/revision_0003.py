"""The driver's view of a device: whose its memory is, and how much it has in all.

What no profiler ever told, a module's own parameters, goes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Widen steps, rollups and devices; of runs that are there, all of it is unknown."""
    for table in ("steps", "rollups"):
        for column in ("outside_allocator", "other_processes", "driver_reserved"):
            op.add_column(table, sa.Column(column, sa.BigInteger()))
    op.add_column("devices", sa.Column("driver_total_bytes", sa.BigInteger()))
    op.add_column("devices", sa.Column("unified", sa.Boolean()))
    op.drop_column("modules", "parameters")
