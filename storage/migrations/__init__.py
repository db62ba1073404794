"""Alembic owns the schema, alone."""
