"""Which storages are counted, once, under which class."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from vramscope.profiler.census import Census
from vramscope.profiler.storages import storages_of
from vramscope.storage.records import MemoryClass

CPU = torch.device("cpu")


def held(
    models: list[nn.Module], optimizers: list[torch.optim.Optimizer] | None = None, block: int = 1
) -> dict[MemoryClass, int]:
    census = Census(models, optimizers or [], {"cpu": block})
    counted = census.held().get(CPU)
    return {} if counted is None else counted.classes


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer, width: int) -> None:
    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(torch.ones(2, width)).square().sum()
        value.backward()
        return value

    optimizer.step(loss)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 100, bias=False)
        self.head.weight = self.embed.weight


class Views(nn.Module):
    """Two parameters that are views of one tensor, and an expanded one."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.zeros(1000)
        self.a = nn.Parameter(flat[:400].view(20, 20))
        self.b = nn.Parameter(flat[400:])
        self.wide = nn.Parameter(torch.zeros(1).expand(500))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Linear(10, 10), 440),
        (Tied(), 6400),
        (Views(), 4004),
        (nn.Linear(10, 10).bfloat16(), 220),
        (nn.Linear(10, 10, device="meta"), None),
    ],
)
def test_parameters_count_by_storage(model: nn.Module, expected: int | None) -> None:
    assert held([model]).get(MemoryClass.PARAMETERS) == expected


def test_the_same_model_twice_counts_once() -> None:
    model = nn.Linear(10, 10)
    assert held([model, nn.Sequential(model)])[MemoryClass.PARAMETERS] == 440


def test_blocks_are_rounded_as_the_allocator_rounds() -> None:
    assert held([nn.Linear(10, 10)], block=512)[MemoryClass.PARAMETERS] == 1024


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 440),
        (lambda p: torch.optim.AdamW(p), 888),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 1328),
        (lambda p: torch.optim.Adagrad(p), 448),
        (lambda p: torch.optim.Adafactor(p), 4 * (10 + 10 + 10) + 2 * 4),
    ],
)
def test_optimizer_state_is_what_the_optimizer_holds(make: object, state: int) -> None:
    model = nn.Linear(10, 10)
    optimizer = make(model.parameters())  # type: ignore[operator]
    train_once(model, optimizer, 10)
    counted = held([model], [optimizer])
    assert counted.get(MemoryClass.OPTIMIZER_STATE, 0) == state
    assert counted[MemoryClass.GRADIENTS] == 440


def test_state_that_exists_before_the_first_step_is_seen() -> None:
    model = nn.Linear(1024, 1024)
    optimizer = torch.optim.Adagrad(model.parameters())
    assert held([model], [optimizer])[MemoryClass.OPTIMIZER_STATE] == 4_198_408


def test_state_that_grows_inside_one_entry_is_seen() -> None:
    model = nn.Linear(10, 1, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=1, history_size=5)
    census = Census([model], [optimizer], {"cpu": 1})
    sizes = []
    for _ in range(4):
        train_once(model, optimizer, 10)
        sizes.append(census.held()[CPU].classes[MemoryClass.OPTIMIZER_STATE])
    assert sizes == sorted(set(sizes))


def test_pure_16_bit_keeps_16_bit_moments() -> None:
    model = nn.Linear(1024, 1024).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 1024, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    counted = held([model], [optimizer])
    assert counted[MemoryClass.PARAMETERS] == counted[MemoryClass.GRADIENTS] == 2_099_200
    assert counted[MemoryClass.OPTIMIZER_STATE] == 4_198_408


def test_fp32_copies_of_a_16_bit_model_are_master_weights() -> None:
    model = nn.Linear(64, 64).bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    counted = Census([model], [optimizer], {"cpu": 1}).held()[CPU]
    assert counted.classes[MemoryClass.PARAMETERS] == 2 * (64 * 64 + 64)
    assert counted.master_weights == 4 * (64 * 64 + 64)
    assert counted.classes[MemoryClass.OPTIMIZER_STATE] == counted.master_weights


def test_two_optimizers_that_share_a_tensor_count_it_once() -> None:
    model = nn.Linear(10, 10)
    first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train_once(model, first, 10)
    second = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    second.load_state_dict(first.state_dict())
    for parameter in model.parameters():
        second.state[parameter] = first.state[parameter]
    assert held([model], [first, second])[MemoryClass.OPTIMIZER_STATE] == 440


def test_buffers_are_a_class_of_their_own() -> None:
    assert held([nn.BatchNorm1d(8)])[MemoryClass.BUFFERS] == 2 * 8 * 4 + 8


def test_a_sparse_gradient_counts_its_indices_and_values() -> None:
    model = nn.Embedding(1000, 8, sparse=True)
    model(torch.tensor([1, 2, 3])).sum().backward()
    assert held([model])[MemoryClass.GRADIENTS] == 3 * 8 + 3 * 8 * 4


def test_counting_again_costs_nothing_until_something_changes() -> None:
    model = nn.Linear(10, 10)
    optimizer = torch.optim.AdamW(model.parameters())
    census = Census([model], [optimizer], {"cpu": 1})
    census.held()
    before = census.counts
    census.held()
    assert census.counts == before
    train_once(model, optimizer, 10)
    census.held()
    assert census.counts == before + 1


def test_the_census_keeps_nothing_alive() -> None:
    model = nn.Linear(10, 10)
    optimizer = torch.optim.AdamW(model.parameters())
    census = Census([model], [optimizer], {"cpu": 1})
    census.held()
    gone = [weakref.ref(model), weakref.ref(model.weight), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]
    assert census.held() == {}


def test_a_fake_tensor_holds_nothing() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(1_000_000)
    assert list(storages_of(fake)) == []
    assert list(storages_of(torch.empty(1000, 1000, device="meta"))) == []
