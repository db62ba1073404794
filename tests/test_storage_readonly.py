"""Opening a file beside its writer, after it, and where nothing may be written."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from vramscope.storage.errors import StoreNotFound, StoreUnavailable
from vramscope.storage.reader import RunReader
from vramscope.storage.readonly import SqliteSource
from vramscope.storage.records import DeviceInfo, RunInfo, RunStatus, StepRecord
from vramscope.storage.writer import RunWriter

MakeRun = Callable[..., RunInfo]
MakeStep = Callable[..., StepRecord]

CPU = DeviceInfo(host="h", kind="cpu")
NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user may enter."""
    with tempfile.TemporaryDirectory(prefix="vramscope-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name)
        os.chmod(name, 0o755)


@pytest.fixture
def live(folder: Path, make_run: MakeRun, make_step: MakeStep) -> Iterator[RunWriter]:
    """A writer in the middle of a run, three steps in."""
    writer = RunWriter(folder / "runs.db", make_run(), (CPU,), flush_interval_s=5)
    for step in range(3):
        writer.write(make_step(step))
    assert writer.flush()
    yield writer
    writer.close(RunStatus.COMPLETED)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def count(path: Path) -> int:
    with RunReader(path) as reader:
        run = reader.runs().rows[0].info
        (device,) = reader.devices(run.id)
        assert device.id is not None
        return len(reader.steps(run.id, device.id))


def as_somebody_else(folder: Path, work: Callable[[], Any]) -> Any:
    """Call where the folder may not be written: as another user, or as its owner without leave."""
    os.chmod(folder, 0o555)
    if os.geteuid() != 0:
        return work()
    gate, answer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            result = work()
        except BaseException as error:
            result = repr(error)
        os.write(answer, pickle.dumps(result))
        os._exit(0)
    os.close(answer)
    with open(gate, "rb") as file:
        result = pickle.loads(file.read())
    os.waitpid(child, 0)
    return result


def leave_wal_mode_on(path: Path) -> None:
    """As a writer leaves a file that was closed while somebody read it."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    assert path.read_bytes()[18] == 2


def crashed(live: RunWriter, folder: Path) -> Path:
    """File and log as they are after a power cut: no shared memory."""
    target = folder / "crashed"
    target.mkdir()
    for name in ("runs.db", "runs.db-wal"):
        shutil.copy(folder / name, target / name)
    return target / "runs.db"


def test_a_live_file_is_read_with_its_log(live: RunWriter, folder: Path) -> None:
    before = names(folder)
    assert before == ["runs.db", "runs.db-shm", "runs.db-wal"]
    assert count(folder / "runs.db") == 3
    assert names(folder) == before


def test_a_live_file_is_read_by_another_user(live: RunWriter, folder: Path) -> None:
    count(folder / "runs.db")
    assert as_somebody_else(folder, lambda: count(folder / "runs.db")) == 3


def test_a_closed_file_is_read_without_a_trace(live: RunWriter, folder: Path) -> None:
    live.close(RunStatus.COMPLETED)
    assert names(folder) == ["runs.db"]
    assert count(folder / "runs.db") == 3
    assert names(folder) == ["runs.db"]
    assert as_somebody_else(folder, lambda: count(folder / "runs.db")) == 3


def test_a_file_left_in_wal_mode_is_read_without_a_trace(live: RunWriter, folder: Path) -> None:
    live.close(RunStatus.COMPLETED)
    leave_wal_mode_on(folder / "runs.db")
    assert count(folder / "runs.db") == 3
    assert names(folder) == ["runs.db"]
    assert as_somebody_else(folder, lambda: count(folder / "runs.db")) == 3


def test_the_owner_reads_a_crashed_file_in_place(live: RunWriter, folder: Path) -> None:
    assert count(crashed(live, folder)) == 3


def test_another_user_reads_a_copy_of_a_crashed_file(live: RunWriter, folder: Path) -> None:
    path = crashed(live, folder)
    temporary = set(Path(tempfile.gettempdir()).glob("vramscope-*"))
    assert as_somebody_else(path.parent, lambda: count(path)) == 3
    assert set(Path(tempfile.gettempdir()).glob("vramscope-*")) == temporary
    assert names(path.parent) == ["runs.db", "runs.db-wal"]
    os.chmod(path.parent, 0o755)


def test_a_writer_that_comes_while_a_closed_file_is_read_is_seen(
    live: RunWriter, folder: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    """``immutable`` knows nothing of a log: the same question is asked again."""
    path = folder / "runs.db"
    live.close(RunStatus.COMPLETED)
    leave_wal_mode_on(path)
    writers: list[RunWriter] = []

    def work(connection: Connection) -> int:
        if not writers:
            writers.append(RunWriter(path, make_run(id="second"), (CPU,)))
            writers[0].write(make_step(0))
            assert writers[0].flush()
        return int(connection.execute(text("SELECT count(*) FROM steps")).scalar_one())

    source = SqliteSource(path)
    assert source.read(work) == 4
    source.close()
    writers[0].close(RunStatus.COMPLETED)


def test_a_file_deleted_and_made_anew_is_noticed(
    live: RunWriter, folder: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    path = folder / "runs.db"
    live.close(RunStatus.COMPLETED)
    with RunReader(path) as reader:
        assert reader.runs().rows[0].info.name == "small run"
        path.unlink()
        with pytest.raises(StoreNotFound):
            reader.runs()
        writer = RunWriter(path, make_run(name="the next"), (CPU,))
        assert reader.runs().rows[0].info.name == "the next"
        writer.close(RunStatus.COMPLETED)
        assert reader.run("the next").status is RunStatus.COMPLETED


def test_a_reader_cannot_write(live: RunWriter, folder: Path) -> None:
    source = SqliteSource(folder / "runs.db")
    for statement in (
        "DELETE FROM runs",
        "CREATE TABLE x (y)",
        f"ATTACH '{folder}/new.db' AS other",
    ):
        with pytest.raises(DBAPIError):
            source.read(lambda connection, sql=statement: connection.exec_driver_sql(sql))  # type: ignore[misc]
    source.close()
    assert "new.db" not in names(folder)
    assert count(folder / "runs.db") == 3


def test_reading_leaves_no_transaction_open(
    live: RunWriter, folder: Path, make_step: MakeStep
) -> None:
    """Otherwise the log could not be emptied, and would grow with the run."""
    with RunReader(folder / "runs.db") as reader:
        (device,) = reader.devices(live.run_id)
        assert device.id is not None
        iterator = reader.iter_steps(live.run_id, device.id)
        next(iterator)
        live.write(make_step(3))
        assert live.flush()
        with sqlite3.connect(folder / "runs.db") as connection:
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        connection.close()
        assert busy == 0
        assert (folder / "runs.db-wal").stat().st_size == 0


def test_many_threads_read_while_one_writes(
    live: RunWriter, folder: Path, make_step: MakeStep
) -> None:
    seen: list[int] = []
    errors: list[BaseException] = []

    def read(reader: RunReader, device: int) -> None:
        try:
            seen.extend(len(reader.steps(live.run_id, device)) for _ in range(10))
        except BaseException as error:
            errors.append(error)

    with RunReader(folder / "runs.db") as reader:
        (device,) = reader.devices(live.run_id)
        assert device.id is not None
        threads = [threading.Thread(target=read, args=(reader, device.id)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for step in range(3, 20):
            live.write(make_step(step))
            assert live.flush()
        for thread in threads:
            thread.join()
    assert errors == []
    assert len(seen) == 40
    assert 3 <= min(seen) <= max(seen) <= 20


def test_a_file_that_may_not_be_read_is_said(live: RunWriter, folder: Path) -> None:
    live.close(RunStatus.COMPLETED)
    os.chmod(folder / "runs.db", 0o000)

    def work() -> str:
        try:
            return str(count(folder / "runs.db"))
        except StoreUnavailable as error:
            return str(error)

    answer = as_somebody_else(folder, work)
    assert "Permission denied" in answer
    assert "Check that you may read it" in answer


def test_a_damaged_file_is_said(live: RunWriter, folder: Path) -> None:
    path = folder / "runs.db"
    live.close(RunStatus.COMPLETED)
    content = bytearray(path.read_bytes())
    content[100:8192] = b"\xff" * (8192 - 100)
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=r"damaged.*Restore a copy"):
        count(path)


def test_odd_characters_in_a_path(tmp_path: Path, make_run: MakeRun, make_step: MakeStep) -> None:
    path = tmp_path / "a b?c#d%20é" / "runs;1.db"
    writer = RunWriter(path, make_run(), (CPU,))
    writer.write(make_step(0))
    assert writer.flush()
    assert count(path) == 1
    writer.close(RunStatus.COMPLETED)
    assert count(path) == 1
    assert path.exists()
