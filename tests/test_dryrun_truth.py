"""The dry run against the measured run of the same loop, on the CPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the models are built from transformers configurations")

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))
combinations: Any = importlib.import_module("combinations")
dryrun_combinations: Any = importlib.import_module("dryrun_combinations")
sys.path.remove(str(BENCHMARKS))

FAST = (0, 1, 3, 4, 7, 10, 11, 15)
"""Of each kind one: models, optimizers, autocast, checkpointing, accumulation, adapters."""


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"WIDTH": 64, "TOKENS": 48, "VOCABULARY": 512, "LAYERS": 2}.items():
            patch.setattr(combinations, name, value)
        yield


@pytest.mark.parametrize(
    "combination", [combinations.COMBINATIONS[i] for i in FAST], ids=combinations.title
)
def test_the_dry_run_says_what_is_measured(combination: Any) -> None:
    if combination.lora:
        pytest.importorskip("peft")
    torch.set_num_threads(1)
    compared = dryrun_combinations.compare(combination)
    # In so small a model the states of the CPU's random generator, which checkpointing keeps and
    # a dry run does not make, are more than a hundredth.
    faults = [f for f in compared.faults() if not (combination.checkpointing and "peak" in f)]
    assert faults == []
    assert compared.dry_activations > 0
    if combination.checkpointing:
        states = 5056 * 2 * 2  # a segment, at most two states in each
        gap = compared.measured.peak.allocated - compared.dry.peak.allocated
        assert 0 <= gap <= states
