"""The seam to the hardware: what a device's allocator and driver say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from vramscope.storage.records import DeviceInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorReading:
    """One look at an allocator, in bytes. Peaks are those since the look before."""

    allocated: int | None = None
    reserved: int | None = None
    requested: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    peak_requested: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReading:
    """One look at the driver (NVML), in bytes; ``None`` where it does not say.

    ``device_used = driver_reserved + process_used + other_processes + what belongs to nobody``,
    and of ``process_used`` torch's allocator holds what it calls reserved.
    """

    device_total: int | None = None
    device_free: int | None = None
    device_used: int | None = None
    """All that is not free: everybody's, and the driver's own."""
    driver_reserved: int | None = None
    """The part of ``device_used`` that driver and firmware keep; older drivers do not tell it."""
    process_used: int | None = None
    """What this process uses, its CUDA context and libraries included."""
    other_processes: int | None = None
    """What all other processes use together. ``None`` if that of any one of them is unknown, or
    if some may be hidden: those of other containers are."""

    def outside_allocator(self, reserved: int | None) -> int | None:
        """What this process uses beside torch's allocator: context, kernels, libraries.

        Args:
            reserved: What the allocator holds at the same time, in bytes.

        Returns:
            ``process_used`` − ``reserved``. Where the driver lists no other process, but does not
            tell what this one uses, all that is in use is ours. Else ``None``.
        """
        used = self.process_used
        if used is None and self.other_processes == 0 and self.device_used is not None:
            used = self.device_used - (self.driver_reserved or 0)
        if used is None or reserved is None or used < reserved:
            return None
        return used - reserved


class MemorySource(Protocol):
    """Where the figures of one device come from. Tests hand in scripted ones."""

    @property
    def device(self) -> torch.device:
        """The device, with its index."""

    @property
    def block_bytes(self) -> int:
        """What an allocation is rounded up to; 1 where it is not rounded."""

    def describe(self, rank: int, host: str) -> DeviceInfo:
        """Identity of the device as this rank sees it."""

    def read(self) -> AllocatorReading:
        """Reads the allocator and begins a new interval for its peaks."""

    def driver(self) -> DriverReading:
        """Asks the driver; cheap enough for once a second, not for once a step."""

    def close(self) -> None:
        """Gives everything back that was changed."""
