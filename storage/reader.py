"""Reading runs: read-only, beside whoever writes them; every result is a frozen record."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Table, func, select
from sqlalchemy.exc import DBAPIError

from . import lookups, rollups, zoom
from .details import (
    MODULE_COLUMNS,
    PEAK_GROUP_COLUMNS,
    PHASE_COLUMNS,
    TIMELINE_COLUMNS,
    module_record,
    peak_group,
    phase_record,
    timeline_point,
)
from .engine import normalise_url, redacted
from .failures import opening_error
from .readonly import open_source
from .records import (
    DeviceInfo,
    Event,
    ModuleRecord,
    PeakGroup,
    PhaseRecord,
    PredictionRecord,
    RunInfo,
    RunStatus,
    StepRecord,
    TimelinePoint,
)
from .results import RunPage, RunSummary, StepTable
from .rows import (
    STEP,
    STEP_COLUMNS,
    Row,
    device_info,
    event_record,
    prediction_record,
    step_record,
)
from .schema import (
    devices,
    events,
    modules,
    peak_groups,
    phases,
    prediction_phases,
    prediction_terms,
    predictions,
    steps,
    timeline,
)
from .upgrade import check_schema

__all__ = ["RunPage", "RunReader", "RunSummary", "StepTable"]

STALE_AFTER = lookups.STALE_AFTER

_CHUNK = 2000
_STEP_FIELDS = [steps.c[name] for name in STEP_COLUMNS]

_T = TypeVar("_T")


class RunReader:
    """Reads one store. May be kept open for long and used from several threads.

    Args:
        url: URL or path of the store; ``None`` for the default.

    Raises:
        StorageError: there is no store, it is not ours, too old or too new, or unreachable.
            Every method may raise it too: a store can vanish.
    """

    def __init__(self, url: str | Path | None = None) -> None:
        self.url = normalise_url(url)
        self.where = redacted(self.url)
        self._source = open_source(self.url)
        try:
            self._read(lambda _connection: None)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store."""
        self._source.close()

    def runs(
        self,
        *,
        search: str | None = None,
        status: RunStatus | str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> RunPage:
        """Runs, newest first.

        Args:
            search: part of a name or an id, in any case.
            status: only runs that stand like this (``STALE`` and ``RUNNING`` told apart).
            limit: how many at most.
            offset: how many of the newest to leave out.
        """
        wanted = None if status is None else RunStatus(status)
        return self._read(
            lambda connection: lookups.page_of_runs(
                connection, search=search, status=wanted, limit=limit, offset=offset
            )
        )

    def run(self, key: str) -> RunInfo:
        """One run.

        Args:
            key: its id, its name (the newest run of that name), or at least four digits with
                which only its id begins; tried in this order.

        Raises:
            RunNotFound: none; the error names those that are spelled alike.
            AmbiguousRun: several ids begin like this.
        """
        return self._read(lambda connection: lookups.find_run(connection, key, self.where))

    def devices(self, run_id: str) -> tuple[DeviceInfo, ...]:
        """Devices of a run by rank, then index."""
        query = (
            select(devices)
            .where(devices.c.run_id == run_id)
            .order_by(devices.c.rank, devices.c.host, devices.c.kind, devices.c.index)
        )
        return self._read(
            lambda connection: tuple(
                device_info(row) for row in connection.execute(query).mappings()
            )
        )

    def steps(
        self,
        run_id: str,
        device_id: int,
        *,
        first: int | None = None,
        last: int | None = None,
        max_rows: int = 2000,
    ) -> StepTable:
        """Steps of a device, at the finest level that stays within ``max_rows``.

        Args:
            run_id: the run.
            device_id: ``DeviceInfo.id`` of one of its devices.
            first: first step, inclusive; from the start where not given.
            last: last step, inclusive; to the newest where not given.
            max_rows: how many rows at most, 1 or more.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows must be 1 or more, not {max_rows}")
        level, rows = self._read(
            lambda connection: zoom.rows_within(
                connection, _checked(connection, run_id, device_id), first, last, max_rows
            )
        )
        rows = rollups.thin(rows, max_rows)
        columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in STEP_COLUMNS]
        return StepTable(level=level, columns=dict(zip(STEP_COLUMNS, columns, strict=True)))

    def iter_steps(self, run_id: str, device_id: int) -> Iterator[StepRecord]:
        """Every step of a device in order, a few thousand at a time."""
        after: int | None = None
        while True:
            rows = self._read(partial(_steps_after, run_id, device_id, after))
            for row in rows:
                yield step_record(device_id, row)
            if len(rows) < _CHUNK:
                return
            after = rows[-1][STEP]

    def step(self, run_id: str, device_id: int, step: int) -> StepRecord | None:
        """One step of a device."""
        return self._read(
            lambda connection: _one_step(connection, _checked(connection, run_id, device_id), step)
        )

    def last_step(self, run_id: str, device_id: int) -> StepRecord | None:
        """The newest step of a device."""
        return self._marked_step(run_id, device_id, "last_step")

    def peak_step(self, run_id: str, device_id: int) -> StepRecord | None:
        """The step of a device with the highest ``peak.allocated``, the first of several."""
        return self._marked_step(run_id, device_id, "peak_step")

    def detail_steps(self, run_id: str, device_id: int) -> tuple[int, ...]:
        """Steps of a device of which phases or modules are known."""

        def work(connection: Connection) -> tuple[int, ...]:
            number = _checked(connection, run_id, device_id)
            found = {*_steps_in(connection, phases, number)}
            found |= {*_steps_in(connection, modules, number)}
            return tuple(sorted(found))

        return self._read(work)

    def phases(self, run_id: str, device_id: int, step: int) -> tuple[PhaseRecord, ...]:
        """Phases inside one step of a device, in order."""
        columns = [phases.c[name] for name in PHASE_COLUMNS]
        rows = self._rows_inside(run_id, device_id, step, columns, [phases.c.sequence])
        return tuple(phase_record(row) for row in rows)

    def modules(self, run_id: str, device_id: int, step: int) -> tuple[ModuleRecord, ...]:
        """What modules held for backward in one step of a device, the largest first.

        A module that held tensors of several dtypes has a row for each.
        """
        columns = [modules.c[name] for name in MODULE_COLUMNS]
        order = [modules.c.activations.desc(), modules.c.module, modules.c.dtype]
        rows = self._rows_inside(run_id, device_id, step, columns, order)
        return tuple(module_record(row) for row in rows)

    def timeline(self, run_id: str, device_id: int, step: int) -> tuple[TimelinePoint, ...]:
        """Instants inside one detail step of a device, in order."""
        columns = [timeline.c[name] for name in TIMELINE_COLUMNS]
        rows = self._rows_inside(run_id, device_id, step, columns, [timeline.c.sequence])
        return tuple(timeline_point(row) for row in rows)

    def peak_groups(self, run_id: str, device_id: int, step: int) -> tuple[PeakGroup, ...]:
        """Tensors alive at the peak of one detail step of a device, the largest group first."""
        columns = [peak_groups.c[name] for name in PEAK_GROUP_COLUMNS]
        rows = self._rows_inside(run_id, device_id, step, columns, [peak_groups.c.position])
        return tuple(peak_group(row) for row in rows)

    def events(self, run_id: str) -> tuple[Event, ...]:
        """Events of a run in the order of their instants."""
        query = (
            select(events).where(events.c.run_id == run_id).order_by(events.c.at_ns, events.c.id)
        )
        return self._read(
            lambda connection: tuple(
                event_record(row) for row in connection.execute(query).mappings()
            )
        )

    def predictions(self, run_id: str) -> tuple[PredictionRecord, ...]:
        """The newest prediction of each device and method."""
        return self._read(lambda connection: _predictions(connection, run_id))

    def change_token(self, run_id: str) -> tuple[object, ...]:
        """Something that differs once the run has new rows, another status or other settings."""
        return self._read(lambda connection: lookups.change_token(connection, run_id, self.where))

    def _rows_inside(
        self,
        run_id: str,
        device_id: int,
        step: int,
        columns: Sequence[Column[Any]],
        order: Sequence[ColumnElement[Any]],
    ) -> list[Row]:
        """Rows of one table about one step of a device."""
        table = columns[0].table

        def work(connection: Connection) -> list[Row]:
            number = _checked(connection, run_id, device_id)
            query = select(*columns).where(table.c.device_id == number, table.c.step == step)
            return [tuple(row) for row in connection.execute(query.order_by(*order))]

        return self._read(work)

    def _marked_step(self, run_id: str, device_id: int, mark: str) -> StepRecord | None:
        def work(connection: Connection) -> StepRecord | None:
            number = _checked(connection, run_id, device_id)
            step = connection.execute(
                select(devices.c[mark]).where(devices.c.id == number)
            ).scalar()
            return None if step is None else _one_step(connection, number, step)

        return self._read(work)

    def _read(self, work: Callable[[Connection], _T]) -> _T:
        def checked(connection: Connection) -> _T:
            check_schema(connection, self.where)
            return work(connection)

        try:
            return self._source.read(checked)
        except (DBAPIError, sqlite3.Error) as error:
            raise opening_error(error, self.where) from error


def _checked(connection: Connection, run_id: str, device_id: int) -> int:
    """The device's number, or -1 when it is not a device of this run."""
    query = select(devices.c.id).where(devices.c.id == device_id, devices.c.run_id == run_id)
    found: int | None = connection.execute(query).scalar()
    return -1 if found is None else found


def _steps_in(connection: Connection, table: Table, device_id: int) -> list[int]:
    """Distinct steps of a table, hopping from one to the next instead of reading every row."""
    least = select(func.min(table.c.step).label("step")).where(table.c.device_id == device_id)
    hops = least.cte("hops", recursive=True)
    following = (
        select(func.min(table.c.step))
        .where(table.c.device_id == device_id, table.c.step > hops.c.step)
        .scalar_subquery()
    )
    hops = hops.union_all(select(following).where(hops.c.step.is_not(None)))
    return [*connection.execute(select(hops.c.step).where(hops.c.step.is_not(None))).scalars()]


def _one_step(connection: Connection, device_id: int, step: int) -> StepRecord | None:
    query = select(*_STEP_FIELDS).where(steps.c.device_id == device_id, steps.c.step == step)
    row = connection.execute(query).one_or_none()
    return None if row is None else step_record(device_id, row)


def _steps_after(
    run_id: str, device_id: int, after: int | None, connection: Connection
) -> list[Row]:
    number = _checked(connection, run_id, device_id)
    query = select(*_STEP_FIELDS).where(steps.c.device_id == number)
    if after is not None:
        query = query.where(steps.c.step > after)
    rows = connection.execute(query.order_by(steps.c.step).limit(_CHUNK))
    return [tuple(row) for row in rows]


def _predictions(connection: Connection, run_id: str) -> tuple[PredictionRecord, ...]:
    newest = (
        select(func.max(predictions.c.id))
        .join(devices, devices.c.id == predictions.c.device_id)
        .where(devices.c.run_id == run_id)
        .group_by(predictions.c.device_id, predictions.c.method)
    )
    rows = connection.execute(
        select(predictions)
        .join(devices, devices.c.id == predictions.c.device_id)
        .where(predictions.c.id.in_(newest))
        .order_by(devices.c.rank, devices.c.index, predictions.c.method)
    ).mappings()
    answer = []
    for row in rows.all():
        number = row["id"]
        of_phases = connection.execute(
            select(prediction_phases).where(prediction_phases.c.prediction_id == number)
        ).mappings()
        of_terms = connection.execute(
            select(prediction_terms)
            .where(prediction_terms.c.prediction_id == number)
            .order_by(prediction_terms.c.position)
        ).mappings()
        answer.append(prediction_record(row, of_phases.all(), of_terms.all()))
    return tuple(answer)
