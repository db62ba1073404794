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
    """One look at the driver (NVML), in bytes; ``None`` where it does not say."""

    device_used: int | None = None
    process_used: int | None = None


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
