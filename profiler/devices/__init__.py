"""The one seam to the hardware: where allocated, reserved and driver figures come from."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu import CpuSource
from .cuda import CudaSource, peak_counter
from .nvml import Nvml
from .peaks import PeakCounter
from .source import AllocatorReading, DriverReading, MemorySource

__all__ = ["AllocatorReading", "DriverReading", "MemorySource", "SourceFactory", "Sources"]

SourceFactory = Callable[[torch.device], MemorySource]


class Sources:
    """The memory sources of one process, made when a device is first met.

    Args:
        factory: Makes a source; by default torch's allocator and NVML, or the census.
    """

    def __init__(self, factory: SourceFactory | None = None) -> None:
        self._factory = factory or self._make
        self._sources: dict[torch.device, MemorySource] = {}
        self._counter: PeakCounter | None = None
        self._nvml: Nvml | None = None
        self._nvml_tried = False

    def of(self, device: torch.device) -> MemorySource:
        """The source of a device."""
        source = self._sources.get(device)
        if source is None:
            source = self._sources[device] = self._factory(device)
        return source

    def _make(self, device: torch.device) -> MemorySource:
        if device.type != "cuda":
            return CpuSource()
        if self._counter is None:
            self._counter = peak_counter()
        if self._counter is None:
            raise RuntimeError(f"a parameter is on {device}, but this torch has no CUDA")
        return CudaSource(device, self._counter, self._driver)

    @property
    def driver_version(self) -> str | None:
        """Version of the NVIDIA driver, where a device was met for which it was asked."""
        return None if self._nvml is None else self._nvml.driver_version

    def _driver(self) -> Nvml | None:
        if not self._nvml_tried:
            self._nvml_tried = True
            self._nvml = Nvml.open()
        return self._nvml

    def close(self) -> None:
        """Closes every source and puts back what was changed."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()
        if self._counter is not None:
            self._counter.close()
            self._counter = None
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
        self._nvml_tried = False
