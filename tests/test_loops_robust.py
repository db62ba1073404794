"""Loops that the profiler must leave alone: compiled, forked, re-run, long, on several devices."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import tracemalloc
import warnings
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.devices import AllocatorReading, DriverReading
from vramscope.storage.reader import RunReader
from vramscope.storage.records import DeviceInfo, EventKind, RunStatus, StepRecord

FIRST = ProfilerConfig(detail_first=1, detail_every=0, predict=False)
OFTEN = ProfilerConfig(detail_every=10, predict=False)


def read(path: Path) -> list[StepRecord]:
    with RunReader(path) as reader:
        run = reader.runs().rows[0].info.id
        device = reader.devices(run)[0].id
        assert device is not None
        return list(reader.iter_steps(run, device))


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))


def nbytes(tensors: Iterator[torch.Tensor]) -> int:
    return sum({t.untyped_storage()._cdata: t.nbytes for t in tensors}.values())


# --- Compiled models ---


class Net(nn.Module):
    """A model of the user's own: the compiler leaves torch's own containers to themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layers(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_a_compiled_model_stays_compiled_and_its_classes_are_right(
    store_path: Path, backend: str, how: str
) -> None:
    torch._dynamo.reset()
    graphs: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(len(graph.graph.nodes))
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    def losses(path: Path | None) -> tuple[list[float], int]:
        torch._dynamo.reset()
        graphs.clear()
        model: nn.Module = Net()
        optimizer = torch.optim.AdamW(model.parameters())
        if how == "wrapped":
            model = torch.compile(model, backend=counting)  # type: ignore[assignment]
        else:
            model.compile(backend=counting)
        x = torch.ones(4, 32)
        profiler = MemoryProfiler(model, optimizer, store=path, config=FIRST)
        if path is not None:
            profiler.attach()
        values = []
        for _ in range(4):
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append(loss.item())
        profiler.close()
        return values, len(graphs)

    bare, compiled = losses(None)
    assert losses(store_path) == (bare, compiled)
    parameters = nbytes(small().parameters())
    steps = read(store_path)
    assert len(steps) == 4
    for step in steps:
        assert step.end.parameters == step.end.gradients == parameters
        assert step.end.optimizer_state == 2 * parameters + 4 * 4
        assert not step.detail
        assert step.end.allocated == step.end.attributed + (step.end.unattributed or 0)


# --- Notebooks ---


def test_a_cell_that_is_run_again_needs_a_close_and_then_works(store_path: Path) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def cell() -> MemoryProfiler:
        profiler = MemoryProfiler(model, optimizer, store=store_path, config=FIRST).attach()
        for _ in range(2):
            model(torch.ones(2, 32)).sum().backward()
            optimizer.step()
        return profiler

    first = cell()
    with pytest.raises(RuntimeError, match=r"this Sequential already .*close that one"):
        cell()
    first.close()
    first.close()
    second = cell()
    second.close()
    first.attach()  # the same object, once more
    model(torch.ones(2, 32)).sum().backward()
    optimizer.step()
    first.close()
    with RunReader(store_path) as reader:
        rows = reader.runs().rows
        assert [(r.info.status, r.steps) for r in rows] == [
            (RunStatus.COMPLETED, 1),
            (RunStatus.COMPLETED, 2),
            (RunStatus.COMPLETED, 2),
        ]
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_a_cell_whose_profiler_was_dropped_does_not_block_the_next(store_path: Path) -> None:
    model = small()
    profiler = MemoryProfiler(model, store=store_path, config=FIRST)
    with pytest.raises(ZeroDivisionError), profiler:
        raise ZeroDivisionError
    with MemoryProfiler(model, store=store_path, config=FIRST):
        pass


# --- Loaders that fork ---


class Rows(Dataset[torch.Tensor]):
    """Rows made in the worker, where something of torch's is run as well."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        if torch.utils.data.get_worker_info() is not None:
            x = torch.ones(1, 32)
            self.model(x).sum().backward()  # hooks were inherited by the fork
            self.optimizer.step()
        return torch.full((32,), float(index))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_write_nothing_and_lock_nothing(store_path: Path) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        Rows(model, optimizer), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with MemoryProfiler(model, optimizer, store=store_path, config=FIRST):
            for _ in range(2):
                for batch in loader:
                    model(batch).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
    assert not [w for w in caught if "vramscope" in str(w.message) or "locked" in str(w.message)]
    with RunReader(store_path) as reader:
        (row,) = reader.runs().rows
    assert (row.steps, row.info.status, row.info.lost_records) == (8, RunStatus.COMPLETED, 0)
    assert [s.step for s in read(store_path)] == list(range(1, 9))


# --- What the profiler itself keeps ---


class Checkpointed(nn.Module):
    """Eight layers, each computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.sum()


def hooks_of(model: nn.Module) -> int:
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    modules = sum(len(getattr(m, table)) for m in model.modules() for table in tables)
    tensors = sum(
        len(p._backward_hooks or ()) + len(p._post_accumulate_grad_hooks or ())  # type: ignore[attr-defined]
        for p in model.parameters()
    )
    return modules + tensors


def census() -> tuple[int, int, int]:
    """Tensors, Python functions of ours, threads that are alive."""
    gc.collect()
    objects = gc.get_objects()
    functions = (o for o in objects if type(o).__name__ == "function")
    return (
        sum(1 for o in objects if issubclass(type(o), torch.Tensor)),
        sum(1 for f in functions if str(f.__module__).startswith("vramscope")),
        threading.active_count(),
    )


@pytest.mark.parametrize(
    ("make", "steps", "config"),
    [(Checkpointed, 300, OFTEN), (lambda: nn.Linear(16, 1), 2000, ProfilerConfig(predict=False))],
    ids=["checkpointed", "tiny"],
)
def test_the_profiler_itself_grows_by_nothing(
    store_path: Path, make: type[nn.Module], steps: int, config: ProfilerConfig
) -> None:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.ones(2, 16)

    def train(count: int) -> None:
        for _ in range(count):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    with MemoryProfiler(model, optimizer, store=store_path, config=config) as profiler:
        train(100)
        hooks, before = hooks_of(model), census()
        train(steps - 100)
        assert hooks_of(model) == hooks
        tensors, functions, threads = census()
        assert tensors <= before[0]
        assert functions - before[1] <= 5
        assert threads <= before[2]
        assert profiler.steps == steps
    recorded = read(store_path)
    assert len({s.end.allocated for s in recorded[1:] if s.detail}) == 1
    assert len({s.end.parameters for s in recorded}) == 1


def test_python_memory_of_ours_comes_to_rest(store_path: Path) -> None:
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 16)
    ours = [
        tracemalloc.Filter(True, f"*{os.sep}{folder}{os.sep}*")
        for folder in ("profiler", "storage")
    ]

    def train(count: int) -> None:
        for _ in range(count):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def held(profiler: MemoryProfiler) -> int:
        assert profiler._writer is not None
        profiler._writer.flush()
        gc.collect()
        statistics = tracemalloc.take_snapshot().filter_traces(ours).statistics("filename")
        return sum(s.size for s in statistics)

    with MemoryProfiler(model, optimizer, store=store_path, config=OFTEN) as profiler:
        train(300)
        tracemalloc.start()
        try:
            train(200)
            before = held(profiler)
            train(600)
            after = held(profiler)
        finally:
            tracemalloc.stop()
    assert after - before < 16 * 1024  # bytes over 600 steps: far below one a step and tensor


