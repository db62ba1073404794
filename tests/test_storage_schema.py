"""The schema has one owner, is made by whoever comes first, and is never made in a stranger's."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from vramscope.storage import records, schema, upgrade
from vramscope.storage.engine import normalise_url, writer_engine
from vramscope.storage.errors import (
    NotAVramscopeStore,
    StorageError,
    StoreNotFound,
    StoreTooNew,
    StoreTooOld,
    StoreUnavailable,
)
from vramscope.storage.reader import RunReader
from vramscope.storage.records import DeviceInfo, RunInfo, RunStatus
from vramscope.storage.writer import RunWriter

MakeRun = Callable[..., RunInfo]

CPU = DeviceInfo(host="h", kind="cpu")


def make_store(url: str, run: RunInfo) -> str:
    RunWriter(url, run, (CPU,)).close(RunStatus.COMPLETED)
    return normalise_url(url)


def test_models_and_migrations_agree(store_url: str, make_run: MakeRun) -> None:
    engine = writer_engine(make_store(store_url, make_run()))
    with engine.begin() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"version_table": schema.VERSION_TABLE, "compare_type": True},
        )
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def test_a_missing_column_would_be_seen(store_url: str, make_run: MakeRun) -> None:
    engine = writer_engine(make_store(store_url, make_run()))
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE runs DROP COLUMN status_message")
        context = MigrationContext.configure(
            connection, opts={"version_table": schema.VERSION_TABLE}
        )
        (difference,) = compare_metadata(context, schema.metadata)
    engine.dispose()
    assert difference[0] == "add_column"


def test_the_known_revisions_are_those_on_disk() -> None:
    script = ScriptDirectory.from_config(upgrade.alembic_config())
    on_disk = [revision.revision for revision in script.walk_revisions()]
    assert tuple(reversed(on_disk)) == schema.REVISIONS
    assert script.get_heads() == [schema.REVISIONS[-1]]


LINES = {f"peak_{line}" for line in records.MEMORY_LINES}


@pytest.mark.parametrize(
    ("record", "table", "elsewhere"),
    [
        (records.RunInfo, schema.runs, {}),
        (records.DeviceInfo, schema.devices, {}),
        (
            records.StepRecord,
            schema.steps,
            {
                "device": {"device_id"},
                "end": {f"end_{line}" for line in records.MEMORY_LINES},
                "peak": LINES,
            },
        ),
        (records.PhaseRecord, schema.phases, {"device": {"device_id"}, "peak": LINES}),
        (records.ModuleRecord, schema.modules, {"device": {"device_id"}}),
        (
            records.TimelinePoint,
            schema.timeline,
            {"device": {"device_id"}, "use": set(records.MEMORY_LINES)},
        ),
        (records.PeakGroup, schema.peak_groups, {"device": {"device_id"}}),
        (records.Event, schema.events, {"device": {"device_id"}}),
        (
            records.PredictionRecord,
            schema.predictions,
            {"device": {"device_id"}, "peak": LINES, "phases": set(), "terms": set()},
        ),
        (records.PredictionTerm, schema.prediction_terms, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_field_has_a_column(
    record: type, table: object, elsewhere: dict[str, set[str]]
) -> None:
    columns = set(table.c.keys())  # type: ignore[attr-defined]
    for field in fields(record):
        assert elsewhere.get(field.name, {field.name}) <= columns, field.name


def test_every_memory_line_of_a_predictions_phase_has_a_column() -> None:
    assert set(schema.prediction_phases.c.keys()) == {"prediction_id", "phase", *LINES}


def test_the_large_tables_are_keyed_by_device_and_step(tmp_path: Path, make_run: MakeRun) -> None:
    make_store(f"sqlite:///{tmp_path}/s.db", make_run())
    with sqlite3.connect(tmp_path / "s.db") as connection:
        made = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    connection.close()
    for name in ("steps", "rollups", "phases", "modules", "timeline", "peak_groups"):
        assert made[name].rstrip().endswith("WITHOUT ROWID"), made[name]
    assert "PRIMARY KEY (device_id, step)" in " ".join(made["steps"].split()).replace(
        "CONSTRAINT pk_steps ", ""
    )


def test_every_closed_set_fits_its_column() -> None:
    for values, column in (
        (records.RunStatus, schema.runs.c.status),
        (records.Phase, schema.phases.c.phase),
        (records.Phase, schema.timeline.c.phase),
        (records.EventKind, schema.events.c.kind),
        (records.PredictionMethod, schema.predictions.c.method),
        (records.MemoryClass, schema.prediction_terms.c.memory_class),
        (records.MemoryClass, schema.peak_groups.c.memory_class),
    ):
        assert max(len(value) for value in values) <= column.type.length  # type: ignore[attr-defined]


FOUR_RANKS = """
import os, sys
import alembic.command
from datetime import UTC, datetime
from vramscope.storage.records import DeviceInfo, MemoryUse, RunInfo, RunStatus, StepRecord
from vramscope.storage.writer import RunWriter

