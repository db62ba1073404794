"""The driver's view through nvidia-ml-py: what is in use on a GPU, by whom.

A GPU is found by its UUID or its place on the PCI bus, never by an index:
``CUDA_VISIBLE_DEVICES`` and MIG renumber. "Not supported", "no permission" and "N/A" are
unknown, never 0. Nothing here raises once NVML is open: a GPU that falls off the bus becomes
unknown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from .source import DriverReading

_REST = 200
"""A reading that took t seconds is good for the next 200 t: NVML costs 0.5 % of time at most."""

_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""What Linux calls the host's own (``PROC_PID_INIT_INO`` in ``include/linux/proc_ns.h``)."""


class Nvml:
    """An initialised NVML; :meth:`open` gives ``None`` where there is no driver.

    Args:
        library: ``pynvml``, initialised; :meth:`close` shuts it down.
        clock: Seconds, monotonic; injected for tests.
        whole_host: Whether process ids of other containers are seen; found out by default.
    """

    def __init__(
        self,
        library: Any,
        *,
        clock: Callable[[], float] = time.monotonic,
        whole_host: bool | None = None,
    ) -> None:
        self._library = library
        self._clock = clock
        self._whole_host = sees_whole_host() if whole_host is None else whole_host
        self._open = True

    @classmethod
    def open(
        cls, *, clock: Callable[[], float] = time.monotonic, whole_host: bool | None = None
    ) -> Nvml | None:
        """Loads and initialises NVML, or returns ``None`` where that is not possible."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        return cls(pynvml, clock=clock, whole_host=whole_host)

    @property
    def driver_version(self) -> str | None:
        """Version of the NVIDIA driver, such as ``575.57.08``."""
        version = _ask(self._library, "nvmlSystemGetDriverVersion")
        return str(version) if version else None

    def handle(self, uuid: str | None, pci_bus_id: str | None = None) -> NvmlDevice | None:
        """The GPU or MIG instance with this UUID, or else the one at this place on the bus.

        Of a card that is cut into MIG instances, the instance is given that
        ``CUDA_VISIBLE_DEVICES`` names, or the only one; never the card itself, of which the
        figures are those of all instances.

        Args:
            uuid: With or without its ``GPU-`` or ``MIG-``, as torch or nvidia-smi give it.
            pci_bus_id: ``domain:bus:device.function`` in hexadecimal digits.
        """
        for name in _names(uuid):
            handle = _ask(self._library, "nvmlDeviceGetHandleByUUID", name)
            if handle is not None:
                is_instance = name.startswith("MIG-")
                return self._device(handle, name) if is_instance else self._whole_or_cut(handle)
        card = pci_bus_id and _ask(self._library, "nvmlDeviceGetHandleByPciBusId", pci_bus_id)
        return self._whole_or_cut(card) if card else None

    def _whole_or_cut(self, card: Any) -> NvmlDevice | None:
        mode = _ask(self._library, "nvmlDeviceGetMigMode", card)
        if not mode or not mode[0]:
            return self._device(card, None)
        instances = self._instances(card)
        named = tuple(name for name in _visible_devices() if name.startswith("MIG-"))
        if named:  # in full, or as many of its first digits as tell it from others
            instances = {u: handle for u, handle in instances.items() if u.startswith(named)}
        if len(instances) != 1:
            return None
        ((uuid, handle),) = instances.items()
        return self._device(handle, uuid)

    def _instances(self, card: Any) -> dict[str, Any]:
        found = {}
        for slot in range(_ask(self._library, "nvmlDeviceGetMaxMigDeviceCount", card) or 0):
            handle = _ask(self._library, "nvmlDeviceGetMigDeviceHandleByIndex", card, slot)
            uuid = None if handle is None else _ask(self._library, "nvmlDeviceGetUUID", handle)
            if uuid is not None:
                found[str(uuid)] = handle
        return found

    def _device(self, handle: Any, instance_uuid: str | None) -> NvmlDevice:
        return NvmlDevice(
            self._library,
            handle,
            instance_uuid=instance_uuid,
            clock=self._clock,
            whole_host=self._whole_host,
        )

    def close(self) -> None:
        """Shuts NVML down, once for the once that it was initialised."""
        if self._open:
            self._open = False
            _ask(self._library, "nvmlShutdown")


class NvmlDevice:
    """One GPU, or one MIG instance, as the driver knows it."""

    def __init__(
        self,
        library: Any,
        handle: Any,
        *,
        instance_uuid: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        whole_host: bool = True,
    ) -> None:
        self.instance_uuid = instance_uuid
        """UUID of the MIG instance, with its ``MIG-``; ``None`` of a whole card."""
        self._library = library
        self._handle = handle
        self._clock = clock
        self._whole_host = whole_host
        self._last = DriverReading()
        self._due = float("-inf")

    def read(self) -> DriverReading:
        """Bytes in use on the GPU by everybody, and by this process.

        Where NVML is slow the reading before is given again, so that it never takes more than
        one part in 200 of the time.
        """
        began = self._clock()
        if began >= self._due:
            self._last = self._look()
            ended = self._clock()
            self._due = ended + _REST * (ended - began)
        return self._last

    def _look(self) -> DriverReading:
        total, free, reserved = self._memory()
        process_used, others = self._processes()
        return DriverReading(
            device_total=total,
            device_free=free,
            device_used=None if total is None or free is None else total - free,
            driver_reserved=reserved,
            process_used=process_used,
            other_processes=others,
        )

    def _memory(self) -> tuple[int | None, int | None, int | None]:
        """Total, free, and what driver and firmware keep for themselves.

        ``used`` is not asked for: drivers differ in whether it includes what is reserved.
        """
        version = getattr(self._library, "nvmlMemory_v2", None)
        memory = version and _ask(self._library, "nvmlDeviceGetMemoryInfo", self._handle, version)
        reserved = int(memory.reserved) if memory else None
        if not memory:
            memory = _ask(self._library, "nvmlDeviceGetMemoryInfo", self._handle)
        if not memory or not memory.total:  # a total of 0: the memory is the host's
            return None, None, None
        return int(memory.total), int(memory.free), reserved

    def _processes(self) -> tuple[int | None, int | None]:
        """What this process uses, and what all others use that are on the GPU."""
        compute = self._running("Compute")
        if compute is None:
            return None, None
        graphics = self._running("Graphics")
        used = _merge(compute, graphics or [])
        listed = os.getpid() in used
        own = used.pop(os.getpid(), None)
        others = [size for size in used.values() if size is not None]
        # Seen from a container, the list leaves others out, or calls us by the host's number.
        complete = self._whole_host and listed and graphics is not None
        return own, sum(others) if complete and len(others) == len(used) else None

    def _running(self, kind: str) -> list[Any] | None:
        # Drivers before R510 know the second only. The function without a number raises something
        # that is no NVMLError there.
        for version in ("v3", "v2"):
            function = f"nvmlDeviceGet{kind}RunningProcesses_{version}"
            try:
                processes = getattr(self._library, function)(self._handle)
            except self._library.NVMLError as refusal:
                code = getattr(refusal, "value", None)
                if code == self._library.NVML_ERROR_FUNCTION_NOT_FOUND:
                    continue
                if kind == "Graphics" and code == self._library.NVML_ERROR_NOT_SUPPORTED:
                    return []  # a card or instance that draws nothing
                return None
            return list(processes)
        return None


def sees_whole_host() -> bool:
    """Whether this process counts process ids as the driver does, so that none is hidden."""
    try:
        return os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _ask(library: Any, function: str, *arguments: Any) -> Any:
    """The answer, or ``None`` where NVML refuses it or has no such function."""
    call = getattr(library, function, None)
    if call is None:
        return None
    try:
        return call(*arguments)
    except library.NVMLError:
        return None


def _names(uuid: str | None) -> list[str]:
    if not uuid:
        return []
    return [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]


def _visible_devices() -> list[str]:
    return [n.strip() for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]


def _merge(compute: list[Any], graphics: list[Any]) -> dict[int, int | None]:
    """Bytes by process id. One that computes and draws is in both lists, with the same bytes."""
    used: dict[int, int | None] = {}
    for processes in (compute, graphics):
        for process in processes:
            size, known = process.usedGpuMemory, used.get(process.pid)
            if size is None:
                used.setdefault(process.pid, None)
            else:
                used[process.pid] = max(int(size), known or 0)
    return used
