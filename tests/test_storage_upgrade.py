"""Stores of every released schema are upgraded with all that they hold, or refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, Table, inspect, select, text
from vramscope.storage import schema, upgrade
from vramscope.storage.engine import enable_wal, normalise_url, sqlite_path, writer_engine
from vramscope.storage.errors import StoreTooOld
from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    MEMORY_LINES,
    DeviceInfo,
    Event,
    EventKind,
    MemoryClass,
    MemoryUse,
    ModuleRecord,
    Phase,
    PhaseRecord,
    PredictionMethod,
    PredictionRecord,
    PredictionTerm,
    RunInfo,
    RunStatus,
    StepRecord,
)
from vramscope.storage.writer import RunWriter

MakeStep = Callable[..., StepRecord]
Rows = dict[str, list[dict[str, Any]]]

RUN = "3f2a9c01b7d4"
DEVICE = 5
CPU = DeviceInfo(host="node-1", kind="cpu")
USE = MemoryUse(**{line: 2**40 + place for place, line in enumerate(MEMORY_LINES)})


def _lines(prefix: str) -> dict[str, int | None]:
    return {f"{prefix}_{line}": value for line, value in USE.items()}


def _step(step: int) -> dict[str, Any]:
    return {
        "device_id": DEVICE,
        "step": step,
        "started_ns": 1_790_000_000_000_000_000 + step,
        "duration_s": 0.125,
        "micro_steps": 4,
        "skipped": True,
        "detail": step == 7,
        "carried": step != 7,
        "peak_phase": "backward",
        "master_weights": 11,
        "requested": 12,
        "device_used": 13,
        "process_used": 14,
        "host_pinned": 15,
        "paged": None,
        **_lines("end"),
        **_lines("peak"),
    }


def _module(path: str, activations: int) -> dict[str, Any]:
    return {"device_id": DEVICE, "step": 7, "module": path, "activations": activations}


STORED_BY_0001: Rows = {
    "runs": [
        {
            "id": RUN,
            "name": "gpt-small",
            "status": "out_of_memory",
            "status_message": "out of memory",
            "started_at": "2026-03-01 12:30:00.000000",
            "ended_at": "2026-03-01 13:30:00.000000",
            "heartbeat_at": "2026-03-01 13:30:00.000000",
            "world_size": 2,
            "settings": '{"optimizer": "adamw"}',
            "environment": '{"torch": "2.13.0"}',
            "lost_records": 1,
        }
    ],
    "devices": [
        {
            "id": DEVICE,
            "run_id": RUN,
            "rank": 0,
            "host": "node-1",
            "kind": "cpu",
            "index": 0,
            "uuid": None,
            "name": None,
            "total_bytes": 2**40,
            "last_step": 15,
            "peak_step": 7,
        }
    ],
    "steps": [_step(step) for step in range(7, 16)],
    "rollups": [{"level": 8, "bucket": 0, **_step(7)}],
    "phases": [
        {
            "device_id": DEVICE,
            "step": 7,
            "sequence": 0,
            "phase": "forward",
            "duration_s": 0.5,
            **_lines("peak"),
        }
    ],
    "modules": [
        {**_module("", 3), "parameters": None},
        {**_module("h.0.mlp", 9), "parameters": 64},
    ],
    "events": [
        {
            "id": 1,
            "run_id": RUN,
            "device_id": DEVICE,
            "kind": "oom",
            "at_ns": 9,
            "message": "Tried to allocate 1.50 GiB",
            "step": 15,
            "phase": "backward",
            "bytes": 2**30,
        }
    ],
    "predictions": [
        {
            "id": 1,
            "device_id": DEVICE,
            "method": "analytic",
            **_lines("peak"),
            "peak_phase": "forward",
            "peak_low": 1,
            "peak_high": 2,
            "device_used": 3,
            "not_modelled": '["fragmentation"]',
            "scenario": '{"optimizer": "adamw"}',
        }
    ],
    "prediction_phases": [{"prediction_id": 1, "phase": "idle", **_lines("peak")}],
    "prediction_terms": [
        {
            "prediction_id": 1,
            "position": 0,
            "name": "weights",
            "memory_class": "parameters",
            "bytes": 4,
            "formula": "1 × 4 B",
            "source": "torch.nn.Parameter",
        }
    ],
}


STORED_BY_0002: Rows = {
    **STORED_BY_0001,
    **{
        table: [{**row, "complete": True, "peak_module": None} for row in STORED_BY_0001[table]]
        for table in ("steps", "rollups")
    },
    "modules": [{**row, "dtype": ""} for row in STORED_BY_0001["modules"]],
    "timeline": [
        {
            "device_id": DEVICE,
            "step": 7,
            "sequence": 0,
            "offset_s": 0.25,
            "phase": "forward",
            **dict(USE.items()),
        }
    ],
    "peak_groups": [
        {
            "device_id": DEVICE,
            "step": 7,
            "position": 0,
            "memory_class": "activations",
            "shape": "4×8",
            "dtype": "float32",
            "count": 2,
            "bytes": 256,
        }
    ],
}

STORED: dict[str, Rows] = {"0001": STORED_BY_0001, "0002": STORED_BY_0002}
"""What every release before this one left, by its schema."""

SINCE: dict[str, dict[str, dict[str, Any]]] = {
    "0001": {
        "steps": {"complete": True, "peak_module": None},
        "rollups": {"complete": True, "peak_module": None},
        "modules": {"dtype": ""},
    },
    "0002": {
        **{
            table: dict.fromkeys(("outside_allocator", "other_processes", "driver_reserved"))
            for table in ("steps", "rollups")
        },
        "devices": {"driver_total_bytes": None, "unified": None},
    },
}
"""Columns that came after a release, with what they are of the rows that were there."""


def make_old_store(url: str, revision: str) -> None:
    """A store as a release left it: its migrations, its rows in plain SQL."""
    engine = writer_engine(normalise_url(url))
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            enable_wal(connection.connection.dbapi_connection)  # type: ignore[arg-type]
        with connection.begin():
            command.upgrade(upgrade.alembic_config(connection), revision)
            for table, rows in STORED[revision].items():
                names = ", ".join(f'"{name}"' for name in rows[0])
                values = ", ".join(f":{name}" for name in rows[0])
                statement = text(f"INSERT INTO {table} ({names}) VALUES ({values})")
                connection.execute(statement, rows)
    engine.dispose()


@pytest.fixture(params=sorted(STORED))
def old(request: pytest.FixtureRequest) -> str:
    """The schema of an earlier release."""
    revision: str = request.param
    return revision


@pytest.fixture
def old_url(store_url: str, old: str) -> str:
    """A store of that release with rows in every table of it."""
    make_old_store(store_url, old)
    return store_url


def in_database(url: str, work: Callable[[Connection], Any]) -> Any:
    engine = writer_engine(normalise_url(url))
    with engine.begin() as connection:
        found = work(connection)
    engine.dispose()
    return found


def all_rows(connection: Connection) -> Rows:
    found: Rows = {}
    for name in inspect(connection).get_table_names():
        table = Table(name, MetaData(), autoload_with=connection)
        keys = sorted(table.primary_key.columns.keys())
        query = select(table).order_by(*(table.c[key] for key in keys))
        found[name] = [dict(row) for row in connection.execute(query).mappings()]
    return found


def test_every_release_has_a_store_here() -> None:
    assert [*sorted(STORED)] == [*schema.REVISIONS[:-1]]


def test_the_old_store_has_rows_in_every_table_of_its_own(old: str, old_url: str) -> None:
    found = in_database(old_url, all_rows)
    assert found.pop(schema.VERSION_TABLE) == [{"version_num": old}]
    assert found.keys() == STORED[old].keys()
    assert all(found.values())


def test_an_old_store_is_refused_until_it_is_upgraded(old: str, old_url: str) -> None:
    run = RunInfo(id="other", name="other", started_at=datetime.now(UTC))
    before = in_database(old_url, all_rows)
    for opening in (lambda: RunReader(old_url), lambda: RunWriter(old_url, run, (CPU,))):
        with pytest.raises(
            StoreTooOld,
            match=rf"has schema {old}, .* needs {schema.REVISIONS[-1]}\. .*`vramscope db upgrade`",
        ):
            opening()
    assert in_database(old_url, all_rows) == before


def test_an_upgrade_keeps_every_row_and_value(old: str, old_url: str) -> None:
    expected = in_database(old_url, all_rows)
    expected |= {"timeline": [], "peak_groups": []} if old == "0001" else {}
    for revision in sorted(SINCE):
        for table, columns in SINCE[revision].items() if revision >= old else ():
            expected[table] = [row | columns for row in expected[table]]
    for row in expected["modules"]:
        del row["parameters"]
    assert upgrade.upgrade(old_url) == (old, schema.REVISIONS[-1])
    expected[schema.VERSION_TABLE] = [{"version_num": schema.REVISIONS[-1]}]
    assert in_database(old_url, all_rows) == expected


def test_everything_of_an_old_store_reads_back(old: str, old_url: str) -> None:
    upgrade.upgrade(old_url)
    step = StepRecord(
        device=DEVICE,
        step=7,
        started_ns=1_790_000_000_000_000_007,
        duration_s=0.125,
        micro_steps=4,
        skipped=True,
        detail=True,
        complete=True,
        carried=False,
        end=USE,
        peak=USE,
        peak_phase=Phase.BACKWARD,
        peak_module=None,
        master_weights=11,
        requested=12,
        device_used=13,
        process_used=14,
        host_pinned=15,
    )
    with RunReader(old_url) as reader:
        run = reader.run("gpt-small")
        assert (run.id, run.status, run.lost_records) == (RUN, RunStatus.OUT_OF_MEMORY, 1)
        assert run.settings == {"optimizer": "adamw"}
        (device,) = reader.devices(RUN)
        assert (device.id, device.unified, device.driver_total_bytes) == (DEVICE, None, None)
        assert reader.peak_step(RUN, DEVICE) == step
        assert [s.step for s in reader.iter_steps(RUN, DEVICE)] == list(range(7, 16))
        coarse = reader.steps(RUN, DEVICE, max_rows=2)
        assert coarse.level > 1
        assert set(coarse.columns["complete"]) == {True}
        assert reader.detail_steps(RUN, DEVICE) == (7,)
        assert reader.modules(RUN, DEVICE, 7) == (
            ModuleRecord(device=DEVICE, step=7, module="h.0.mlp", activations=9),
            ModuleRecord(device=DEVICE, step=7, module="", activations=3),
        )
        assert reader.phases(RUN, DEVICE, 7) == (
            PhaseRecord(
                device=DEVICE, step=7, sequence=0, phase=Phase.FORWARD, duration_s=0.5, peak=USE
            ),
        )
        kept = 0 if old == "0001" else 1
        assert [p.use for p in reader.timeline(RUN, DEVICE, 7)] == [USE] * kept
        assert [g.shape for g in reader.peak_groups(RUN, DEVICE, 7)] == ["4×8"] * kept
        assert reader.events(RUN) == (
            Event(
                kind=EventKind.OOM,
                at_ns=9,
                message="Tried to allocate 1.50 GiB",
                device=DEVICE,
                step=15,
                phase=Phase.BACKWARD,
                bytes=2**30,
            ),
        )
        assert reader.predictions(RUN) == (
            PredictionRecord(
                device=DEVICE,
                method=PredictionMethod.ANALYTIC,
                peak=USE,
                peak_phase=Phase.FORWARD,
                peak_low=1,
                peak_high=2,
                device_used=3,
                phases={Phase.IDLE: USE},
                terms=(
                    PredictionTerm(
                        name="weights",
                        memory_class=MemoryClass.PARAMETERS,
                        bytes=4,
                        formula="1 × 4 B",
                        source="torch.nn.Parameter",
                    ),
                ),
                not_modelled=("fragmentation",),
                scenario={"optimizer": "adamw"},
            ),
        )


def test_a_run_of_an_old_store_goes_on_after_the_upgrade(old_url: str, make_step: MakeStep) -> None:
    upgrade.upgrade(old_url)
    run = RunInfo(id=RUN, name="gpt-small", started_at=datetime.now(UTC))
    writer = RunWriter(old_url, run, (CPU,))
    writer.write(make_step(16, complete=False, peak_module="h.0.mlp"))
    for dtype in ("bfloat16", "float32"):
        writer.write(ModuleRecord(device=0, step=16, module="a", dtype=dtype, activations=1))
    writer.close(RunStatus.COMPLETED)
    assert writer.lost_records == 0
    with RunReader(old_url) as reader:
        last = reader.last_step(RUN, DEVICE)
        assert last is not None
        assert (last.step, last.complete, last.peak_module) == (16, False, "h.0.mlp")
        assert [m.dtype for m in reader.modules(RUN, DEVICE, 16)] == ["bfloat16", "float32"]
        assert len(reader.modules(RUN, DEVICE, 7)) == 2


def test_an_upgraded_store_has_the_schema_of_a_new_one(old_url: str) -> None:
    upgrade.upgrade(old_url)

    def look(connection: Connection) -> None:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": schema.VERSION_TABLE,
                "compare_type": True,
                # On SQLite, Alembic takes the default '' for a change of itself.
                "compare_server_default": connection.dialect.name == "postgresql",
            },
        )
        assert compare_metadata(context, schema.metadata) == []
        for table in schema.metadata.sorted_tables:
            found = inspect(connection).get_pk_constraint(table.name)
            assert found["name"] == f"pk_{table.name}"
            assert set(found["constrained_columns"]) == set(table.primary_key.columns.keys())

    in_database(old_url, look)
    path = sqlite_path(normalise_url(old_url))
    if path is not None:
        with sqlite3.connect(path) as connection:
            query = "SELECT sql FROM sqlite_master WHERE name = 'modules'"
            ((made,),) = connection.execute(query)
        connection.close()
        assert made.rstrip().endswith("WITHOUT ROWID")
        assert "PRIMARY KEY (device_id, step, module, dtype)" in made
        assert "ON DELETE CASCADE" in made


def test_an_upgrade_that_fails_leaves_the_old_store(
    old: str, old_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = in_database(old_url, all_rows)
    real = upgrade._run_alembic

    def fail(connection: Connection) -> None:
        real(connection)
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patched:
        patched.setattr(upgrade, "_run_alembic", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            upgrade.upgrade(old_url)
    assert in_database(old_url, all_rows) == before
    assert upgrade.upgrade(old_url) == (old, schema.REVISIONS[-1])
