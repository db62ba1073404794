"""Published rows as the accuracy benchmark reads them, on rows of our own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import accuracy as module

    yield module
    for name in [n for n in sys.modules if n == "accuracy" or n.startswith("published")]:
        del sys.modules[name]


def row(**changes: Any) -> dict[str, Any]:
    """A small decoder in full bf16 training, its value unknown to the prediction."""
    fields: dict[str, Any] = {
        "id": "ours",
        "source": "ours",
        "kind": "measured",
        "category": "train_full",
        "model": "ours",
        "arch": {
            "family": "llama",
            "layers": 2,
            "hidden": 256,
            "ffn": 512,
            "heads": 4,
            "kv_heads": 4,
            "head_dim": 64,
            "vocab": 1000,
            "tied_embeddings": False,
            "gated_mlp": True,
            "params": 1_824_000,
        },
        "seq": 64,
        "micro_batch": 2,
        "precision": "bf16",
        "optimizer": "AdamW",
        "checkpointing": "none",
        "n_gpus": 1,
        "dp": 1,
        "zero_stage": 0,
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "scope": "per_gpu",
        "measured": "max_memory_allocated",
        "value": 100.0,
        "unit_stated": "MB",
        "value_bytes": 100_000_000,
        "confidence": "A",
        "recommended": True,
    }
    return {**fields, **changes}


WORDS = [
    ("max_memory_reserved, max over ranks (GiB)", "reserved"),
    ("nvidia-smi / pynvml total used on device", "device"),
    ("after_model_init: parameters_gib (rank 0)", "parameters"),
    ("allocated before the recorded step", "start"),
    ("allocated after optimizer.step (grads alive)", "end"),
    ("vLLM log: KV cache", "kv_cache"),
    ("peak memory active GiB", "peak"),
    ("optimizer states (incl. fp32 master weights)", "optimizer_state"),
]


@pytest.mark.parametrize(("words", "quantity"), WORDS)
def test_what_was_measured_is_read_off_the_words(accuracy: Any, words: str, quantity: str) -> None:
    assert accuracy.Row(row(measured=words)).quantity == quantity


def test_a_prediction_cannot_see_the_value(accuracy: Any) -> None:
    with pytest.raises(AttributeError, match="does not see"):
        _ = accuracy.Row(row()).value_bytes
    small, large = (accuracy.score(row(value=v, value_bytes=v)) for v in (1, 10**12))
    assert small.answer == large.answer


def test_parameters_are_those_of_the_model(accuracy: Any) -> None:
    scored = accuracy.score(row(measured="parameters"))
    assert scored.answer.predicted == 2 * 1_824_000


def test_a_missing_size_is_a_reason_not_a_guess(accuracy: Any) -> None:
    scored = accuracy.score(row(arch={"family": "mystery"}))
    assert scored.answer is None
    assert "mystery" in scored.reason or "number of parameters" in scored.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"category": "train_lora", "lora": {"r": 8, "targets": ["q_proj"]}},
        {"category": "train_qlora", "quant": "nf4", "lora": {"r": 8, "targets": "all linear"}},
        {"category": "inference", "extra": {"prefill": 32, "decode": 32}, "quant": "AWQ"},
        {"checkpointing": "full", "n_gpus": 4, "dp": 4, "zero_stage": 3, "framework": "torchtitan"},
        {"optimizer": "8-bit AdamW (bitsandbytes)"},
        {"n_gpus": 2, "dp": 2, "zero_stage": 2, "framework": "DeepSpeed"},
    ],
)
def test_kinds_of_rows_are_answered(accuracy: Any, changes: dict[str, Any]) -> None:
    scored = accuracy.score(row(**changes))
    assert scored.reason is None
    assert scored.answer.predicted > 2_000_000


def test_a_table_is_right_when_it_rounds_to_what_is_printed(accuracy: Any) -> None:
    fields = {
        "kind": "analytical",
        "measured": "model states per GPU",
        "zero_stage": 1,
        "dp": 16,
        "n_gpus": 16,
        "arch": {"params": 7.5e9},
        "unit_stated": "GB",
    }
    right = accuracy.score(row(**fields, value=35.6, value_bytes=35_600_000_000))
    wrong = accuracy.score(row(**fields, value=36.6, value_bytes=36_600_000_000))
    assert (right.within_rounding, wrong.within_rounding) == (True, False)


def test_tables_and_records_are_written(
    accuracy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "rows.json", tmp_path / "scores.json"
    rows = [row(), row(id="other", arch={"family": "mystery"})]
    source.write_text(json.dumps(rows), encoding="utf-8")
    accuracy.main([str(source), "--json", str(target), "--rows"])
    printed = capsys.readouterr().out
    assert "2 rows, 1 answered" in printed
    assert "1 × train_full:" in printed
    first, second = json.loads(target.read_text(encoding="utf-8"))
    assert first["predicted_bytes"] is not None
    assert (second["predicted_bytes"], bool(second["reason"])) == (None, True)


@pytest.mark.parametrize(("count", "place"), [(1, 0), (10, 8), (20, 17)])
def test_nine_in_ten(accuracy: Any, count: int, place: int) -> None:
    assert accuracy.nine_in_ten([float(i) for i in range(count)]) == place
