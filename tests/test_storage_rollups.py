"""A long run read in a few rows: nothing higher is hidden, nothing is counted twice."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from vramscope.storage import rollups, schema
from vramscope.storage.engine import normalise_url, writer_engine
from vramscope.storage.ledger import RunLedger
from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    DeviceInfo,
    MemoryUse,
    ModuleRecord,
    RunInfo,
    RunStatus,
    StepRecord,
)
from vramscope.storage.rollups import LEVELS, DeviceTrack, cover, height, highest, thin
from vramscope.storage.rows import STEP, STEP_COLUMNS, Row, step_row
from vramscope.storage.writer import RunWriter

MakeRun = Callable[..., RunInfo]
MakeStep = Callable[..., StepRecord]

CPU = DeviceInfo(host="h", kind="cpu")
LONG = 200_000
SPIKE = 123_457


def row(step: int, allocated: int | None) -> Row:
    use = MemoryUse(allocated=allocated)
    return step_row(
        StepRecord(
            device=0, step=step, started_ns=0, duration_s=0, micro_steps=1, end=use, peak=use
        )
    )


def reference(rows: list[Row]) -> dict[tuple[int, int], Row]:
    """Every closed bucket of every level, from all rows at once."""
    last = rows[-1][STEP]
    found = {}
    for level in LEVELS:
        for bucket in {r[STEP] // level for r in rows}:
            if bucket < last // level:
                found[level, bucket] = max(
                    (r for r in rows if r[STEP] // level == bucket), key=height
                )
    return found


@given(
    start=st.integers(0, 5000),
    steps=st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2, 7, 70, 700]), st.none() | st.integers(0, 9)),
        min_size=1,
        max_size=150,
    ),
)
def test_a_track_closes_the_highest_step_of_every_bucket(
    start: int, steps: list[tuple[int, int | None]]
) -> None:
    rows: list[Row] = []
    step = start
    for gap, allocated in steps:
        step += gap
        rows.append(row(step, allocated))
    track = DeviceTrack()
    closed = {(level, bucket): best for r in rows for level, bucket, best in track.add(r)}
    assert closed == reference(rows)
    assert track.peak == highest(rows)
    assert track.last_step == rows[-1][STEP]


@given(
    first=st.integers(0, 3000),
    length=st.integers(0, 3000),
    last_closed=st.integers(0, 6000),
    level=st.sampled_from([1, *LEVELS]),
)
def test_a_cover_is_whole_and_without_overlap(
    first: int, length: int, last_closed: int, level: int
) -> None:
    last = first + length
    closed_end = {size: last_closed // size * size for size in LEVELS if last_closed >= size}
    pieces = cover(first, last, level, closed_end)
    assert pieces[0][1] == first
    assert pieces[-1][2] == last
    for (_, _, end), (_, begin, _) in pairwise(pieces):
        assert begin == end + 1
    for size, begin, end in pieces:
        assert size <= level
        assert size == 1 or (begin % size == 0 and (end + 1) % size == 0)
        assert size == 1 or end < closed_end[size]


def test_a_cover_of_nothing_is_empty() -> None:
    assert cover(5, 4, 64, {64: 640}) == []


def test_thinning_keeps_the_highest() -> None:
    rows = [row(step, 9 if step == 37 else step % 5) for step in range(100)]
    thinned = thin(rows, 7)
    assert len(thinned) == 7
    assert max(map(height, thinned)) == 9
    assert [r[STEP] for r in thinned] == sorted(r[STEP] for r in thinned)
    assert thin(rows, 100) == rows
    assert [r[STEP] for r in thin(rows, 1)] == [37]


def test_unknown_is_below_every_known_peak() -> None:
    best = highest([row(0, None), row(1, 0), row(2, None)])
    assert best is not None
    assert best[STEP] == 1


@pytest.mark.parametrize("stops", [[], [1], [8], [63], [64], [65, 66], [100, 512, 777]])
def test_a_writer_that_was_killed_is_followed_by_one_that_goes_on(
    ready_url: str, make_run: MakeRun, make_step: MakeStep, stops: list[int]
) -> None:
    """Each ledger is dropped without an ending, as ``kill -9`` does."""
    run = make_run()
    total = 1200
    bounds = [0, *stops, total]
    for begin, end in pairwise(bounds):
        ledger = RunLedger(normalise_url(ready_url), run.id)
        ledger.open(run, (CPU,))
        for part in range(begin, end, 150):
            ledger.store([make_step(s, s * 7919 % 1009) for s in range(part, min(part + 150, end))])
        ledger.dispose()
    expected = reference([row(s, s * 7919 % 1009) for s in range(total)])
    engine = writer_engine(normalise_url(ready_url))
    table = schema.rollups
    with engine.begin() as connection:
        found = {
            (r.level, r.bucket): (r.step, r.peak_allocated)
            for r in connection.execute(
                select(table.c.level, table.c.bucket, table.c.step, table.c.peak_allocated)
            )
        }
    engine.dispose()
    assert found == {key: (best[STEP], height(best)) for key, best in expected.items()}


def test_a_failed_batch_leaves_no_trace_in_the_rollups(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    run = make_run()
    ledger = RunLedger(normalise_url(ready_url), run.id)
    ledger.open(run, (CPU,))
    ledger.store([make_step(s, 5) for s in range(20)])
    too_large = ModuleRecord(device=0, step=40, module="", activations=2**70)
    with pytest.raises((OverflowError, DBAPIError)):
        ledger.store([*(make_step(s, 99) for s in range(20, 40)), too_large])
    ledger.store([make_step(s, 6) for s in range(20, 40)])
    ledger.dispose()
    with RunReader(ready_url) as reader:
        (device,) = reader.devices(run.id)
        assert device.id is not None
        table = reader.steps(run.id, device.id, max_rows=20)
        peak = reader.peak_step(run.id, device.id)
    assert table.level == 8
    assert set(table.columns["peak_allocated"]) == {5, 6}
    assert peak is not None
    assert (peak.step, peak.peak.allocated) == (20, 6)


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200,000 steps of one device, still open, with a spike of one step in the middle.

    The bulk is made by the database, buckets included, and the rest by a writer that goes on.
    """
    path = tmp_path_factory.mktemp("long") / "long.db"
    run = RunInfo(id="0123456789ab", name="long", started_at=datetime(2026, 1, 1, tzinfo=UTC))
    bulk = LONG - 3_000
    first = RunLedger(normalise_url(path), run.id)
    first.open(run, (CPU,))
    first.store([_long_step(0)])
    first.dispose()
    with sqlite3.connect(path) as connection:
        _fill(connection, bulk)
    connection.close()
    second = RunLedger(normalise_url(path), run.id)
    second.open(run, (CPU,))
    second.store([_long_step(step) for step in range(bulk, LONG)])
    second.dispose()
    return path