def test_tensors_of_the_user_die_when_the_user_lets_go(store_path: Path) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    every_step = ProfilerConfig(detail_every=1, predict=True)
    with MemoryProfiler(model, optimizer, store=store_path, config=every_step):
        for _ in range(4):
            x = torch.randn(4, 32)
            output = model(x)
            loss = output.sum()
            loss.backward()
            gradient = model[0].weight.grad
            optimizer.step()
            optimizer.zero_grad()
            dead = [weakref.ref(t) for t in (x, output, loss, gradient)]
            storage = weakref.ref(output.untyped_storage())
            del x, output, loss, gradient
            assert [reference() for reference in dead] == [None] * 4
            assert storage() is None


# --- Devices ---


def test_a_cpu_knows_no_allocator_and_says_so(store_path: Path) -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    with MemoryProfiler(model, optimizer, store=store_path, config=FIRST):
        for _ in range(2):
            model(torch.ones(2, 32)).sum().backward()
            optimizer.step()
    with RunReader(store_path) as reader:
        (device,) = reader.devices(reader.runs().rows[0].info.id)
    assert (device.kind, device.uuid, device.total_bytes) == ("cpu", None, None)
    for step in read(store_path):
        for use in (step.end, step.peak):
            assert use.reserved is None
            assert use.cached is None
        assert step.device_used is None
        assert step.process_used is None
        assert step.host_pinned is None
        assert step.requested is None


class Card:
    """One GPU of several: its own allocator, and what other parts of the loop put there."""

    block_bytes = 512

    def __init__(self, index: int, held: int, asked: list[int]) -> None:
        self.device = torch.device("cuda", index)
        self._held = held
        self._asked = asked

    def describe(self, rank: int, host: str) -> DeviceInfo:
        index = self.device.index
        return DeviceInfo(rank=rank, host=host, kind="cuda", index=index, uuid=f"GPU-{index}")

    def read(self) -> AllocatorReading:
        self._asked.append(self.device.index)
        return AllocatorReading(
            allocated=self._held,
            reserved=self._held,
            requested=self._held,
            peak_allocated=self._held,
            peak_reserved=self._held,
            peak_requested=self._held,
        )

    def driver(self) -> DriverReading:
        return DriverReading()

    def close(self) -> None:
        pass


