"""From a detail step to the records of it: phases, modules, timeline, what the peak is made of."""

from __future__ import annotations

from collections.abc import Iterator

from vramscope.storage.records import (
    ModuleRecord,
    PeakGroup,
    PhaseRecord,
    Record,
    TimelinePoint,
)

from .books import use_of
from .device_books import DeviceBooks, StepBooks
from .facts import DetailFindings
from .replay import largest_groups, timeline

_TIMELINE_POINTS = 240
_GROUPS = 10


def detail_records(
    found: DetailFindings, device_books: DeviceBooks, books: StepBooks, step: int
) -> Iterator[Record]:
    """Yields what a detail step tells about one device beyond the step's own record.

    Args:
        found: By the step.
        device_books: Of the device.
        books: Of this step on this device, closed.
        step: The step's number.
    """
    position, device = device_books.position, device_books.device
    for sequence, (phase, peak) in enumerate(books.phases):
        yield PhaseRecord(
            device=position,
            step=step,
            sequence=sequence,
            phase=phase.phase,
            duration_s=phase.duration_s,
            peak=peak,
        )
    for (path, dtype), size in sorted(found.modules(device).items(), key=lambda m: m[0][0]):
        yield ModuleRecord(
            device=position,
            step=step,
            module=path,
            dtype=str(dtype).removeprefix("torch."),
            activations=size,
        )
    log = found.log
    began = log.marks[0].began_ns if log.marks else 0
    for sequence, instant in enumerate(timeline(log, device, _TIMELINE_POINTS)):
        yield TimelinePoint(
            device=position,
            step=step,
            sequence=sequence,
            offset_s=max(0, instant.at_ns - began) / 1e9,
            phase=instant.phase,
            use=use_of(instant.classes, None, None, seen=True),
        )
    groups = largest_groups(log, device, books.peak_index, _GROUPS)
    for place, group in enumerate(groups):
        yield PeakGroup(
            device=position,
            step=step,
            position=place,
            memory_class=group.memory_class,
            shape="×".join(map(str, group.shape)),
            dtype=str(group.dtype).removeprefix("torch."),
            count=group.count,
            bytes=group.bytes,
        )
