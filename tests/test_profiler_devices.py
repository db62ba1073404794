"""The seam to the hardware, with scripted bindings and drivers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.devices import Sources
from vramscope.profiler.devices.cuda import CudaSource
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


def functions(allocator: Allocator) -> tuple[Any, Any]:
    return allocator._cuda_memoryStats, allocator._cuda_resetPeakMemoryStats


def test_closing_puts_torchs_functions_back() -> None:
    allocator = Allocator()
    before = functions(allocator)
    counter = PeakCounter(allocator)  # type: ignore[arg-type]
    assert functions(allocator)[0] != before[0]
    counter.close()
    assert functions(allocator) == before


def test_a_peak_that_we_hid_is_still_told_after_closing() -> None:
    allocator = Allocator()
    before = functions(allocator)
    counter = PeakCounter(allocator)  # type: ignore[arg-type]
    allocator.hold(100)
    allocator.hold(10)
    counter.take(0)
    counter.close()
    assert user_peak(allocator) == 100
    allocator._cuda_resetPeakMemoryStats(0)
    assert user_peak(allocator) == 10
    assert functions(allocator) == before


def test_nothing_hidden_leaves_nothing() -> None:
    allocator = Allocator()
    before = functions(allocator)
    counter = PeakCounter(allocator)  # type: ignore[arg-type]
    allocator.hold(100)
    counter.take(0)
    counter.close()
    assert functions(allocator) == before


def test_profiler_after_profiler_does_not_pile_up() -> None:
    allocator = Allocator()
    before = functions(allocator)
    for size in (100, 60, 80):
        counter = PeakCounter(allocator)  # type: ignore[arg-type]
        counter.take(0)
        allocator.hold(size)
        allocator.hold(10)
        assert our_peak(counter) == size
        counter.close()
        assert user_peak(allocator) == 100
    allocator._cuda_resetPeakMemoryStats(0)
    assert functions(allocator) == before


@pytest.mark.parametrize("first_to_close", [0, 1])
def test_two_profilers_share_the_counter_with_the_user(first_to_close: int) -> None:
    allocator = Allocator()
    before = functions(allocator)
    counters = [PeakCounter(allocator) for _ in range(2)]  # type: ignore[arg-type]
    for counter in counters:
        counter.take(0)
    allocator.hold(100)
    allocator.hold(10)
    assert [our_peak(counter) for counter in counters] == [100, 100]
    assert user_peak(allocator) == 100
    counters.pop(first_to_close).close()
    assert user_peak(allocator) == 100
    allocator._cuda_resetPeakMemoryStats(0)
    assert user_peak(allocator) == 10
    counters[0].close()
    assert functions(allocator) == before


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    """An allocator behind torch.cuda's and torch.accelerator's own functions."""
    allocator = Allocator()
    bindings = {
        "_cuda_memoryStats": allocator._cuda_memoryStats,
        "_cuda_resetPeakMemoryStats": allocator._cuda_resetPeakMemoryStats,
        "_accelerator_getDeviceStats": allocator._cuda_memoryStats,
        "_accelerator_resetPeakStats": allocator._cuda_resetPeakMemoryStats,
        "_accelerator_isAllocatorInitialized": lambda: True,
    }
    for name, function in bindings.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    return allocator


VIEWS: list[Any] = [torch.cuda, getattr(torch.accelerator, "memory", torch.accelerator)]
needs_memory = pytest.mark.skipif(
    not hasattr(torch.accelerator, "max_memory_allocated"),
    reason="this torch.accelerator has no memory statistics",
)


@needs_memory
@pytest.mark.parametrize("resets", VIEWS, ids=["cuda", "accelerator"])
def test_torch_cuda_and_torch_accelerator_see_one_counter(torchs: Allocator, resets: Any) -> None:
    counter = PeakCounter(torch._C)
    torchs.hold(100)
    torchs.hold(10)
    assert our_peak(counter) == 100
    assert [view.max_memory_allocated(0) for view in VIEWS] == [100, 100]
    torchs.hold(50)
    torchs.hold(10)
    resets.reset_peak_memory_stats(0)
    assert [view.max_memory_allocated(0) for view in VIEWS] == [10, 10]
    assert [view.memory_allocated(0) for view in VIEWS] == [10, 10]
    torchs.hold(20)
    assert our_peak(counter) == 50
    assert [view.max_memory_allocated(0) for view in VIEWS] == [20, 20]
    counter.close()


@needs_memory
@pytest.mark.parametrize("resets", VIEWS, ids=["cuda", "accelerator"])
def test_either_reset_lets_the_counter_go_after_closing(torchs: Allocator, resets: Any) -> None:
    names = ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats", PeakCounter.STATS)
    before = [getattr(torch._C, name) for name in names]
    counter = PeakCounter(torch._C)
    torchs.hold(100)
    torchs.hold(10)
    counter.take(0)
    counter.close()
    assert [view.max_memory_allocated(0) for view in VIEWS] == [100, 100]
    resets.reset_peak_memory_stats(0)
    assert [getattr(torch._C, name) for name in names] == before


def test_a_cuda_source_asks_its_own_device_only() -> None:
    allocator = Allocator()
    allocator.hold(3 * GIB)
    properties = SimpleNamespace(uuid="1234", total_memory=80 * GIB, name="NVIDIA H200")
    source = CudaSource(
        torch.device("cuda", 5),
        PeakCounter(allocator),  # type: ignore[arg-type]
        lambda: None,
        properties=lambda index: properties,
        initialized=lambda: True,
    )
    reading = source.read()
    assert reading.allocated == reading.peak_allocated == 3 * GIB
    assert reading.requested is None
    assert set(allocator.calls) == {5}
    info = source.describe(rank=2, host="node1")
    assert (info.index, info.uuid, info.total_bytes) == (5, "1234", 80 * GIB)
    assert source.driver() == DriverReading()


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
        return DriverReading(
            device_used=GIB // 2,
            process_used=GIB // 4,
            other_processes=GIB // 8,
            driver_reserved=16 << 20,
        )

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
        assert step.outside_allocator == GIB // 4 - (steps[0].end.reserved or 0)
        assert step.other_processes == GIB // 8
        assert step.driver_reserved == 16 << 20
    assert (steps[-1].end.unattributed or 0) <= Scripted.hidden
    assert (steps[-1].end.activations is None) == (detail_first == 0)


@pytest.mark.parametrize(
    ("allocated", "reserved"), [(58_200_000, 139_000_000), (65_800_000, 173_400_000)]
)
def test_what_the_allocator_keeps_free_is_cached(
    store_path: Path, allocated: int, reserved: int
) -> None:
    class Grown(Scripted):
        def read(self) -> AllocatorReading:
            return AllocatorReading(
                allocated=allocated,
                reserved=reserved,
                peak_allocated=allocated,
                peak_reserved=reserved,
            )

    model = nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = Grown(model)
    with MemoryProfiler(
        model,
        optimizer,
        store=store_path,
        config=ProfilerConfig(predict=False),
        sources=lambda device: source,
    ):
        model(torch.ones(1, 100)).sum().backward()
        optimizer.step()
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info.id
        (device,) = reader.devices(run)
        (step,) = reader.iter_steps(run, device.id)  # type: ignore[arg-type]
    assert step.end.cached == reserved - allocated
    assert step.end.allocated == allocated