class OnCards(nn.Module):
    """Trains on the CPU; its parameters are said to lie where the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.here = nn.Linear(16, 16)
        self.nowhere = nn.Linear(16, 16, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.here(x).sum()


def test_parameters_on_several_devices_are_recorded_device_by_device(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU and one card of four; what is on meta is nowhere, and no other card is asked."""
    from vramscope.profiler import census as counting
    from vramscope.storage.records import MemoryClass

    model = OnCards()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked: list[int] = []
    card = Card(1, held=1 << 20, asked=asked)
    real = counting.Census._count

    def count(
        self: counting.Census, *found: Iterable[object]
    ) -> dict[torch.device, counting.HeldBytes]:
        counted = real(self, *found)
        counted[card.device] = counting.HeldBytes({MemoryClass.PARAMETERS: 1 << 19})
        return counted

    monkeypatch.setattr(counting.Census, "_count", count)

    def source(device: torch.device) -> object:
        if device == card.device:
            return card
        from vramscope.profiler.devices.cpu import CpuSource

        assert device.type == "cpu"
        return CpuSource()

    with MemoryProfiler(
        model,
        optimizer,
        store=store_path,
        config=FIRST,
        sources=source,  # type: ignore[arg-type]
    ):
        for _ in range(2):
            model(torch.ones(2, 16)).backward()
            optimizer.step()
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info.id
        by_device = {
            (d.kind, d.index): list(reader.iter_steps(run, d.id))  # type: ignore[arg-type]
            for d in reader.devices(run)
        }
    assert set(by_device) == {("cpu", 0), ("cuda", 1)}
    for on_cpu, on_card in zip(by_device["cpu", 0], by_device["cuda", 1], strict=True):
        assert on_cpu.end.parameters == 4 * 272
        assert on_card.end.parameters == 1 << 19
        assert on_card.end.allocated == 1 << 20
        assert on_card.end.unattributed == 1 << 19
    assert set(asked) == {1}


class Replicated(nn.Module):
    """As DataParallel: copies of the weights on every forward, which are nobody's parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [part @ self.module.weight.clone().t() for part in x.chunk(4)]
        return torch.cat(outputs).sum()


def test_replicas_of_parameters_are_no_parameters(store_path: Path) -> None:
    model = Replicated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = ProfilerConfig(detail_every=1, predict=False)
    with MemoryProfiler(model, optimizer, store=store_path, config=config):
        for _ in range(2):
            model(torch.ones(8, 64)).backward()
            optimizer.step()
            optimizer.zero_grad()
    one = 4 * 64 * 64
    for step in read(store_path):
        assert step.end.parameters == step.peak.parameters == one
        assert (step.peak.allocated or 0) >= 4 * one


# --- Running out, and trying again ---


def test_a_batch_that_is_tried_again_smaller_ends_in_a_whole_step(store_path: Path) -> None:
    class Limited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = small()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.inside(x)
            if len(x) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return out.sum()

    model = Limited()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = ProfilerConfig(detail_every=1, predict=False)
    failed: list[weakref.ref[torch.Tensor]] = []
    with MemoryProfiler(model, optimizer, store=store_path, config=config):
        for _ in range(3):
            for rows in (16, 8, 4):
                x = torch.ones(rows, 32)
                try:
                    model(x).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    break
                except torch.OutOfMemoryError:
                    failed.append(weakref.ref(x))
            del x
    assert len(failed) == 6
    assert all(reference() is None for reference in failed)
    steps = read(store_path)
    assert [(s.step, s.complete) for s in steps] == [(1, True), (2, True), (3, True)]
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info
        kinds = [e.kind for e in reader.events(run.id)]
    assert run.status is RunStatus.COMPLETED
    assert set(kinds) == {EventKind.OOM}


def test_an_error_wrapped_in_another_is_still_running_out_of_memory(store_path: Path) -> None:
    model = small()

    def train() -> None:
        with MemoryProfiler(model, store=store_path, config=FIRST):
            model(torch.ones(2, 32)).sum().backward()
            try:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            except torch.OutOfMemoryError as error:
                raise RuntimeError("worker 0 failed") from error

    with pytest.raises(RuntimeError, match="worker 0 failed"):
        train()
    with RunReader(store_path) as reader:
        info = reader.runs().rows[0].info
    assert info.status is RunStatus.OUT_OF_MEMORY


def test_a_detail_step_takes_no_snapshot_of_the_allocator(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("_snapshot", "_dump_snapshot", "_record_memory_history", "memory_snapshot"):
        if hasattr(torch.cuda.memory, name):
            monkeypatch.setattr(
                torch.cuda.memory, name, lambda *a, name=name, **k: calls.append(name)
            )
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = ProfilerConfig(detail_every=1, predict=False)
    with MemoryProfiler(model, optimizer, store=store_path, config=config):
        for _ in range(3):
            model(torch.ones(2, 32)).sum().backward()
            optimizer.step()
    assert calls == []
    assert [b.step - a.step for a, b in itertools.pairwise(read(store_path))] == [1, 1]
