"""Loops that change while they run, share a process with others, or are copied."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.storage.reader import RunReader
from vramscope.storage.records import StepRecord

RARELY = ProfilerConfig(detail_first=1, detail_every=0, predict=False)
USUAL = ProfilerConfig(predict=False)


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))


def steps_in(path: Path) -> list[StepRecord]:
    with RunReader(path) as reader:
        run = reader.runs().rows[0].info.id
        device = reader.devices(run)[0].id
        assert device is not None
        return list(reader.iter_steps(run, device))


def held(model: nn.Module) -> int:
    return sum(p.nbytes for p in model.parameters())


def test_an_optimizer_that_takes_the_place_of_another_is_heard(store_path: Path) -> None:
    model = network()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=RARELY):
        for step in range(12):
            if step == 5:
                optimizer = torch.optim.Adam(model.parameters())
            model(torch.ones(2, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    state = [s.end.optimizer_state for s in steps_in(store_path)]
    assert state == [0] * 5 + [2 * held(model) + 4 * 4] * 7


def test_a_layer_that_is_added_counts_from_its_first_step(store_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    with MemoryProfiler(model, optimizer, store=store_path, config=RARELY):
        for step in range(10):
            if step == 4:
                model.append(nn.Linear(16, 16))
                optimizer.add_param_group({"params": list(model[-1].parameters())})
            model(torch.ones(2, 16)).sum().backward()
            optimizer.step()
            expected.append((held(model), held(model)))
            optimizer.zero_grad()
    assert [(s.end.parameters, s.end.gradients) for s in steps_in(store_path)] == expected


@pytest.mark.parametrize("config", [RARELY, USUAL], ids=["rarely", "usual"])
def test_a_buffer_that_grows_counts_what_it_holds(store_path: Path, config: ProfilerConfig) -> None:
    model = network()
    model.register_buffer("seen", torch.zeros(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    with MemoryProfiler(model, optimizer, store=store_path, config=config):
        for _ in range(30):
            model(torch.ones(2, 16)).sum().backward()
            optimizer.step()
            expected.append(model.seen.nbytes)
            optimizer.zero_grad()
            model.seen = torch.cat([model.seen, torch.zeros(8)])
    # What is registered after the step is seen at the next one's end.
    assert [s.end.buffers for s in steps_in(store_path)] == expected


def test_sparse_and_dense_gradients_in_turn(store_path: Path) -> None:
    table = nn.Embedding(100, 16, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    expected = []
    with MemoryProfiler(table, optimizer, store=store_path, config=RARELY):
        for step in range(12):
            table.sparse = step % 2 == 0
            table(torch.arange(1 + step)).sum().backward()
            optimizer.step()
            gradient = table.weight.grad
            assert gradient is not None
            if gradient.is_sparse:
                expected.append(gradient._indices().nbytes + gradient._values().nbytes)
            else:
                expected.append(gradient.nbytes)
            optimizer.zero_grad()
    assert [s.end.gradients for s in steps_in(store_path)] == expected


def test_a_rare_large_batch_is_followed_itself(store_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=USUAL):
        for step in range(1, 60):
            model(torch.ones(1000 if step in (20, 40) else 2, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    steps = {s.step: s for s in steps_in(store_path)}
    large = steps[20].peak.allocated
    assert steps[20].detail
    assert large is not None
    assert large > 1000 * 16 * 4 * 2
    assert steps[40].peak.allocated == large
    assert (steps[21].peak.allocated or 0) < large / 10


def test_a_copy_of_an_attached_model_is_a_plain_model(store_path: Path, tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=RARELY):
        for _ in range(3):
            model(torch.ones(2, 16)).sum().backward()
            optimizer.step()
            copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
            torch.save(model, tmp_path / "model.pt")
            average = torch.optim.swa_utils.AveragedModel(model)
            with torch.no_grad():
                for other in (*copies, average):
                    other(torch.ones(2, 16))
    assert [s.micro_steps for s in steps_in(store_path)] == [1, 1, 1]
    loading = "import sys, torch; m = torch.load(sys.argv[1], weights_only=False); "
    loading += "m(torch.ones(2, 16)); assert 'vramscope.profiler' not in sys.modules"
    subprocess.run([sys.executable, "-c", loading, tmp_path / "model.pt"], check=True)


def test_two_threads_train_two_models_with_a_profiler_each(tmp_path: Path) -> None:
    def train(path: Path, config: ProfilerConfig) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with MemoryProfiler(model, optimizer, store=path, config=config):
            for _ in range(60):
                model(torch.ones(64, 16)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    configs = [ProfilerConfig(detail_every=1, predict=False), RARELY]
    threads = [
        threading.Thread(target=train, args=pair) for pair in zip(paths, configs, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path in paths:
        steps = steps_in(path)
        assert len(steps) == 60
        assert {s.micro_steps for s in steps} == {1}
        assert {s.end.gradients for s in steps} == {held(network())}
        assert len({s.peak.allocated for s in steps}) == 1


def test_models_under_torch_func_and_nested_inputs_are_recorded(store_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=USUAL):
        for _ in range(5):
            torch.func.vmap(model)(torch.ones(4, 16))
            model(torch.ones(2, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(steps_in(store_path)) == 5


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_an_input_like_any_other(store_path: Path) -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.layer(part).sum() for part in x.unbind()]).sum()

    model = Sums()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.nested.nested_tensor([torch.ones(2, 16), torch.ones(3, 16)])
    with MemoryProfiler(model, optimizer, store=store_path):
        for _ in range(4):
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(steps_in(store_path)) == 4


def test_a_compiled_optimizer_step_leaves_torch_whole(store_path: Path) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    with MemoryProfiler(model, optimizer, store=store_path, config=USUAL):
        for _ in range(5):
            model(torch.ones(2, 16)).sum().backward()
            step()
            optimizer.zero_grad()
        assert torch.ones(2).sum() == 2
    recorded = steps_in(store_path)
    assert [s.end.optimizer_state for s in recorded] == [2 * held(model) + 4 * 4] * 5
    assert torch.ones(2).sum() == 2
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
