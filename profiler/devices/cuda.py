"""A CUDA device: torch's allocator statistics and the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from vramscope.storage.records import DeviceInfo

from .nvml import Nvml, NvmlDevice
from .peaks import PeakCounter, Stats
from .source import AllocatorReading, DriverReading


class CudaSource:
    """Reads one CUDA device; makes no call on any other, and none that begins a context.

    Until CUDA has been initialised by the user's own code, everything is unknown and neither
    torch nor NVML is asked.

    Args:
        device: With its index.
        counter: The peak counter of the process, shared by all its devices.
        nvml: Gives the driver, or ``None`` where it cannot be asked.
        properties: ``torch.cuda.get_device_properties``; injected for tests.
        initialized: ``torch.cuda.is_initialized``; injected for tests.
    """

    block_bytes = 512

    def __init__(
        self,
        device: torch.device,
        counter: PeakCounter,
        nvml: Callable[[], Nvml | None],
        properties: Callable[[int], Any] = torch.cuda.get_device_properties,
        initialized: Callable[[], bool] = torch.cuda.is_initialized,
    ) -> None:
        if device.index is None:
            raise ValueError(f"a CUDA source needs a device with an index, got {device}")
        self.device = device
        self._index: int = device.index
        self._counter = counter
        self._nvml = nvml
        self._ask_properties = properties
        self._initialized = initialized
        self._properties: Any = None
        self._handle: NvmlDevice | None = None
        self._reserved: int | None = None

    def _ready(self) -> bool:
        if self._properties is None and self._initialized():
            self._properties = self._ask_properties(self._index)
            # The memory of a card that is part of the processor is the host's: what the driver
            # says of it, if anything, counts every program that runs there.
            nvml = None if getattr(self._properties, "is_integrated", False) else self._nvml()
            if nvml is not None:
                self._handle = nvml.handle(self._uuid(), _pci_bus_id(self._properties))
        return self._properties is not None

    def _uuid(self) -> str | None:
        uuid = getattr(self._properties, "uuid", None)
        return None if uuid is None else str(uuid)

    def describe(self, rank: int, host: str) -> DeviceInfo:
        """Identity: host and UUID (of the MIG instance, if it is one), never the index alone."""
        self._ready()
        instance = None if self._handle is None else self._handle.instance_uuid
        unified = getattr(self._properties, "is_integrated", None)
        return DeviceInfo(
            rank=rank,
            host=host,
            kind="cuda",
            index=self._index,
            uuid=instance or self._uuid(),
            name=getattr(self._properties, "name", None),
            total_bytes=getattr(self._properties, "total_memory", None) or None,
            driver_total_bytes=None if self._handle is None else self._handle.read().device_total,
            unified=None if unified is None else bool(unified),
        )

    def read(self) -> AllocatorReading:
        """Reads torch's allocator and begins a new interval for its peaks."""
        if not self._ready():
            return AllocatorReading()
        stats = self._counter.take(self._index)
        self._reserved = _figure(stats, "reserved_bytes", "current")
        return AllocatorReading(
            allocated=_figure(stats, "allocated_bytes", "current"),
            reserved=self._reserved,
            requested=_figure(stats, "requested_bytes", "current"),
            peak_allocated=_figure(stats, "allocated_bytes", "peak"),
            peak_reserved=_figure(stats, "reserved_bytes", "peak"),
            peak_requested=_figure(stats, "requested_bytes", "peak"),
        )

    def driver(self) -> DriverReading:
        """Asks NVML; unknown where it does not answer."""
        if not self._ready() or self._handle is None:
            return DriverReading()
        reading = self._handle.read()
        used = reading.process_used
        if used is not None and used < (self._reserved or 0):
            # Less than our allocator holds of it: another process with our number, seen from a
            # container, or a figure that leaves something out.
            return replace(reading, process_used=None, other_processes=None)
        return reading

    def close(self) -> None:
        """The counter is the process's and is closed by who made it."""


def _figure(stats: Stats, name: str, key: str) -> int | None:
    value = stats.get(name, {}).get("all", {}).get(key)
    return value if isinstance(value, int) else None


def _pci_bus_id(properties: Any) -> str | None:
    """The place on the bus as NVML writes it; torch tells it since 2.8."""
    domain, bus, device = (
        getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")
    )
    if domain is None or bus is None or device is None:
        return None
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def peak_counter(bindings: ModuleType = torch._C) -> PeakCounter | None:
    """The process's peak counter, or ``None`` on a torch without CUDA."""
    return PeakCounter(bindings) if hasattr(bindings, PeakCounter.STATS) else None