def _fill(connection: sqlite3.Connection, bulk: int) -> None:
    names = [name for name in STEP_COLUMNS if name not in ("step", "peak_allocated")]
    rest = ", ".join(names)
    height_of = f"CASE n WHEN {SPIKE} THEN 1000000000000 ELSE 1000000000 + n * 7919 % 10007 END"
    connection.execute(
        f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers "
        f"WHERE n + 1 < {bulk}) INSERT INTO steps (device_id, step, peak_allocated, {rest}) "
        f"SELECT 1, n, {height_of}, {rest} FROM numbers, steps WHERE steps.step = 0"
    )
    for level in LEVELS:
        finer = "steps" if level == 8 else f"rollups WHERE level = {level // 8}"
        # SQLite: beside max(), the other columns are those of the row that has the maximum.
        connection.execute(
            f"INSERT INTO rollups (device_id, level, bucket, peak_allocated, step, {rest}) "
            f"SELECT 1, {level}, step / {level}, max(peak_allocated), step, {rest} FROM {finer} "
            f"GROUP BY step / {level} HAVING step / {level} < {(bulk - 1) // level}"
        )
    connection.execute("UPDATE devices SET last_step = ?, peak_step = ?", (bulk - 1, SPIKE))


def _long_step(step: int) -> StepRecord:
    return StepRecord(
        device=0,
        step=step,
        started_ns=step,
        duration_s=0.1,
        micro_steps=1,
        end=MemoryUse(parameters=10**8, allocated=10**8),
        peak=MemoryUse(parameters=10**8, allocated=10**9 + step * 7919 % 10_007),
    )


