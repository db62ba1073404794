"""Finding runs: the list with its figures, a run by what a person types, what has changed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, or_, select

from .errors import AmbiguousRun, RunNotFound
from .records import PredictionMethod, RunInfo, RunStatus
from .results import RunPage, RunSummary
from .rows import run_info
from .schema import (
    devices,
    events,
    modules,
    peak_groups,
    phases,
    predictions,
    runs,
    steps,
    timeline,
)

STALE_AFTER = timedelta(seconds=10)
"""A running run whose writers have been silent for longer is called stale."""

_SHORTEST_PREFIX = 4
_NAMES_COMPARED = 300


def page_of_runs(
    connection: Connection,
    *,
    search: str | None,
    status: RunStatus | None,
    limit: int,
    offset: int,
) -> RunPage:
    """Runs that match, newest first, each with the figures of its fullest device."""
    conditions = _conditions(search, status)
    total = connection.execute(
        select(func.count()).select_from(runs).where(*conditions)
    ).scalar_one()
    found = connection.execute(
        select(runs)
        .where(*conditions)
        .order_by(runs.c.started_at.desc(), runs.c.id)
        .limit(limit)
        .offset(offset)
    ).mappings()
    infos = [current_status(run_info(row)) for row in found]
    fullest = _devices_by_run(connection, [info.id for info in infos])
    return RunPage(
        total=total, rows=tuple(_summary(info, fullest.get(info.id, [])) for info in infos)
    )


def find_run(connection: Connection, key: str, where: str) -> RunInfo:
    """A run by its id, its name (the newest), or the beginning of its id."""
    by_id = connection.execute(select(runs).where(runs.c.id == key)).mappings().one_or_none()
    if by_id is not None:
        return current_status(run_info(by_id))
    by_name = (
        connection.execute(
            select(runs).where(runs.c.name == key).order_by(runs.c.started_at.desc()).limit(1)
        )
        .mappings()
        .one_or_none()
    )
    if by_name is not None:
        return current_status(run_info(by_name))
    if len(key) >= _SHORTEST_PREFIX:
        matches = (
            connection.execute(
                select(runs)
                .where(runs.c.id.startswith(key, autoescape=True))
                .order_by(runs.c.started_at.desc())
                .limit(5)
            )
            .mappings()
            .all()
        )
        if len(matches) > 1:
            raise AmbiguousRun(key, [f"{row['id']} ({row['name']})" for row in matches])
        if matches:
            return current_status(run_info(matches[0]))
    raise RunNotFound(key, _near(connection, key), where=where)


def current_status(info: RunInfo) -> RunInfo:
    """The run as it stands now: a running run that has gone silent is stale."""
    if info.status is not RunStatus.RUNNING:
        return info
    seen = info.heartbeat_at or info.started_at
    if datetime.now(UTC) - seen <= STALE_AFTER:
        return info
    return replace(info, status=RunStatus.STALE)


def change_token(connection: Connection, run_id: str, where: str) -> tuple[object, ...]:
    """A handful of key lookups, whatever the run's length."""
    row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one_or_none()
    if row is None:
        raise RunNotFound(run_id, where=where)
    info = current_status(run_info(row))
    marks: list[object] = []
    for device in connection.execute(
        select(devices.c.id, devices.c.last_step)
        .where(devices.c.run_id == run_id)
        .order_by(devices.c.id)
    ):
        marks.append(tuple(device))
        marks += [
            connection.execute(
                select(func.max(table.c.step)).where(table.c.device_id == device.id)
            ).scalar()
            for table in (phases, modules, timeline, peak_groups)
        ]
        marks.append(
            connection.execute(
                select(func.max(predictions.c.id)).where(predictions.c.device_id == device.id)
            ).scalar()
        )
    marks.append(
        connection.execute(select(func.max(events.c.id)).where(events.c.run_id == run_id)).scalar()
    )
    described = replace(info, heartbeat_at=None)
    return (repr(described), *marks)


def _conditions(search: str | None, status: RunStatus | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if search:
        conditions.append(
            or_(
                func.lower(runs.c.name).contains(search.lower(), autoescape=True),
                func.lower(runs.c.id).contains(search.lower(), autoescape=True),
            )
        )
    if status in (RunStatus.RUNNING, RunStatus.STALE):
        seen = func.coalesce(runs.c.heartbeat_at, runs.c.started_at)
        fresh = seen >= datetime.now(UTC) - STALE_AFTER
        running = runs.c.status == RunStatus.RUNNING.value
        conditions.append(and_(running, fresh if status is RunStatus.RUNNING else ~fresh))
    elif status is not None:
        conditions.append(runs.c.status == status.value)
    return conditions


def _devices_by_run(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[RowMapping]]:
    """Devices of the runs, each with its highest step's figures and its newest prediction."""
    newest = (
        select(predictions.c.device_id, func.max(predictions.c.id).label("id"))
        .where(predictions.c.method == PredictionMethod.ANALYTIC.value)
        .group_by(predictions.c.device_id)
        .subquery()
    )
    query = (
        select(
            devices.c.run_id,
            devices.c.last_step,
            devices.c.total_bytes,
            steps.c.peak_allocated,
            steps.c.peak_reserved,
            predictions.c.peak_allocated.label("predicted"),
        )
        .select_from(devices)
        .outerjoin(
            steps, and_(steps.c.device_id == devices.c.id, steps.c.step == devices.c.peak_step)
        )
        .outerjoin(newest, newest.c.device_id == devices.c.id)
        .outerjoin(predictions, predictions.c.id == newest.c.id)
        .where(devices.c.run_id.in_(run_ids))
        .order_by(devices.c.rank, devices.c.index)
    )
    found: dict[str, list[RowMapping]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["run_id"], []).append(row)
    return found


def _summary(info: RunInfo, found: Sequence[RowMapping]) -> RunSummary:
    if not found:
        return RunSummary(info=info, devices=0)
    fullest = max(found, key=_fullness)
    return RunSummary(
        info=info,
        devices=len(found),
        steps=max(
            (row["last_step"] for row in found if row["last_step"] is not None), default=None
        ),
        peak_allocated=fullest["peak_allocated"],
        peak_reserved=fullest["peak_reserved"],
        capacity=fullest["total_bytes"],
        predicted_peak=fullest["predicted"],
    )


def _fullness(row: RowMapping) -> tuple[float, int]:
    allocated, total = row["peak_allocated"] or 0, row["total_bytes"]
    return (allocated / total if total else 0.0, allocated)


def _near(connection: Connection, key: str) -> list[str]:
    rows = connection.execute(
        select(runs.c.name, runs.c.id).order_by(runs.c.started_at.desc()).limit(_NAMES_COMPARED)
    ).all()
    names = list(dict.fromkeys(row.name for row in rows))
    near = difflib.get_close_matches(key, names, n=3, cutoff=0.5)
    if not near:
        near = difflib.get_close_matches(key, [row.id for row in rows], n=3, cutoff=0.6)
    return near