def write(url, rank):
    run = RunInfo(id="race", name="race", started_at=datetime.now(UTC), world_size=4)
    writer = RunWriter(url, run, [DeviceInfo(rank=rank, host="h", kind="cuda", index=rank)])
    for step in range(50):
        use = MemoryUse(allocated=step)
        writer.write(StepRecord(device=0, step=step, started_ns=0, duration_s=0.0, micro_steps=1,
                                end=use, peak=use))
    writer.close(RunStatus.COMPLETED)
    return writer.lost_records == 0 and writer.failed is None

for url in sys.argv[1:]:
    gate, opened = os.pipe()
    ranks = []
    for rank in range(4):
        child = os.fork()
        if not child:
            os.close(opened)
            os.read(gate, 1)  # returns in all of them at once, when the parent closes its end
            code = 1
            try:
                code = 0 if write(url, rank) else 2
            finally:
                sys.excepthook(*sys.exc_info()) if code == 1 else None
                os._exit(code)
        ranks.append(child)
    os.close(opened)
    print(*[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks], flush=True)
"""


def test_many_processes_may_start_on_one_empty_place(store_url: str) -> None:
    """Four ranks reach the store at the same moment: one makes it, all write."""
    urls = [store_url]
    if store_url.startswith("sqlite"):
        urls += [store_url.replace("store.db", f"store-{number}.db") for number in range(2)]
    done = subprocess.run(
        [sys.executable, "-c", FOUR_RANKS, *urls], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "0 0 0 0\n" * len(urls), done.stderr
    for url in urls:
        with RunReader(url) as reader:
            assert reader.run("race").status is RunStatus.COMPLETED
            devices = reader.devices("race")
            assert [device.rank for device in devices] == [0, 1, 2, 3]
            for device in devices:
                assert device.id is not None
                assert reader.steps("race", device.id).columns["step"] == list(range(50))


def set_revision(url: str, revision: str | None) -> None:
    engine = writer_engine(normalise_url(url))
    with engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {schema.VERSION_TABLE}"))
        if revision is not None:
            connection.execute(
                text(f"INSERT INTO {schema.VERSION_TABLE} VALUES (:revision)"),
                {"revision": revision},
            )
    engine.dispose()


def test_an_old_store_is_refused_with_the_command_that_upgrades_it(
    store_url: str, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(store_url, make_run())
    newest = schema.REVISIONS[-1]
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "next"))
    for opening in (
        lambda: RunReader(store_url),
        lambda: RunWriter(store_url, make_run(id="other"), (CPU,)),
    ):
        with pytest.raises(StoreTooOld, match=rf"{newest}.*needs next.*vramscope db upgrade"):
            opening()


def test_a_store_of_a_later_version_is_refused(store_url: str, make_run: MakeRun) -> None:
    make_store(store_url, make_run())
    set_revision(store_url, "9999")
    for opening in (
        lambda: RunReader(store_url),
        lambda: RunWriter(store_url, make_run(id="other"), (CPU,)),
        lambda: upgrade.upgrade(store_url),
    ):
        with pytest.raises(StoreTooNew, match="has schema 9999"):
            opening()


def test_upgrading_what_is_up_to_date_changes_nothing(store_url: str, make_run: MakeRun) -> None:
    make_store(store_url, make_run())
    newest = schema.REVISIONS[-1]
    assert upgrade.upgrade(store_url) == (newest, newest)
    with RunReader(store_url) as reader:
        assert reader.runs().total == 1


def test_upgrading_a_missing_file_does_not_make_one(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        upgrade.upgrade(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


def test_upgrading_an_empty_place_makes_a_store(store_url: str, tmp_path: Path) -> None:
    if store_url.startswith("sqlite"):
        (tmp_path / "store.db").touch()
    assert upgrade.upgrade(store_url) == (None, schema.REVISIONS[-1])
    with RunReader(store_url) as reader:
        assert reader.runs().total == 0


def test_a_migration_that_fails_leaves_nothing(
    store_url: str, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: object) -> None:
        real(connection)  # type: ignore[arg-type]
        raise RuntimeError("in the middle")

    real = upgrade._run_alembic
    monkeypatch.setattr(upgrade, "_run_alembic", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        RunWriter(store_url, make_run(), (CPU,))
    engine = writer_engine(normalise_url(store_url))
    with engine.begin() as connection:
        assert inspect(connection).get_table_names() == []
    engine.dispose()


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Somebody else's SQLite database."""
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (id INTEGER)")
    connection.close()
    return path


