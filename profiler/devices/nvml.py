"""The driver's view through nvidia-ml-py: what is in use on a GPU, by whom.

A GPU is found by its UUID, never by an index: ``CUDA_VISIBLE_DEVICES`` and MIG renumber.
"Not supported", "no permission" and "N/A" are unknown, never 0.
"""

from __future__ import annotations

import os
from typing import Any

from .source import DriverReading


class Nvml:
    """An initialised NVML; :meth:`open` gives ``None`` where there is no driver."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @classmethod
    def open(cls) -> Nvml | None:
        """Loads and initialises NVML, or returns ``None`` where that is not possible."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        return cls(pynvml)

    def handle(self, uuid: str | None) -> NvmlDevice | None:
        """The GPU (or MIG instance) with this UUID, with or without its prefix."""
        if not uuid:
            return None
        names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
        for name in names:
            try:
                handle = self._library.nvmlDeviceGetHandleByUUID(name)
            except self._library.NVMLError:
                continue
            return NvmlDevice(self._library, handle)
        return None

    def close(self) -> None:
        """Shuts NVML down."""
        try:
            self._library.nvmlShutdown()
        except self._library.NVMLError:
            return


class NvmlDevice:
    """One GPU as the driver knows it."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def read(self) -> DriverReading:
        """Bytes in use on the GPU by everybody, and by this process."""
        return DriverReading(device_used=self._used(), process_used=self._process_used())

    def _used(self) -> int | None:
        try:
            memory = self._library.nvmlDeviceGetMemoryInfo(self._handle)
        except self._library.NVMLError:
            return None
        return int(memory.used) if memory.total else None

    def _process_used(self) -> int | None:
        try:
            processes = self._library.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._library.NVMLError:
            return None
        for process in processes:
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
        return None
