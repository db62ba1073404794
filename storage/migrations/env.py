"""Alembic's entry: migrate the one connection that ``upgrade.py`` hands over.

There is no ``alembic.ini``: a store is upgraded by ``vramscope db upgrade``, or made by the
first writer. The caller holds the transaction and the lock.
"""

from __future__ import annotations

from alembic import context
from vramscope.storage.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
