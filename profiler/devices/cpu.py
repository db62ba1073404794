"""The CPU has no allocator statistics: what it holds is what the tensor census finds."""

from __future__ import annotations

import platform

import torch
from vramscope.storage.records import DeviceInfo

from .source import AllocatorReading, DriverReading

_UNKNOWN = AllocatorReading()


class CpuSource:
    """Answers "unknown" to every question; the books are then made of the census alone."""

    device = torch.device("cpu")
    block_bytes = 1

    def describe(self, rank: int, host: str) -> DeviceInfo:
        """Identity of the processor. Its total is unknown: tensors share it with the host."""
        return DeviceInfo(rank=rank, host=host, kind="cpu", index=0, name=_processor_name())

    def read(self) -> AllocatorReading:
        """Nothing is known."""
        return _UNKNOWN

    def driver(self) -> DriverReading:
        """Nothing is known."""
        return DriverReading()

    def close(self) -> None:
        """Nothing was changed."""


def _processor_name() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or None
