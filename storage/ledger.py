"""One run's rows as one process writes them. Every method is one transaction, or an exception.

The writer's thread owns it; nothing here waits, retries or warns (see ``writer.py``).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from . import rollups
from .details import detail_row
from .engine import clean_text, enable_wal, redacted, sqlite_path, writer_engine
from .errors import StorageError
from .failures import StoreGone, opening_error, retry_busy
from .records import (
    DeviceInfo,
    Event,
    ModuleRecord,
    PeakGroup,
    PhaseRecord,
    PredictionRecord,
    Record,
    RunInfo,
    RunStatus,
    StepRecord,
    TimelinePoint,
)
from .rows import (
    STEP,
    Row,
    device_values,
    event_values,
    prediction_phase_values,
    prediction_term_values,
    prediction_values,
    run_values,
    step_row,
)
from .schema import devices, events, prediction_phases, prediction_terms, predictions, runs
from .statements import batch_statements
from .upgrade import ensure_schema

_SEVERITY = {
    RunStatus.RUNNING: 0,
    RunStatus.COMPLETED: 1,
    RunStatus.INTERRUPTED: 2,
    RunStatus.FAILED: 3,
    RunStatus.OUT_OF_MEMORY: 4,
}
"""Of several ranks' endings the gravest is the run's: an OOM on one rank kills the others."""


# Built once: building a statement costs more than running this one.
_BEAT = (
    update(runs)
    .where(runs.c.id == bindparam("of_run"))
    .values(
        heartbeat_at=bindparam("now"),
        lost_records=runs.c.lost_records + bindparam("lost", type_=BigInteger),
    )
)


@dataclass(frozen=True, slots=True)
class NewDevice:
    """A device that the process found after the run began."""

    position: int
    device: DeviceInfo


@dataclass(frozen=True, slots=True)
class RunChange:
    """Changes to the run's own row."""

    values: Mapping[str, Any]


Item = Record | NewDevice | RunChange

_DetailStep = tuple[str, int, int]
"""Table, device and step."""


