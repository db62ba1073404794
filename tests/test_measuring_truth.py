"""The books against a counting allocator, and activations against hooks on saved tensors.

The combinations are those of benchmarks/measuring.py, cut smaller still.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the models are built from transformers configurations")

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))
combinations: Any = importlib.import_module("combinations")
measuring: Any = importlib.import_module("measuring")
counting_allocator: Any = importlib.import_module("counting_allocator")
sys.path.remove(str(BENCHMARKS))

Measure = Callable[[Any], Any]


@pytest.fixture(scope="module")
def memory() -> Iterator[Any]:
    """The counting allocator, installed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with counting_allocator.counting() as counter:
            yield counter
    except counting_allocator.CannotCount as reason:
        pytest.skip(str(reason))
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def measure(memory: Any) -> Iterator[Measure]:
    """Trains a combination and compares; small, and each only once."""
    marks = memory.new_mark(), memory.new_mark()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"WIDTH": 64, "TOKENS": 48, "VOCABULARY": 512, "LAYERS": 2}.items():
            patch.setattr(combinations, name, value)
        yield lambda combination: measuring.measure(combination, memory, marks)


def test_there_are_at_least_twelve() -> None:
    assert len({combinations.title(c) for c in combinations.COMBINATIONS}) >= 12


@pytest.mark.parametrize("combination", combinations.COMBINATIONS, ids=combinations.title)
def test_the_books_close(combination: Any, measure: Measure) -> None:
    if combination.lora:
        pytest.importorskip("peft")
    figures = measure(combination)
    assert [step.detail for step in figures.steps] == [True, True, True, False, False]
    assert figures.activations > 0
    assert figures.faults() == []


def test_the_counter_counts(memory: Any) -> None:
    before = memory.current
    mark = memory.new_mark()
    kept = torch.empty(1000)
    dropped = torch.empty(5000, dtype=torch.bfloat16)
    del dropped
    assert memory.current - before == 4000
    assert memory.peak(mark) - before == 14_000
    memory.reset(mark)
    assert memory.peak(mark) == memory.current
    kept.untyped_storage().resize_(8000)
    assert memory.current - before == 8000
    del kept
    assert memory.current == before


def test_a_forward_that_nothing_saves_is_no_activation(memory: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(64, 64))
    layer = torch.nn.Linear(64, 64, bias=False)
    layer.weight = weight
    x = torch.randn(8, 64)
    training = combinations.Training(
        _Lossy(layer), torch.optim.SGD([weight], lr=0.1), lambda: {"x": x}
    )
    # The product's result is not kept by a sum; the squares of it would be.
    assert measuring.saved_by_hooks(training, {"x": x}) == 0
    training.model.squares = True
    assert measuring.saved_by_hooks(training, {"x": x}) == 8 * 64 * 4


class _Lossy(torch.nn.Module):
    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.squares = False

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        loss = (y * y if self.squares else y).sum()
        return type("Output", (), {"loss": loss})()


def test_without_a_compiler_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(counting_allocator.CannotCount, match="install g\\+\\+"):
        counting_allocator.build(tmp_path)
