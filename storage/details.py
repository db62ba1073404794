"""What is kept of a detail step beside the step itself: four tables keyed by device and step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .engine import clean_text
from .records import (
    MEMORY_LINES,
    MemoryClass,
    ModuleRecord,
    PeakGroup,
    Phase,
    PhaseRecord,
    TimelinePoint,
)
from .rows import PEAK_COLUMNS, Row, memory_row, memory_use, module_text

DetailRecord = PhaseRecord | ModuleRecord | TimelinePoint | PeakGroup

PHASE_COLUMNS = ("device_id", "step", "sequence", "phase", "duration_s", *PEAK_COLUMNS)
MODULE_COLUMNS = ("device_id", "step", "module", "dtype", "activations")
TIMELINE_COLUMNS = ("device_id", "step", "sequence", "offset_s", "phase", *MEMORY_LINES)
PEAK_GROUP_COLUMNS = (
    "device_id",
    "step",
    "position",
    "memory_class",
    "shape",
    "dtype",
    "count",
    "bytes",
)


class DetailTable(NamedTuple):
    """How the rows of one table are written."""

    columns: tuple[str, ...]
    """The key first, which begins with the device and the step."""
    keys: int
    """Columns of the key."""


DETAIL_TABLES: dict[str, DetailTable] = {
    "phases": DetailTable(PHASE_COLUMNS, 3),
    "modules": DetailTable(MODULE_COLUMNS, 4),
    "timeline": DetailTable(TIMELINE_COLUMNS, 3),
    "peak_groups": DetailTable(PEAK_GROUP_COLUMNS, 3),
}

_DTYPE_LENGTH = 32


def detail_row(device_id: int, record: DetailRecord) -> tuple[str, Row]:
    """The table that a record belongs in, and the values of its columns."""
    match record:
        case PhaseRecord():
            return "phases", phase_row(device_id, record)
        case ModuleRecord():
            return "modules", module_row(device_id, record)
        case TimelinePoint():
            return "timeline", timeline_row(device_id, record)
        case PeakGroup():
            return "peak_groups", peak_group_row(device_id, record)


def phase_row(device_id: int, record: PhaseRecord) -> Row:
    """The values of :data:`PHASE_COLUMNS`."""
    return (
        device_id,
        record.step,
        record.sequence,
        record.phase.value,
        record.duration_s,
        *memory_row(record.peak),
    )


def phase_record(row: Sequence[Any]) -> PhaseRecord:
    """A phase from the values of :data:`PHASE_COLUMNS`."""
    device_id, step, sequence, phase, duration_s, *lines = row
    return PhaseRecord(
        device=device_id,
        step=step,
        sequence=sequence,
        phase=Phase(phase),
        duration_s=duration_s,
        peak=memory_use(lines),
    )


def module_row(device_id: int, record: ModuleRecord) -> Row:
    """The values of :data:`MODULE_COLUMNS`."""
    return (
        device_id,
        record.step,
        module_text(record.module),
        _dtype_text(record.dtype),
        record.activations,
    )


def module_record(row: Sequence[Any]) -> ModuleRecord:
    """A module from the values of :data:`MODULE_COLUMNS`."""
    device_id, step, module, dtype, activations = row
    return ModuleRecord(
        device=device_id,
        step=step,
        module=module,
        dtype=dtype,
        activations=activations,
    )


def timeline_row(device_id: int, record: TimelinePoint) -> Row:
    """The values of :data:`TIMELINE_COLUMNS`."""
    return (
        device_id,
        record.step,
        record.sequence,
        record.offset_s,
        record.phase.value,
        *memory_row(record.use),
    )


def timeline_point(row: Sequence[Any]) -> TimelinePoint:
    """An instant from the values of :data:`TIMELINE_COLUMNS`."""
    device_id, step, sequence, offset_s, phase, *lines = row
    return TimelinePoint(
        device=device_id,
        step=step,
        sequence=sequence,
        offset_s=offset_s,
        phase=Phase(phase),
        use=memory_use(lines),
    )


def peak_group_row(device_id: int, record: PeakGroup) -> Row:
    """The values of :data:`PEAK_GROUP_COLUMNS`."""
    return (
        device_id,
        record.step,
        record.position,
        record.memory_class.value,
        clean_text(record.shape),
        _dtype_text(record.dtype),
        record.count,
        record.bytes,
    )


def peak_group(row: Sequence[Any]) -> PeakGroup:
    """A group of tensors from the values of :data:`PEAK_GROUP_COLUMNS`."""
    device_id, step, position, memory_class, shape, dtype, count, size = row
    return PeakGroup(
        device=device_id,
        step=step,
        position=position,
        memory_class=MemoryClass(memory_class),
        shape=shape,
        dtype=dtype,
        count=count,
        bytes=size,
    )


def _dtype_text(dtype: str) -> str:
    return clean_text(dtype)[:_DTYPE_LENGTH]
