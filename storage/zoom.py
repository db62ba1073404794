"""Which rows of a long run answer a question about a span of steps: the finest that fit."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from .rollups import LEVELS, cover
from .rows import STEP_COLUMNS, Row
from .schema import rollups, steps

_STEP_FIELDS = [steps.c[name] for name in STEP_COLUMNS]
_ROLLUP_FIELDS = [rollups.c[name] for name in STEP_COLUMNS]


def rows_within(
    connection: Connection, device_id: int, first: int | None, last: int | None, max_rows: int
) -> tuple[int, list[Row]]:
    """Level and rows for the steps ``first`` to ``last``, about ``max_rows`` of them at most.

    At the coarsest level the finer rows at the edges may come on top (see ``rollups.thin``).
    """
    lowest, highest = (
        connection.execute(select(end(steps.c.step)).where(steps.c.device_id == device_id)).scalar()
        for end in (func.min, func.max)
    )
    if lowest is None or highest is None:
        return 1, []
    low = lowest if first is None else max(first, lowest)
    high = highest if last is None else min(last, highest)
    closed_end = _closed_ends(connection, device_id)
    pieces: list[tuple[int, int, int]] = []
    level = 1
    for level in (1, *LEVELS):
        pieces = cover(low, high, level, closed_end)
        if _fits(connection, device_id, pieces, max_rows):
            break
    return level, [row for piece in pieces for row in _rows_of(connection, device_id, piece)]


def _closed_ends(connection: Connection, device_id: int) -> dict[int, int]:
    ends = {}
    for level in LEVELS:
        bucket = connection.execute(
            select(func.max(rollups.c.bucket)).where(
                rollups.c.device_id == device_id, rollups.c.level == level
            )
        ).scalar()
        if bucket is None:
            break
        ends[level] = (bucket + 1) * level
    return ends


def _fits(
    connection: Connection, device_id: int, pieces: list[tuple[int, int, int]], max_rows: int
) -> bool:
    """Whether the pieces hold few enough rows; counted only where steps may be missing."""
    if sum((last - first) // level + 1 for level, first, last in pieces) <= max_rows:
        return True
    count = 0
    for level, first, last in pieces:
        query = _piece_query(device_id, level, first, last, [_piece_key(level)])
        limited = query.limit(max_rows + 1 - count).subquery()
        count += connection.execute(select(func.count()).select_from(limited)).scalar_one()
        if count > max_rows:
            return False
    return True


def _rows_of(connection: Connection, device_id: int, piece: tuple[int, int, int]) -> list[Row]:
    level, first, last = piece
    fields = _STEP_FIELDS if level == 1 else _ROLLUP_FIELDS
    query = _piece_query(device_id, level, first, last, fields).order_by(_piece_key(level))
    return [tuple(row) for row in connection.execute(query)]


def _piece_key(level: int) -> Any:
    return steps.c.step if level == 1 else rollups.c.bucket


def _piece_query(device_id: int, level: int, first: int, last: int, fields: list[Any]) -> Any:
    if level == 1:
        return select(*fields).where(
            steps.c.device_id == device_id, steps.c.step.between(first, last)
        )
    return select(*fields).where(
        rollups.c.device_id == device_id,
        rollups.c.level == level,
        rollups.c.bucket.between(first // level, last // level),
    )