def test_a_long_run_is_read_in_few_rows_and_little_time(long_store: Path) -> None:
    with RunReader(long_store) as reader:
        (device,) = reader.devices("0123456789ab")
        assert device.id is not None
        reader.steps("0123456789ab", device.id, max_rows=10)
        spent = []
        for _ in range(3):
            start = time.process_time()
            table = reader.steps("0123456789ab", device.id, max_rows=2000)
            spent.append(time.process_time() - start)
        peak = reader.peak_step("0123456789ab", device.id)
    assert table.level == 512
    assert 300 < len(table) <= 2000
    assert table.columns["step"][-1] == LONG - 1
    assert SPIKE in table.columns["step"]
    assert max(table.columns["peak_allocated"]) == 10**12
    assert peak is not None
    assert peak.step == SPIKE
    assert min(spent) <= 0.150, spent


@pytest.mark.parametrize("max_rows", [1, 2, 10, 50, 400, 2000, 30_000])
@pytest.mark.parametrize(("first", "last"), [(None, None), (100_001, 150_006), (123_000, 124_000)])
def test_every_view_has_the_spike_and_no_more_rows_than_asked(
    long_store: Path, max_rows: int, first: int | None, last: int | None
) -> None:
    with RunReader(long_store) as reader:
        (device,) = reader.devices("0123456789ab")
        assert device.id is not None
        table = reader.steps("0123456789ab", device.id, first=first, last=last, max_rows=max_rows)
    found = table.columns["step"]
    assert 1 <= len(found) <= max_rows
    assert SPIKE in found
    assert found == sorted(set(found))
    assert found[0] >= (first or 0)
    assert found[-1] <= (last or LONG)


def test_the_finest_level_that_fits_is_chosen(long_store: Path) -> None:
    with RunReader(long_store) as reader:
        (device,) = reader.devices("0123456789ab")
        assert device.id is not None
        levels = {
            (span, rows): reader.steps(
                "0123456789ab", device.id, first=1000, last=1000 + span - 1, max_rows=rows
            ).level
            for span, rows in ((2000, 2000), (2001, 2000), (15_000, 2000), (100_000, 2000))
        }
    assert list(levels.values()) == [1, 8, 8, 64]


def test_sparse_steps_are_counted_not_guessed(
    tmp_path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    writer = RunWriter(tmp_path / "s.db", make_run(), (CPU,))
    for step in range(0, 100_000, 1000):
        writer.write(make_step(step))
    writer.close(RunStatus.COMPLETED)
    with RunReader(tmp_path / "s.db") as reader:
        (device,) = reader.devices(make_run().id)
        assert device.id is not None
        table = reader.steps(make_run().id, device.id, max_rows=100)
    assert table.level == 1
    assert table.columns["step"] == list(range(0, 100_000, 1000))


def test_rollups_cost_a_seventh_more_rows(long_store: Path) -> None:
    engine = writer_engine(normalise_url(long_store))
    with engine.begin() as connection:
        count = connection.execute(select(func.count()).select_from(schema.rollups)).scalar_one()
    engine.dispose()
    assert LONG / 7.1 < count < LONG / 7


def test_rollup_rows_have_a_steps_columns() -> None:
    assert set(schema.rollups.c.keys()) == {"device_id", "level", "bucket", *STEP_COLUMNS}
    assert set(schema.steps.c.keys()) == {"device_id", *STEP_COLUMNS}
    assert rollups.FACTOR == 8
