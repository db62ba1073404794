"""The seam to the hardware, with scripted bindings and drivers."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.devices import Sources
from vramscope.profiler.devices.cuda import CudaSource
from vramscope.profiler.devices.nvml import Nvml
from vramscope.profiler.devices.peaks import PeakCounter
from vramscope.profiler.devices.source import AllocatorReading, DriverReading
from vramscope.storage.reader import RunReader
from vramscope.storage.records import DeviceInfo

GIB = 2**30


class Allocator:
    """What ``torch._C`` says of one device, scripted."""

    def __init__(self) -> None:
        self.allocated = 0
        self.peak = 0
        self.calls: list[int] = []

    def hold(self, size: int) -> None:
        self.allocated = size
        self.peak = max(self.peak, size)

    def _cuda_memoryStats(self, device: int) -> dict[str, Any]:  # noqa: N802
        self.calls.append(device)
        figures = {"current": self.allocated, "peak": self.peak}
        return {name: {"all": dict(figures)} for name in ("allocated_bytes", "reserved_bytes")}

    def _cuda_resetPeakMemoryStats(self, device: int) -> None:  # noqa: N802
        self.calls.append(device)
        self.peak = self.allocated


def user_peak(bindings: Allocator) -> int:
    peak: int = bindings._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"]
    return peak


def our_peak(counter: PeakCounter) -> int:
    peak: int = counter.take(0)["allocated_bytes"]["all"]["peak"]
    return peak


def test_the_users_peak_is_not_hidden_by_our_intervals() -> None:
    allocator = Allocator()
    counter = PeakCounter(allocator)  # type: ignore[arg-type]
    allocator.hold(100)
    allocator.hold(10)
    assert our_peak(counter) == 100
    allocator.hold(40)
    allocator.hold(10)
    assert our_peak(counter) == 40
    assert user_peak(allocator) == 100


def test_the_users_reset_does_not_hide_our_peak() -> None:
    allocator = Allocator()
    counter = PeakCounter(allocator)  # type: ignore[arg-type]
    allocator.hold(100)
    allocator.hold(10)
    allocator._cuda_resetPeakMemoryStats(0)
    allocator.hold(30)
    assert user_peak(allocator) == 30
    assert our_peak(counter) == 100
    assert user_peak(allocator) == 30
    allocator.hold(50)
    assert our_peak(counter) == 50
    assert user_peak(allocator) == 50


def test_closing_puts_torchs_functions_back() -> None:
    allocator = Allocator()
    before = (allocator._cuda_memoryStats, allocator._cuda_resetPeakMemoryStats)
    counter = PeakCounter(allocator)  # type: ignore[arg-type]
    assert allocator._cuda_memoryStats != before[0]
    counter.close()
    assert (allocator._cuda_memoryStats, allocator._cuda_resetPeakMemoryStats) == before


def test_a_cuda_source_asks_its_own_device_only() -> None:
    allocator = Allocator()
    allocator.hold(3 * GIB)
    properties = SimpleNamespace(uuid="1234", total_memory=80 * GIB, name="NVIDIA H200")
    source = CudaSource(
        torch.device("cuda", 5),
        PeakCounter(allocator),  # type: ignore[arg-type]
        None,
        properties=lambda index: properties,
    )
    reading = source.read()
    assert reading.allocated == reading.peak_allocated == 3 * GIB
    assert reading.requested is None
    assert set(allocator.calls) == {5}
    info = source.describe(rank=2, host="node1")
    assert (info.index, info.uuid, info.total_bytes) == (5, "1234", 80 * GIB)
    assert source.driver() == DriverReading()


class Refusal(Exception):
    """NVML's error."""


