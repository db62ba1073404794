"""From facts to records: the books of every device, closed step by step, in the writer's thread."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from vramscope.storage.records import Event, EventKind, MemoryUse, Record, StepRecord

from .books import CENSUS, Profile
from .census import HeldBytes
from .detail_records import detail_records
from .device_books import DeviceBooks, StepBooks
from .facts import DeviceFacts, StepFacts
from .leak_shapes import with_shapes
from .replay import replay

_NOTHING_HELD = HeldBytes()


class Bookkeeper:
    """Keeps what must be remembered from step to step to close the books of the next."""

    def __init__(self) -> None:
        self._devices: dict[torch.device, DeviceBooks] = {}

    def add_device(self, device: torch.device, position: int, capacity: int | None) -> None:
        """Opens the books of a device.

        Args:
            device: With its index.
            position: Among the writer's devices.
            capacity: In bytes, if known.
        """
        self._devices[device] = DeviceBooks(device, position, capacity)

    def records(self, facts: StepFacts) -> Iterator[Record]:
        """Closes a step's books; yields its records, and what became clear with it.

        Args:
            facts: Of the step; steps come in order.
        """
        for device, seen in facts.devices.items():
            yield from self._of_device(self._devices[device], facts, seen)

    def _of_device(
        self, device: DeviceBooks, facts: StepFacts, seen: DeviceFacts
    ) -> Iterator[Record]:
        held = facts.held.get(device.device, _NOTHING_HELD)
        books = _close(device, facts, seen, held)
        found = facts.detail
        yield StepRecord(
            device=device.position,
            step=facts.step,
            started_ns=facts.started_ns,
            duration_s=facts.duration_s,
            micro_steps=facts.micro_steps,
            skipped=facts.skipped,
            complete=facts.complete,
            detail=found is not None,
            carried=books.carried,
            end=books.end,
            peak=books.peak,
            peak_phase=books.peak_phase,
            peak_module=found.module_at(device.device, books.peak_index) if found else None,
            master_weights=held.master_weights,
            requested=max((i.reading.peak_requested or 0 for i in seen.intervals), default=None),
            device_used=seen.driver.device_used,
            process_used=seen.driver.process_used,
            outside_allocator=device.outside_allocator(seen.driver, books.end.reserved),
            other_processes=seen.driver.other_processes,
            driver_reserved=seen.driver.driver_reserved,
            host_pinned=sum(held.host.values()) or None,
            paged=held.paged or None,
        )
        if facts.complete:
            if found is not None:
                device.note_outliving(found)
            yield from _growth(device, facts.step, books)
        if found is not None:
            yield from detail_records(found, device, books, facts.step)


def _close(device: DeviceBooks, facts: StepFacts, seen: DeviceFacts, held: HeldBytes) -> StepBooks:
    if facts.detail is not None:
        phases, end = replay(facts.detail.log, device.device)
        return device.close_detail(facts.kind, Profile(tuple(phases), end), held, seen.intervals)
    if seen.walked:
        return device.close_walked(facts.kind, held, seen)
    if facts.kind is None:
        return device.close_partial(held, facts.phase, seen.intervals)
    return device.close_step(facts.kind, held, seen.intervals)


def _growth(device: DeviceBooks, step: int, books: StepBooks) -> Iterator[Event]:
    use = books.end
    peak = books.peak.allocated
    if books.carried and use.reserved is None:
        # Without an allocator to ask, what was carried over says nothing about growth.
        use = MemoryUse(**{c.value: use.of(c) for c in CENSUS})
        peak = None
    for growth in device.growth.observe(step, use, peak):
        yield Event(
            kind=EventKind(growth.kind),
            at_ns=time.time_ns(),
            message=with_shapes(growth, device.leftovers).message,
            device=device.position,
            step=growth.step,
            bytes=growth.bytes,
        )