class RunLedger:
    """The rows of one run that one process writes."""

    def __init__(self, url: str, run_id: str) -> None:
        self.where = redacted(url)
        self._run_id = clean_text(run_id)
        self._path = sqlite_path(url)
        self._engine = writer_engine(url)
        self._identity: tuple[int, int] | None = None
        self._connection: Connection | None = None
        self._device_ids: dict[int, int] = {}
        self._tracks: dict[int, rollups.DeviceTrack] = {}
        self._earlier: dict[int, int] = {}  # last step of a device before this process
        self._cleared: set[_DetailStep] = set()
        self._rank = 0
        self._sql = batch_statements("?" if self._path is not None else "%s")

    def open(self, run: RunInfo, run_devices: Sequence[DeviceInfo]) -> None:
        """Make the store where there is none, and enter the run or join it.

        A rank that joins leaves the run's row as it is. Only the run's first rank, when it
        comes back to a run that had ended, sets it running again.

        Raises:
            StorageError: the store cannot be made, opened or written.
        """
        try:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            ensure_schema(self._engine, self.where)
            if self._path is not None:
                status = os.stat(self._path)
                self._identity = (status.st_dev, status.st_ino)
            retry_busy(lambda: self._enter(run, run_devices))
        except (DBAPIError, OSError) as error:
            self.dispose()
            raise opening_error(error, self.where) from error
        except StorageError:
            self.dispose()
            raise
        self._close_connection()

    def store(self, items: Sequence[Item], *, lost: int = 0) -> None:
        """Write a batch and the run's heartbeat in one transaction, or nothing of it.

        Args:
            items: in the order in which they were given.
            lost: how many records were dropped since the last time.

        Raises:
            Exception: whatever went wrong; the store is as before, and may be tried again.
        """
        self._check_identity()
        fresh: dict[int, int] = {}
        cleared: set[_DetailStep] = set()
        try:
            connection = self._connect()
            with connection.begin():
                self._store_items(connection, items, fresh, cleared)
                self._beat(connection, lost)
        except BaseException:
            self._tracks.clear()
            self._close_connection()
            raise
        self._device_ids.update(fresh)
        self._cleared |= cleared

    def finish(self, status: RunStatus, message: str | None) -> None:
        """Say how this process ended; the gravest ending of all ranks is the run's.

        A run is completed when the lowest of its recorded ranks has completed.
        """
        self._check_identity()
        with self._connect().begin():
            connection = self._connect()
            row = connection.execute(
                select(runs.c.status).where(runs.c.id == self._run_id).with_for_update()
            ).one()
            if status is RunStatus.COMPLETED and self._rank > self._lowest_rank(connection):
                return
            if _SEVERITY[status] <= _SEVERITY[RunStatus(row.status)]:
                return
            connection.execute(
                update(runs)
                .where(runs.c.id == self._run_id)
                .values(
                    status=status.value,
                    status_message=None if message is None else clean_text(message),
                    ended_at=_now(),
                )
            )

    def settle(self) -> None:
        """Leave one plain file behind, which can be read where nothing may be written.

        Emptying the log needs no reader in the middle of it, leaving WAL needs nobody at all;
        where somebody is, all stays as it is.
        """
        if self._path is None or self._connection is None:
            return
        raw = self._connection.connection.dbapi_connection
        assert raw is not None
        cursor = raw.cursor()
        try:
            cursor.execute("PRAGMA busy_timeout=200")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            cursor.execute("PRAGMA journal_mode=DELETE").fetchall()
        except self._engine.dialect.loaded_dbapi.Error:
            return
        finally:
            cursor.close()

    def dispose(self) -> None:
        """Let go of the database."""
        self._close_connection()
        self._engine.dispose()

    def _enter(self, run: RunInfo, run_devices: Sequence[DeviceInfo]) -> None:
        connection = self._connect()
        with connection.begin():
            values = run_values(run) | {"heartbeat_at": _now()}
            make = sqlite.insert if self._path is not None else postgresql.insert
            entered = connection.execute(
                make(runs)
                .values(values)
                .on_conflict_do_nothing(index_elements=["id"])
                .returning(runs.c.id)
            ).first()
            if run_devices:
                self._rank = min(device.rank for device in run_devices)
            for position, device in enumerate(run_devices):
                self._device_ids[position] = self._enter_device(connection, device)
            if entered is None and self._rank == self._lowest_rank(connection):
                connection.execute(
                    update(runs)
                    .where(runs.c.id == self._run_id, runs.c.status != RunStatus.RUNNING.value)
                    .values(status=RunStatus.RUNNING.value, status_message=None, ended_at=None)
                )

    def _enter_device(self, connection: Connection, device: DeviceInfo) -> int:
        values = device_values(device)
        key = ("rank", "host", "kind", "index")
        found = connection.execute(
            select(devices.c.id, devices.c.last_step).where(
                devices.c.run_id == self._run_id, *(devices.c[name] == values[name] for name in key)
            )
        ).one_or_none()
        if found is not None:
            known = {name: value for name, value in values.items() if value is not None}
            connection.execute(update(devices).where(devices.c.id == found.id).values(known))
            if found.last_step is not None:
                self._earlier[found.id] = found.last_step
            return int(found.id)
        made = connection.execute(insert(devices).values(run_id=self._run_id, **values))
        assert made.inserted_primary_key is not None
        return int(made.inserted_primary_key[0])

    def _lowest_rank(self, connection: Connection) -> int:
        lowest = connection.execute(
            select(func.min(devices.c.rank)).where(devices.c.run_id == self._run_id)
        ).scalar()
        return self._rank if lowest is None else int(lowest)

    def _store_items(
        self,
        connection: Connection,
        items: Sequence[Item],
        fresh: dict[int, int],
        cleared: set[_DetailStep],
    ) -> None:
        known = dict(self._device_ids)
        step_rows: dict[int, list[Row]] = defaultdict(list)
        detail_rows: dict[str, list[Row]] = defaultdict(list)
        for item in items:
            match item:
                case StepRecord():
                    step_rows[known[item.device]].append(step_row(item))
                case PhaseRecord() | ModuleRecord() | TimelinePoint() | PeakGroup():
                    name, row = detail_row(known[item.device], item)
                    detail_rows[name].append(row)
                case Event():
                    device_id = None if item.device is None else known[item.device]
                    connection.execute(insert(events), event_values(self._run_id, device_id, item))
                case PredictionRecord():
                    _store_prediction(connection, known[item.device], item)
                case NewDevice():
                    number = self._enter_device(connection, item.device)
                    known[item.position] = fresh[item.position] = number
                case RunChange():
                    self._change_run(connection, item.values)
        for device_id, rows in step_rows.items():
            self._store_steps(connection, device_id, rows)
        for name, rows in detail_rows.items():
            cleared |= self._clear_repeated(connection, name, rows)
            self._run_many(connection, name, rows)

    def _clear_repeated(
        self, connection: Connection, name: str, rows: Sequence[Row]
    ) -> set[_DetailStep]:
        """Take out what a resumed run left at the steps that it repeats, once a step.

        A repetition may have fewer instants or other dtypes: its rows would mix with the old.
        """
        repeated = {
            (name, row[0], row[1])
            for row in rows
            if row[0] in self._earlier and row[1] <= self._earlier[row[0]]
        } - self._cleared
        self._run_many(connection, f"clear {name}", [key[1:] for key in sorted(repeated)])
        return repeated

    def _store_steps(self, connection: Connection, device_id: int, rows: Sequence[Row]) -> None:
        track = self._tracks.get(device_id)
        if track is None:
            track = rollups.load_track(connection, device_id)
        closed: list[rollups.Closed] = []
        replaced: list[int] = []
        for row in rows:
            if track.last_step is not None and row[STEP] <= track.last_step:
                replaced.append(row[STEP])
            else:
                closed += track.add(row)
        self._run_many(connection, "steps", [(device_id, *row) for row in rows])
        self._store_closed(connection, device_id, closed)
        if replaced:
            assert track.last_step is not None
            for level in rollups.rebuild(connection, device_id, replaced, track.last_step):
                self._store_closed(connection, device_id, level)
            track = rollups.load_track(connection, device_id, last_step=track.last_step)
        self._tracks[device_id] = track
        peak_step = None if track.peak is None else track.peak[STEP]
        self._run_many(connection, "marks", [(track.last_step, peak_step, device_id)])

    def _store_closed(
        self, connection: Connection, device_id: int, closed: Sequence[rollups.Closed]
    ) -> None:
        rows = [(device_id, level, bucket, *row) for level, bucket, row in closed]
        self._run_many(connection, "rollups", rows)

    def _run_many(self, connection: Connection, what: str, rows: list[Row]) -> None:
        if rows:
            connection.exec_driver_sql(self._sql[what], rows)

    def _change_run(self, connection: Connection, changes: Mapping[str, Any]) -> None:
        values = dict(changes)
        stored = connection.execute(
            select(runs.c.settings, runs.c.environment)
            .where(runs.c.id == self._run_id)
            .with_for_update()
        ).one()
        for name in ("settings", "environment"):
            if name in values:
                values[name] = {**getattr(stored, name), **values[name]}
        for name in ("name", "status_message"):
            if values.get(name) is not None:
                values[name] = clean_text(values[name])
        connection.execute(update(runs).where(runs.c.id == self._run_id).values(values))

    def _beat(self, connection: Connection, lost: int) -> None:
        values = {"of_run": self._run_id, "now": _now(), "lost": lost}
        if not connection.execute(_BEAT, values).rowcount:
            raise StoreGone(self.where, f"the run {self._run_id} was deleted from it")

    def _connect(self) -> Connection:
        if self._connection is None:
            connection = self._engine.connect()
            if self._path is not None:
                enable_wal(connection.connection.dbapi_connection)  # type: ignore[arg-type]
            self._connection = connection
        return self._connection

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _check_identity(self) -> None:
        """SQLite goes on writing into a file that was deleted: see that it is still there."""
        if self._path is None:
            return
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            raise StoreGone(self.where, "it was deleted while the run was recorded") from None
        if (status.st_dev, status.st_ino) != self._identity:
            raise StoreGone(self.where, "another file took its place while the run was recorded")


def _store_prediction(connection: Connection, device_id: int, record: PredictionRecord) -> None:
    made = connection.execute(insert(predictions).values(prediction_values(device_id, record)))
    assert made.inserted_primary_key is not None
    number = int(made.inserted_primary_key[0])
    if record.phases:
        connection.execute(insert(prediction_phases), prediction_phase_values(number, record))
    if record.terms:
        connection.execute(insert(prediction_terms), prediction_term_values(number, record))


def _now() -> datetime:
    return datetime.now(UTC)
