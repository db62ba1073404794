"""A writer in trouble: training goes on, one warning says what to do, losses are counted."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, text
from vramscope.storage import engine as store_engine
from vramscope.storage import writer as writer_module
from vramscope.storage.engine import normalise_url, postgres_engine
from vramscope.storage.errors import StorageWarning
from vramscope.storage.reader import RunReader
from vramscope.storage.records import DeviceInfo, RunInfo, RunStatus, StepRecord
from vramscope.storage.writer import RunWriter

MakeRun = Callable[..., RunInfo]
MakeStep = Callable[..., StepRecord]

CPU = DeviceInfo(host="h", kind="cpu")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of milliseconds instead of seconds."""
    monkeypatch.setattr(store_engine, "BUSY_TIMEOUT_MS", 20)
    monkeypatch.setattr(writer_module, "_LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(writer_module, "CLOSE_TIMEOUT_S", 0.3)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else in the middle of a long transaction."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


@contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def stored_steps(path: Path, run_id: str) -> list[int]:
    with RunReader(path) as reader:
        (device,) = reader.devices(run_id)
        assert device.id is not None
        return list(reader.steps(run_id, device.id, max_rows=100_000).columns["step"])


def integrity(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        answer: str = connection.execute("PRAGMA integrity_check").fetchone()[0]
    connection.close()
    return answer


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_goes_away_costs_nothing(
    path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    writer = RunWriter(path, make_run(), (CPU,), flush_interval_s=0.01)
    with no_warning():
        with locked(path):
            for step in range(100):
                writer.write(make_step(step))
            assert not writer.flush(0.2)
            assert writer.failed is not None
            assert "locked by another process" in writer.failed
        assert writer.flush(10)
        writer.close(RunStatus.COMPLETED)
    assert (writer.lost_records, writer.failed) == (0, None)
    assert stored_steps(path, make_run().id) == list(range(100))


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_stays_is_said_once_and_does_not_hold_up_the_end(
    path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    writer = RunWriter(path, make_run(), (CPU,), flush_interval_s=0.01)
    with locked(path), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(7):
            writer.write(make_step(step))
        writer.close(RunStatus.COMPLETED)
    (warning,) = caught
    assert warning.category is StorageWarning
    assert "locked by another process" in str(warning.message)
    assert "7 records are lost" in str(warning.message)
    assert writer.lost_records == 7


@pytest.mark.usefixtures("impatient")
def test_what_waits_in_memory_is_bounded_and_the_rest_counted(
    path: Path, make_run: MakeRun, make_step: MakeStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "CAPACITY", 50)
    monkeypatch.setattr(writer_module, "BATCH", 10)
    writer = RunWriter(path, make_run(), (CPU,), flush_interval_s=0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with locked(path):
            for step in range(500):
                writer.write(make_step(step))
            lost = writer.lost_records
            assert 500 - 60 <= lost <= 500 - 50
        writer.close(RunStatus.COMPLETED)
    assert [w.category for w in caught] == [StorageWarning]
    assert f"{lost} are lost" in str(caught[0].message)
    assert len(stored_steps(path, make_run().id)) == 500 - lost
    with RunReader(path) as reader:
        assert reader.run(make_run().id).lost_records == lost
        assert reader.run(make_run().id).status is RunStatus.COMPLETED


@contextmanager
def full_disk(pages: int) -> Iterator[None]:
    """SQLite's own limit: its answer is that of a full disk."""

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}")

    event.listen(Engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(Engine, "connect", limit)


@pytest.mark.usefixtures("impatient")
def test_a_full_disk_is_said_once_and_forgotten_when_there_is_room(
    path: Path, make_run: MakeRun, make_step: MakeStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(60):
        writer = RunWriter(path, make_run(), (CPU,), flush_interval_s=5)
        for step in range(5000):
            writer.write(make_step(step))
        with pytest.warns(StorageWarning, match=r"the disk is full\. Free some space") as caught:
            assert not writer.flush(30)
        assert len(caught) == 1
    monkeypatch.setattr(writer_module, "CLOSE_TIMEOUT_S", 20)
    with no_warning():
        writer.close(RunStatus.COMPLETED)
    assert (writer.lost_records, writer.failed) == (0, None)
    assert stored_steps(path, make_run().id) == list(range(5000))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_deleted_store_is_not_made_again(
    path: Path, make_run: MakeRun, make_step: MakeStep, replaced: bool
) -> None:
    writer = RunWriter(path, make_run(), (CPU,), flush_interval_s=5)
    writer.write(make_step(0))
    assert writer.flush()
    path.rename(path.with_name("moved.db"))
    if replaced:
        path.touch()
    writer.write(make_step(1))
    with pytest.warns(StorageWarning, match=r"deleted|took its place") as caught:
        assert not writer.flush()
    writer.write(make_step(2))
    writer.close(RunStatus.COMPLETED)
    assert len(caught) == 1
    assert "Start the training again to record it" in str(caught[0].message)
    assert writer.lost_records == 2
    assert path.exists() == replaced
    if replaced:
        assert path.stat().st_size == 0


@pytest.mark.usefixtures("impatient")
def test_warnings_made_errors_do_not_end_the_thread(
    path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    writer = RunWriter(path, make_run(), (CPU,), flush_interval_s=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer.write(make_step(0, device=9))
        writer.write(make_step(1))
        assert writer.flush()
    writer.close(RunStatus.COMPLETED)
    assert writer.lost_records == 1
    assert stored_steps(path, make_run().id) == [1]


@pytest.mark.parametrize("ready_url", ["postgresql"], indirect=True)
def test_a_lost_connection_is_made_again(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    writer = RunWriter(ready_url, make_run(), (CPU,), flush_interval_s=5)
    writer.write(make_step(0))
    assert writer.flush()
    engine = postgres_engine(normalise_url(ready_url))
    with engine.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'vramscope' AND pid <> pg_backend_pid() "
                "AND datname = current_database()"
            )
        )
    engine.dispose()
    writer.write(make_step(1))
    with pytest.warns(StorageWarning, match="records wait in memory"):
        assert writer.flush(15)
    writer.close(RunStatus.COMPLETED)
    assert writer.lost_records == 0
    with RunReader(ready_url) as reader:
        (device,) = reader.devices(make_run().id)
        assert device.id is not None
        assert len(reader.steps(make_run().id, device.id)) == 2


def test_after_the_end_nothing_is_kept_and_nothing_raised(
    path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    writer = RunWriter(path, make_run(), (CPU,))
    writer.close(RunStatus.FAILED, "first")
    writer.close(RunStatus.OUT_OF_MEMORY, "second")
    writer.write(make_step(0))
    writer.update_run(name="late")
    writer.add_device(CPU)
    assert not writer.flush()
    assert writer.lost_records == 1
    with RunReader(path) as reader:
        found = reader.run(make_run().id)
    assert (found.status, found.status_message, found.name) == ("failed", "first", "small run")


def test_a_finished_run_is_one_plain_file(
    path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    writer = RunWriter(path, make_run(), (CPU,))
    writer.write(make_step(0))
    assert writer.flush()
    assert path.with_name("runs.db-wal").exists()
    writer.close(RunStatus.COMPLETED)
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]
    assert path.read_bytes()[18] == 1, "still in WAL mode"


def test_a_reader_in_the_middle_does_not_disturb_the_end(
    path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    writer = RunWriter(path, make_run(), (CPU,))
    reading = sqlite3.connect(path, isolation_level=None)
    reading.execute("BEGIN")
    reading.execute("SELECT count(*) FROM steps").fetchall()
    writer.write(make_step(0))
    with no_warning():
        writer.close(RunStatus.COMPLETED)
    reading.close()
    assert (writer.lost_records, writer.failed) == (0, None)
    assert stored_steps(path, make_run().id) == [0]


def test_one_rank_ending_leaves_the_others_writing(
    path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    ranks = [DeviceInfo(rank=rank, host="h", kind="cpu") for rank in range(2)]
    first, second = (RunWriter(path, make_run(), (device,)) for device in ranks)
    with no_warning():
        first.close(RunStatus.COMPLETED)
        for step in range(10):
            second.write(make_step(step))
            assert second.flush()
        second.close(RunStatus.COMPLETED)
    assert second.lost_records == 0
    assert integrity(path) == "ok"


def test_a_write_costs_the_training_thread_microseconds(
    path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    writer = RunWriter(path, make_run(), (CPU,), flush_interval_s=5)
    record = make_step(0)
    costs = []
    for _ in range(5):
        start = time.thread_time()
        for _ in range(1000):
            writer.write(record)
        costs.append((time.thread_time() - start) / 1000)
    writer.close(RunStatus.COMPLETED)
    assert min(costs) < 5e-6, costs


def test_many_threads_may_write(path: Path, make_run: MakeRun, make_step: MakeStep) -> None:
    writer = RunWriter(path, make_run(), (CPU,), flush_interval_s=0.01)

    def write(begin: int) -> None:
        for step in range(begin, begin + 200):
            writer.write(make_step(step))

    threads = [threading.Thread(target=write, args=(200 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close(RunStatus.COMPLETED)
    assert stored_steps(path, make_run().id) == list(range(800))


@pytest.mark.parametrize("interval", [0, -1, 6, float("nan")])
def test_an_interval_out_of_range_is_refused(
    path: Path, make_run: MakeRun, interval: float
) -> None:
    with pytest.raises(ValueError, match="flush_interval_s must be above 0 and at most 5"):
        RunWriter(path, make_run(), (CPU,), flush_interval_s=interval)


PROCESS = """
import os, signal, sys, time
from datetime import UTC, datetime
from vramscope.storage.records import DeviceInfo, MemoryUse, RunInfo, RunStatus, StepRecord
from vramscope.storage.writer import RunWriter

def record(step):
    use = MemoryUse(allocated=step)
    return StepRecord(device=0, step=step, started_ns=0, duration_s=0.0, micro_steps=1,
                      end=use, peak=use)

run = RunInfo(id="run", name="run", started_at=datetime.now(UTC))
writer = RunWriter(sys.argv[1], run, [DeviceInfo(host="h", kind="cpu")])
for step in range(20):
    writer.write(record(step))
"""


def run_process(path: Path, rest: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROCESS + rest, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_process_that_ends_without_close_keeps_what_it_wrote(path: Path) -> None:
    done = run_process(path, "raise SystemExit(3)")
    assert (done.returncode, done.stderr) == (3, "")
    assert stored_steps(path, "run") == list(range(20))
    with RunReader(path) as reader:
        assert reader.run("run").status is RunStatus.RUNNING


def test_a_killed_process_keeps_what_it_flushed(path: Path) -> None:
    done = run_process(
        path, "assert writer.flush()\nwriter.write(record(99))\nos.kill(os.getpid(), 9)"
    )
    assert done.returncode == -signal.SIGKILL
    assert stored_steps(path, "run") in (list(range(20)), [*range(20), 99])
    assert integrity(path) == "ok"
    with RunReader(path) as reader:
        assert reader.run("run").status is RunStatus.RUNNING


FORK = """
assert writer.flush()
child = os.fork()
if not child:
    for step in range(1000, 1010):
        writer.write(record(step))
    writer.update_run(name="child")
    writer.add_device(DeviceInfo(host="h", kind="cuda"))
    assert not writer.flush(0.1)
    writer.close(RunStatus.FAILED, "child")
    assert writer.lost_records == 0
    sys.exit(0)  # with all of the interpreter's cleaning up
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
for step in range(20, 40):
    writer.write(record(step))
    assert writer.flush()
writer.close(RunStatus.COMPLETED)
assert (writer.lost_records, writer.failed) == (0, None)
"""


def test_a_forked_child_does_nothing(path: Path) -> None:
    done = run_process(path, FORK)
    assert (done.returncode, done.stderr) == (0, "")
    assert stored_steps(path, "run") == list(range(40))
    assert integrity(path) == "ok"
    with RunReader(path) as reader:
        found = reader.run("run")
        assert (found.status, found.name, len(reader.devices("run"))) == ("completed", "run", 1)


def test_a_forked_child_may_record_a_run_of_its_own(path: Path) -> None:
    own = FORK.replace("sys.exit(0)", "OWN\n    sys.exit(0)").replace(
        "OWN",
        """other = RunWriter(sys.argv[1], RunInfo(id="own", name="own",
                      started_at=datetime.now(UTC)), [DeviceInfo(host="h", kind="cpu")])
    other.write(record(5))
    other.close(RunStatus.COMPLETED)""",
    )
    done = run_process(path, own)
    assert (done.returncode, done.stderr) == (0, "")
    assert stored_steps(path, "own") == [5]
    assert stored_steps(path, "run") == list(range(40))


def test_nothing_waits_for_a_child_forked_in_the_middle_of_a_flush(path: Path) -> None:
    """A lock held by the thread at the moment of the fork is held for ever in the child."""
    done = run_process(
        path,
        """
with writer._lock:
    child = os.fork()
    if not child:
        writer.write(record(1))
        writer.add_device(DeviceInfo(host="h", kind="cuda"))
        writer.close(RunStatus.COMPLETED)
        sys.exit(0)
deadline = time.monotonic() + 10
while not (ended := os.waitpid(child, os.WNOHANG))[0]:
    if time.monotonic() > deadline:
        os.kill(child, signal.SIGKILL)
        sys.exit("the child hangs")
    time.sleep(0.01)
sys.exit(os.waitstatus_to_exitcode(ended[1]))
""",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_thread_is_a_daemon_with_a_name(path: Path, make_run: MakeRun) -> None:
    writer = RunWriter(path, make_run(), (CPU,))
    (thread,) = [t for t in threading.enumerate() if t.name == "vramscope-writer"]
    assert thread.daemon
    writer.close(RunStatus.COMPLETED)
    assert not thread.is_alive()


def test_records_made_later_are_made_in_order_by_the_writers_own_thread(
    path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    made_by: list[str] = []

    def make(*steps: int) -> Callable[[], Iterator[StepRecord]]:
        def records() -> Iterator[StepRecord]:
            made_by.append(threading.current_thread().name)
            for step in steps:
                yield make_step(step)

        return records

    writer = RunWriter(path, make_run(), (CPU,))
    writer.write(make_step(1))
    writer.write_later(make(2, 3))
    writer.write(make_step(4))
    writer.write_later(make())
    writer.close(RunStatus.COMPLETED)
    assert stored_steps(path, writer.run_id) == [1, 2, 3, 4]
    assert made_by == ["vramscope-writer"] * 2
    assert writer.lost_records == 0


def test_records_that_cannot_be_made_are_complained_of_and_the_others_kept(
    path: Path, make_run: MakeRun, make_step: MakeStep
) -> None:
    def fails() -> Iterator[StepRecord]:
        yield make_step(2)
        raise ZeroDivisionError("books")

    writer = RunWriter(path, make_run(), (CPU,))
    writer.write(make_step(1))
    writer.write_later(fails)
    writer.write(make_step(3))
    with pytest.warns(StorageWarning, match=r"could not be made \(ZeroDivisionError: books\)"):
        writer.close(RunStatus.COMPLETED)
    assert stored_steps(path, writer.run_id) == [1, 3]
    assert writer.lost_records == 1
