"""A CUDA device: torch's allocator statistics and the driver."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from vramscope.storage.records import DeviceInfo

from .nvml import Nvml
from .peaks import PeakCounter, Stats
from .source import AllocatorReading, DriverReading


class CudaSource:
    """Reads one CUDA device; makes no call on any other, and none that begins a context.

    Args:
        device: With its index.
        counter: The peak counter of the process, shared by all its devices.
        nvml: The driver, or ``None`` where it cannot be asked.
        properties: ``torch.cuda.get_device_properties``; injected for tests.
    """

    block_bytes = 512

    def __init__(
        self,
        device: torch.device,
        counter: PeakCounter,
        nvml: Nvml | None,
        properties: Callable[[int], Any] = torch.cuda.get_device_properties,
    ) -> None:
        if device.index is None:
            raise ValueError(f"a CUDA source needs a device with an index, got {device}")
        self.device = device
        self._index: int = device.index
        self._counter = counter
        self._properties = properties(device.index)
        self._handle = nvml.handle(self._uuid()) if nvml is not None else None

    def _uuid(self) -> str | None:
        uuid = getattr(self._properties, "uuid", None)
        return None if uuid is None else str(uuid)

    def describe(self, rank: int, host: str) -> DeviceInfo:
        """Identity: host and UUID, never the index alone."""
        total = getattr(self._properties, "total_memory", None)
        return DeviceInfo(
            rank=rank,
            host=host,
            kind="cuda",
            index=self._index,
            uuid=self._uuid(),
            name=getattr(self._properties, "name", None),
            total_bytes=total or None,
        )

    def read(self) -> AllocatorReading:
        """Reads torch's allocator and begins a new interval for its peaks."""
        stats = self._counter.take(self._index)
        return AllocatorReading(
            allocated=_figure(stats, "allocated_bytes", "current"),
            reserved=_figure(stats, "reserved_bytes", "current"),
            requested=_figure(stats, "requested_bytes", "current"),
            peak_allocated=_figure(stats, "allocated_bytes", "peak"),
            peak_reserved=_figure(stats, "reserved_bytes", "peak"),
            peak_requested=_figure(stats, "requested_bytes", "peak"),
        )

    def driver(self) -> DriverReading:
        """Asks NVML; unknown where it does not answer."""
        return DriverReading() if self._handle is None else self._handle.read()

    def close(self) -> None:
        """The counter is the process's and is closed by who made it."""


def _figure(stats: Stats, name: str, key: str) -> int | None:
    value = stats.get(name, {}).get("all", {}).get(key)
    return value if isinstance(value, int) else None


def peak_counter(bindings: ModuleType = torch._C) -> PeakCounter | None:
    """The process's peak counter, or ``None`` on a torch without CUDA."""
    return PeakCounter(bindings) if hasattr(bindings, PeakCounter.STATS) else None
