"""Whose the memory of a device is: the allocator's books and the driver's view put together.

``device used = allocated + cached + outside the allocator + other processes + the driver's own``,
and what the driver does not tell apart is a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramscope.storage.records import DeviceInfo, MemoryUse, StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """All of a device at one instant, in bytes; ``None`` where the driver does not say."""

    allocated: int
    cached: int
    outside_allocator: int | None
    other_processes: int | None
    driver_reserved: int | None
    untold: int
    """In use, and not told by whom."""
    total: int | None

    @property
    def used(self) -> int:
        """All that is in use: the sum of the lines."""
        return sum(value or 0 for _, value in self.lines())

    @property
    def free(self) -> int | None:
        """What is left of ``total``."""
        return None if self.total is None else max(0, self.total - self.used)

    def lines(self) -> Iterator[tuple[str, int | None]]:
        """Every line that is in use by its name, as it is stacked."""
        for name in DEVICE_STACK:
            yield name, getattr(self, name)


DEVICE_STACK: tuple[str, ...] = (
    "allocated",
    "cached",
    "outside_allocator",
    "other_processes",
    "driver_reserved",
    "untold",
)
"""The lines that add up to what is in use on a device."""


def device_use(device: DeviceInfo, step: StepRecord, instant: MemoryUse) -> DeviceUse | None:
    """A device at one instant of a step; ``None`` where allocator or driver said nothing.

    The driver is asked when a step ends. What is not the allocator's is taken to be the same
    at the step's peak.

    Args:
        device: The device.
        step: One of its steps.
        instant: The step's ``end`` or its ``peak``.
    """
    if step.device_used is None or step.end.reserved is None:
        return None
    if instant.allocated is None or instant.cached is None:
        return None
    told = (step.outside_allocator, step.other_processes, step.driver_reserved)
    # Below 0 where the allocator has grown since the driver was asked, a second ago at most.
    untold = step.device_used - step.end.reserved - sum(value or 0 for value in told)
    return DeviceUse(
        allocated=instant.allocated,
        cached=instant.cached,
        outside_allocator=step.outside_allocator,
        other_processes=step.other_processes,
        driver_reserved=step.driver_reserved,
        untold=max(0, untold),
        total=device.driver_total_bytes,
    )


def device_uses(
    device: DeviceInfo, peak: StepRecord | None, last: StepRecord | None
) -> dict[str, DeviceUse]:
    """The device at its highest step's peak and at the end of its last step, as far as known."""
    instants = {}
    if peak is not None:
        instants[f"Peak, step {peak.step:,}"] = device_use(device, peak, peak.peak)
    if last is not None:
        instants[f"End, step {last.step:,}"] = device_use(device, last, last.end)
    return {label: use for label, use in instants.items() if use is not None}


def why_unknown(device: DeviceInfo) -> str | None:
    """Why nothing can be said of a GPU as a whole; ``None`` of what is no GPU."""
    if device.kind == "cpu":
        return None
    if device.unified:
        return (
            "This device shares its memory with the host, and the driver has no figures of its own "
            "for it."
        )
    return "The driver (NVML) did not say what is in use on this device."
