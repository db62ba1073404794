"""Coarser levels of a long run, made while it is written.

Each level has one row for 8, 64, 512 … steps: the step with the highest ``peak_allocated``
among them. A bucket is stored once it is closed, that is once a later bucket has begun; what
lies after the last closed bucket is read from the finer levels, down to the steps themselves.
A live run is therefore right at every moment, and a killed writer leaves nothing to repair.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, select

from .rows import PEAK_ALLOCATED, STEP, STEP_COLUMNS, Row
from .schema import devices, rollups, steps

FACTOR = 8
LEVELS: tuple[int, ...] = tuple(FACTOR**power for power in range(1, 8))
"""Steps in one bucket of each stored level; the coarsest holds two million steps in a row."""

Closed = tuple[int, int, Row]
"""Level, bucket, and the row of its highest step."""

_STEP_FIELDS = [steps.c[name] for name in STEP_COLUMNS]
_ROLLUP_FIELDS = [rollups.c[name] for name in STEP_COLUMNS]


def height(row: Sequence[object]) -> int:
    """What a bucket keeps the highest of; an unknown peak is below every known one."""
    value = row[PEAK_ALLOCATED]
    return value if isinstance(value, int) else -1


def highest(rows: Iterable[Row]) -> Row | None:
    """The first of the highest rows."""
    return max(rows, key=height, default=None)


@dataclass(slots=True)
class DeviceTrack:
    """Where a writer stands with one device: its last and highest step, its open buckets."""

    last_step: int | None = None
    peak: Row | None = None
    _open: list[tuple[int, Row] | None] = field(default_factory=lambda: [None] * len(LEVELS))

    def add(self, row: Row) -> list[Closed]:
        """Take the next step, later than all before; return the buckets that it closes."""
        step = row[STEP]
        closed: list[Closed] = []
        for index, level in enumerate(LEVELS):
            current = self._open[index]
            if current is None or current[0] == step // level:
                break
            closed.append((level, *current))
            self._open[index] = None
            self._merge(index + 1, current[1])
        self._merge(0, row)
        self.last_step = step
        if self.peak is None or height(row) > height(self.peak):
            self.peak = row
        return closed

    def _merge(self, index: int, row: Row) -> None:
        if index == len(LEVELS):
            return
        current = self._open[index]
        if current is None or height(row) > height(current[1]):
            self._open[index] = (row[STEP] // LEVELS[index], row)

    def restore(self, index: int, row: Row | None) -> None:
        """Set one open bucket to what the store holds of it."""
        self._open[index] = None if row is None else (row[STEP] // LEVELS[index], row)

    def open_rows(self) -> list[Row]:
        """The highest steps of the open buckets."""
        return [current[1] for current in self._open if current is not None]


def load_track(
    connection: Connection, device_id: int, *, last_step: int | None = None
) -> DeviceTrack:
    """Go on where the store stands: nothing, or the rows that an earlier writer left.

    Args:
        connection: in a transaction that sees those rows.
        device_id: the device.
        last_step: its last step, where the device's own row does not know it yet; the highest
            step is then looked for anew as well.
    """
    known_last, peak_step = connection.execute(
        select(devices.c.last_step, devices.c.peak_step).where(devices.c.id == device_id)
    ).one()
    track = DeviceTrack(last_step=known_last if last_step is None else last_step)
    if track.last_step is None:
        return track
    for index, level in enumerate(LEVELS):
        bucket = track.last_step // level
        track.restore(index, highest(_children(connection, device_id, level, bucket)))
    if last_step is not None:
        track.peak = _overall_peak(connection, device_id, track)
    elif peak_step is not None:
        rows = connection.execute(
            select(*_STEP_FIELDS).where(steps.c.device_id == device_id, steps.c.step == peak_step)
        )
        track.peak = highest(tuple(row) for row in rows)
    return track


def rebuild(
    connection: Connection, device_id: int, replaced: Iterable[int], last_step: int
) -> Iterator[list[Closed]]:
    """Closed buckets that hold these steps, read anew: one list a level, finest first.

    Needed only when steps were written again (training resumed from an older checkpoint).
    A level is read from the one below, so the caller stores each list before taking the next.
    """
    touched = set(replaced)
    for level in LEVELS:
        buckets = sorted({step // level for step in touched if step // level < last_step // level})
        found = ((b, highest(_children(connection, device_id, level, b))) for b in buckets)
        yield [(level, bucket, row) for bucket, row in found if row is not None]


def _overall_peak(connection: Connection, device_id: int, track: DeviceTrack) -> Row | None:
    """The highest step of a device: of its open buckets and of the closed ones at the top."""
    query = (
        select(*_ROLLUP_FIELDS)
        .where(rollups.c.device_id == device_id, rollups.c.level == LEVELS[-1])
        .order_by(rollups.c.bucket)
    )
    return highest([*(tuple(row) for row in connection.execute(query)), *track.open_rows()])


def cover(
    first: int, last: int, level: int, closed_end: Mapping[int, int]
) -> list[tuple[int, int, int]]:
    """Which rows draw the steps ``first`` to ``last`` at a level, edges and live tail included.

    Args:
        first: first step, inclusive.
        last: last step, inclusive.
        level: 1 for the steps themselves, or one of :data:`LEVELS`.
        closed_end: by level, the first step after its last closed bucket.

    Returns:
        ``(level, first, last)`` in order, without gap or overlap; a piece of a coarse level
        starts and ends with whole buckets.
    """
    if first > last:
        return []
    if level == 1:
        return [(1, first, last)]
    start = -(-first // level) * level
    end = min(last + 1, closed_end.get(level, 0)) // level * level
    finer = level // FACTOR
    if start >= end:
        return cover(first, last, finer, closed_end)
    return [
        *cover(first, start - 1, finer, closed_end),
        (level, start, end - 1),
        *cover(end, last, finer, closed_end),
    ]


def thin(rows: Sequence[Row], max_rows: int) -> list[Row]:
    """At most ``max_rows`` rows, each the highest of a stretch of neighbours."""
    if len(rows) <= max_rows:
        return list(rows)
    bounds = [len(rows) * part // max_rows for part in range(max_rows + 1)]
    stretches = (rows[a:b] for a, b in itertools.pairwise(bounds))
    return [row for stretch in stretches if (row := highest(stretch)) is not None]


def _children(connection: Connection, device_id: int, level: int, bucket: int) -> list[Row]:
    """Rows of the next finer level inside one bucket, as far as they are stored."""
    first, last = bucket * FACTOR, (bucket + 1) * FACTOR - 1
    if level == FACTOR:
        query = (
            select(*_STEP_FIELDS)
            .where(steps.c.device_id == device_id, steps.c.step.between(first, last))
            .order_by(steps.c.step)
        )
    else:
        query = (
            select(*_ROLLUP_FIELDS)
            .where(
                rollups.c.device_id == device_id,
                rollups.c.level == level // FACTOR,
                rollups.c.bucket.between(first, last),
            )
            .order_by(rollups.c.bucket)
        )
    return [tuple(row) for row in connection.execute(query)]