def test_a_strangers_database_is_refused_and_left_as_it_is(
    foreign: Path, make_run: MakeRun
) -> None:
    before = foreign.read_bytes()
    for opening in (
        lambda: RunReader(foreign),
        lambda: RunWriter(foreign, make_run(), (CPU,)),
        lambda: upgrade.upgrade(foreign),
    ):
        with pytest.raises(NotAVramscopeStore, match=r"theirs\.db.*customers"):
            opening()
    assert foreign.read_bytes() == before
    assert [path.name for path in foreign.parent.iterdir()] == ["theirs.db"]


def test_a_strangers_file_is_refused_and_left_as_it_is(tmp_path: Path, make_run: MakeRun) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all\n" * 400)
    before = path.read_bytes()
    for opening in (
        lambda: RunReader(path),
        lambda: RunWriter(path, make_run(), (CPU,)),
        lambda: upgrade.upgrade(path),
    ):
        with pytest.raises(NotAVramscopeStore, match="not a SQLite database"):
            opening()
    assert path.read_bytes() == before


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_strangers_postgres_schema_is_refused(store_url: str, make_run: MakeRun) -> None:
    engine = writer_engine(normalise_url(store_url))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE customers (id INTEGER)")
    engine.dispose()
    with pytest.raises(NotAVramscopeStore, match="customers"):
        RunWriter(store_url, make_run(), (CPU,))
    with pytest.raises(NotAVramscopeStore, match="customers"):
        RunReader(store_url)


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("postgresql://me:hunter2@127.0.0.1:9/runs", r"me:\*\*\*@127\.0\.0\.1"),
        ("mysql://me:hunter2@db/runs", "neither sqlite nor postgresql"),
        ("sqlite://", "dies with its process"),
        ("sqlite:///:memory:", "dies with its process"),
        ("sqlite:runs.db", "not a URL"),
        ("postgresql:/runs", "not a URL"),
        ("http://", "not a URL|neither"),
        ("postgresql://h:port/x", "not a URL"),
    ],
)
def test_a_wrong_address_is_named_without_its_password(
    url: str, match: str, make_run: MakeRun
) -> None:
    for opening in (lambda: RunReader(url), lambda: RunWriter(url, make_run(), (CPU,))):
        with pytest.raises(StoreUnavailable, match=match) as caught:
            opening()
        assert "hunter2" not in str(caught.value)


def test_a_folder_is_not_a_store(tmp_path: Path, make_run: MakeRun) -> None:
    with pytest.raises(StoreUnavailable, match="this is a folder"):
        RunReader(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"folder|opened"):
        RunWriter(tmp_path, make_run(), (CPU,))
    with pytest.raises(StoreUnavailable, match="folder"):
        upgrade.upgrade(tmp_path)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, make_run: MakeRun) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Cannot open the store"):
        RunWriter(tmp_path / "file" / "runs.db", make_run(), (CPU,))
    with pytest.raises(StoreNotFound):
        RunReader(tmp_path / "file" / "runs.db")


def test_a_writer_makes_the_folder(tmp_path: Path, make_run: MakeRun) -> None:
    make_store(str(tmp_path / "a" / "b" / "runs.db"), make_run())
    with RunReader(tmp_path / "a" / "b" / "runs.db") as reader:
        assert reader.runs().total == 1


@pytest.mark.parametrize("identity", ["", "x" * 65])
def test_an_id_that_does_not_fit_is_the_callers_mistake(
    identity: str, tmp_path: Path, make_run: MakeRun
) -> None:
    with pytest.raises(ValueError, match="1 to 64 characters"):
        RunWriter(tmp_path / "s.db", make_run(id=identity), (CPU,))


def test_reading_needs_no_alembic(tmp_path: Path, make_run: MakeRun) -> None:
    """Alembic takes long to import, and a reader never makes a schema."""
    make_store(str(tmp_path / "s.db"), make_run())
    code = (
        "import sys; from vramscope.storage.reader import RunReader; "
        f"RunReader({str(tmp_path / 's.db')!r}).runs(); "
        "from vramscope.storage import writer; "
        "assert 'alembic' not in sys.modules; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