def driver(**answers: Any) -> Any:
    """An nvidia-ml-py of which every call gives its scripted answer, or refuses."""

    def call(name: str) -> Any:
        def answer(*_: object) -> Any:
            if name not in answers:
                raise Refusal(name)
            return answers[name]

        return answer

    names = ("HandleByUUID", "MemoryInfo", "ComputeRunningProcesses")
    return SimpleNamespace(
        NVMLError=Refusal,
        nvmlShutdown=lambda: None,
        **{f"nvmlDeviceGet{name}": call(name) for name in names},
    )


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (
            {
                "MemoryInfo": SimpleNamespace(used=7 * GIB, total=80 * GIB),
                "ComputeRunningProcesses": [
                    SimpleNamespace(pid=1, usedGpuMemory=GIB),
                    SimpleNamespace(pid=os.getpid(), usedGpuMemory=5 * GIB),
                ],
            },
            DriverReading(device_used=7 * GIB, process_used=5 * GIB),
        ),
        ({"ComputeRunningProcesses": []}, DriverReading()),
        ({"MemoryInfo": SimpleNamespace(used=0, total=0)}, DriverReading()),
        (
            {
                "MemoryInfo": SimpleNamespace(used=GIB, total=2 * GIB),
                "ComputeRunningProcesses": [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)],
            },
            DriverReading(device_used=GIB),
        ),
    ],
    ids=["everything", "no memory info", "unified memory", "process figure not available"],
)
def test_what_the_driver_does_not_say_is_unknown(
    answers: dict[str, Any], expected: DriverReading
) -> None:
    handle = Nvml(driver(HandleByUUID="gpu", **answers)).handle("GPU-1")
    assert handle is not None
    assert handle.read() == expected


def test_a_gpu_that_nvml_does_not_know_has_no_handle() -> None:
    assert Nvml(driver()).handle("GPU-1") is None
    assert Nvml(driver(HandleByUUID="gpu")).handle(None) is None


def test_a_torch_without_cuda_says_so() -> None:
    if hasattr(torch._C, PeakCounter.STATS):
        pytest.skip("this torch has CUDA")
    with pytest.raises(RuntimeError, match="this torch has no CUDA"):
        Sources().of(torch.device("cuda", 0))


class Scripted:
    """A device with an allocator that rounds, caches, and holds 1 MiB that nobody explains."""

    device = torch.device("cpu")
    block_bytes = 512
    hidden = 1 << 20

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def describe(self, rank: int, host: str) -> DeviceInfo:
        return DeviceInfo(rank=rank, host=host, kind="cuda", uuid="GPU-1", total_bytes=GIB)

    def read(self) -> AllocatorReading:
        tensors = [t for p in self._model.parameters() for t in (p, p.grad) if t is not None]
        held = sum(-(-t.untyped_storage().nbytes() // 512) * 512 for t in tensors) + self.hidden
        return AllocatorReading(
            allocated=held,
            reserved=held + (2 << 20),
            requested=held - 100,
            peak_allocated=held,
            peak_reserved=held + (2 << 20),
            peak_requested=held - 100,
        )

    def driver(self) -> DriverReading:
        return DriverReading(device_used=GIB // 2, process_used=GIB // 4)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("detail_first", [0, 4])
def test_the_books_close_on_what_the_allocator_says(store_path: Path, detail_first: int) -> None:
    model = nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = Scripted(model)
    config = ProfilerConfig(detail_first=detail_first, detail_every=0, predict=False)
    with MemoryProfiler(
        model, optimizer, store=store_path, config=config, sources=lambda device: source
    ):
        for _ in range(4):
            model(torch.ones(1, 100)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info.id
        (device,) = reader.devices(run)
        steps = list(reader.iter_steps(run, device.id))  # type: ignore[arg-type]
    assert (device.kind, device.total_bytes) == ("cuda", GIB)
    for step in steps:
        for use in (step.end, step.peak):
            assert use.allocated == use.attributed + (use.unattributed or 0)
            assert use.cached == 2 << 20
        assert step.end.parameters == 40_960
        assert step.end.gradients == 40_960
        assert step.device_used == GIB // 2
        assert step.process_used == GIB // 4
    assert (steps[-1].end.unattributed or 0) <= Scripted.hidden
    assert (steps[-1].end.activations is None) == (detail_first == 0)
