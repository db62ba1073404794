"""One revision a schema change."""
