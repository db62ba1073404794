"""Which published rows are run dry, and that a row's own value is not looked at."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))
published: Any = importlib.import_module("dryrun_published")
sys.path.remove(str(BENCHMARKS))

V, B, T = 1000, 2, 64
LOSS: dict[str, Any] = {
    "id": "loss",
    "source": "somebody/Liger-Kernel@1 data.csv",
    "kind": "measured",
    "category": "kernel",
    "model": "cross_entropy (huggingface)",
    "n_gpus": 1,
    "confidence": "A",
    "precision": "float32",
    "measured": "max_memory_allocated of one forward+backward",
    "value_bytes": 1,
    "extra": {"shape": {"B": B, "T": T, "V": V}},
}
LORA: dict[str, Any] = {
    "id": "lora",
    "source": "Lightning-AI/litgpt@1 table.md",
    "kind": "measured",
    "category": "train_lora",
    "model": "tiny",
    "arch": {
        "family": "llama",
        "layers": 2,
        "hidden": 64,
        "ffn": 128,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "vocab": 256,
    },
    "seq": 32,
    "micro_batch": 1,
    "n_gpus": 1,
    "confidence": "A",
    "precision": "bf16-true",
    "lora": {"r": 4, "targets": ["query", "value"]},
    "measured": "torch.cuda.max_memory_allocated",
    "value_bytes": 1,
}


def test_a_loss_is_five_times_its_logits() -> None:
    """Logits, their gradient kept from before, log-probabilities, and two gradients in flight."""
    case = published.case_of(LOSS)
    assert case.quantity == "peak"
    logits = B * T * V * 4
    assert 5 * logits <= case.predicted() <= 5 * logits + 5 * 512


def test_the_rows_own_value_is_not_looked_at() -> None:
    low, high = (published.case_of(LOSS | {"value_bytes": value}) for value in (1, 10**12))
    assert low.predicted() == high.predicted()


def test_a_quantised_model_takes_less() -> None:
    plain = published.case_of(LORA).run().step
    packed = published.case_of(LORA | {"category": "train_qlora", "quant": "bnb.nf4"}).run().step
    assert packed.end.parameters < plain.end.parameters / 1.5
    matrices, counters = 2 * 2, 4  # two a layer; each rounds to 1024 B, a counter to 512 B
    assert plain.end.optimizer_state == 2 * matrices * 1024 + counters * 512


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source": "nobody/knows@1"}, "no builder for nobody/knows"),
        ({"category": "train_full"}, "only LoRA is built"),
        ({"arch": {"family": "gemma2"}}, "gemma2 is not built"),
        ({"lora": {"r": 4, "targets": ["mlp"]}}, "only those on queries and values"),
        ({"quant": "int8"}, "int8 is not built"),
        ({"seq": None}, "is not said"),
    ],
)
def test_what_no_builder_knows_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(published.Refused, match=reason):
        published.case_of(LORA | change)


def test_rows_are_chosen_by_what_they_say_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    rows = [
        LOSS,
        LOSS | {"measured": "nvidia-smi"},
        LOSS | {"n_gpus": 2},
        LOSS | {"kind": "analytical"},
        LOSS | {"value_bytes": None},
        LOSS | {"measured": "allocated after optimizer.step (grads alive)"},
    ]
    path.write_text(json.dumps(rows))
    chosen = list(published.single_gpu_rows(path))
    assert [row["measured"].split()[0] for row in chosen] == ["max_memory_allocated", "allocated"]
