"""The statements of a writer's hot path, as text made once: they run for every batch."""

from __future__ import annotations

from collections.abc import Sequence

from .details import DETAIL_TABLES
from .rows import STEP_COLUMNS


def batch_statements(mark: str) -> dict[str, str]:
    """What a batch runs, by table; ``clear <table>`` empties one step of a detail table.

    Args:
        mark: the driver's mark for a value, ``?`` or ``%s``.
    """
    made = {
        "steps": _upsert("steps", ("device_id", *STEP_COLUMNS), 2, mark),
        "rollups": _upsert("rollups", ("device_id", "level", "bucket", *STEP_COLUMNS), 3, mark),
        "marks": f"UPDATE devices SET last_step = {mark}, peak_step = {mark} WHERE id = {mark}",
    }
    for name, (columns, keys) in DETAIL_TABLES.items():
        made[name] = _upsert(name, columns, keys, mark)
        made[f"clear {name}"] = f"DELETE FROM {name} WHERE device_id = {mark} AND step = {mark}"
    return made


def _upsert(table: str, columns: Sequence[str], keys: int, mark: str) -> str:
    """Insert, the last writing of a key winning (a resumed run repeats steps)."""
    names = ", ".join(columns)
    marks = ", ".join([mark] * len(columns))
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns[keys:])
    return (
        f"INSERT INTO {table} ({names}) VALUES ({marks}) "
        f"ON CONFLICT ({', '.join(columns[:keys])}) DO UPDATE SET {changes}"
    )
