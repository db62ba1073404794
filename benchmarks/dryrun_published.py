"""Published single-GPU measurements that dryrun.py runs dry: which rows, and how each is built.

A row's own value is never looked at here. What a row's ``measured`` says decides what it is held
against; what it says of its model, framework and loop decides what is built. A row that none of the
builders knows is refused, with the reason.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dryrun_cs336 as cs336
import dryrun_litgpt as litgpt
import torch
from torch import nn
from vramscope.profiler.dryrun import DryRun, dry_run

Row = Mapping[str, Any]
Quantity = Literal["peak", "end"]
BF16 = torch.bfloat16


class Refused(Exception):
    """A row that is not run dry, and why."""


@dataclass(frozen=True)
class Case:
    """A row that can be run."""

    id: str
    grade: str
    quantity: Quantity
    measured_bytes: int
    run: Callable[[], DryRun]

    def predicted(self) -> int:
        """Bytes that the dry run says the row's quantity is."""
        step = self.run().step
        return (step.peak if self.quantity == "peak" else step.end).allocated or 0


def single_gpu_rows(path: Path) -> Iterator[Row]:
    """Measured rows of one GPU that say what torch's allocator had allocated."""
    for row in json.loads(path.read_text(encoding="utf-8")):
        single = row["kind"] == "measured" and row["n_gpus"] == 1
        if single and row.get("value_bytes") and _quantity(row["measured"]) is not None:
            yield row


def _quantity(measured: str) -> Quantity | None:
    """What a row is held against, by the words with which it says what was measured."""
    if "max_memory_allocated" in measured or measured.startswith("peak allocated"):
        return "peak"
    if measured.startswith("allocated after optimizer.step"):
        return "end"
    return None


def case_of(row: Row) -> Case:
    """How a row is run.

    Raises:
        Refused: With the reason.
    """
    quantity = _quantity(row["measured"])
    assert quantity is not None
    for says, build in _BUILDERS:
        if says in row["source"]:
            return Case(row["id"], row["confidence"], quantity, row["value_bytes"], build(row))
    raise Refused(f"no builder for {row['source'].split('@')[0]}")


# ---- LitGPT: adapters in bfloat16, also on 4-bit weights


def _litgpt(row: Row) -> Callable[[], DryRun]:
    arch, lora = row.get("arch") or {}, row.get("lora")
    if not lora or row["category"] not in ("train_lora", "train_qlora"):
        raise Refused(f"{row['category']} of LitGPT: only LoRA is built")
    family = arch.get("family")
    if family not in litgpt.FAMILIES:
        raise Refused(f"LitGPT's {family} is not built")
    if _targets(lora) != {"query", "value"}:
        raise Refused(f"adapters on {lora['targets']}: only those on queries and values are built")
    if row.get("quant") not in (None, "bnb.nf4", "bnb.nf4-dq"):
        raise Refused(f"{row['quant']} is not built")
    if not row.get("seq") or not row.get("micro_batch") or "bf16-true" not in row["precision"]:
        raise Refused("sequence, batch or precision is not said, or not bf16-true")
    shape = litgpt.Shape(
        family=family,
        layers=arch["layers"],
        width=arch["hidden"],
        ffn=arch["ffn"],
        heads=arch["heads"],
        groups=arch["kv_heads"],
        head_width=arch["head_dim"],
        vocabulary=arch["vocab"],
        rank=lora["r"],
        quantization=row.get("quant"),
    )
    return lambda: dry_run(
        lambda: litgpt.build(shape, row["seq"]),
        functools.partial(litgpt.step, row["micro_batch"], row["seq"]),
        build_optimizer=litgpt.optimizer,
        steps=1,
        warm_start=True,
    )


def _targets(lora: Row) -> set[str]:
    named = lora["targets"]
    if isinstance(named, str):
        return {"query", "value"} if "q+v" in named else {named}
    return set(named)


# ---- CS336: the course's Transformer, trained and run forward


def _cs336(row: Row) -> Callable[[], DryRun]:
    arch = row.get("arch") or {}
    if row["category"] not in ("train_full", "inference") or "BasicsTransformerLM" not in str(arch):
        raise Refused(f"{row['category']} of CS336: only the whole Transformer is built")
    shape = cs336.Shape(
        arch["layers"], arch["hidden"], arch["ffn"], arch["heads"], arch["vocab"], row["seq"]
    )
    trains = row["category"] == "train_full"
    step = functools.partial(cs336.step, row["micro_batch"], shape, "autocast" in row["precision"])
    return lambda: dry_run(
        lambda: cs336.Transformer(shape),
        step,
        build_optimizer=cs336.AdamW if trains else None,
        steps=1,
        warm_start=trains,
    )


# ---- Qwen: transformers' generation in bfloat16, prompt and last token


def _qwen(row: Row) -> Callable[[], DryRun]:
    arch, extra = row["arch"], row.get("extra") or {}
    if row.get("quant") or row["precision"] != "bf16":
        raise Refused(f"{row.get('quant') or row['precision']}: only bfloat16 weights are built")
    prompt, length = extra.get("prefill"), row.get("seq")
    if not prompt or not length or arch.get("family") != "qwen2":
        raise Refused("prompt or length is not said, or it is not Qwen 2")
    return lambda: dry_run(
        functools.partial(_qwen2, arch, length),
        functools.partial(_generate, row["micro_batch"], prompt, length),
        steps=1,
    )


def _qwen2(arch: Row, length: int) -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = Qwen2Config(
        vocab_size=arch["vocab"],
        hidden_size=arch["hidden"],
        intermediate_size=arch["ffn"],
        num_hidden_layers=arch["layers"],
        num_attention_heads=arch["heads"],
        num_key_value_heads=arch["kv_heads"],
        max_position_embeddings=length,
        tie_word_embeddings=arch["tied_embeddings"],
    )
    return Qwen2ForCausalLM._from_config(shape, dtype=BF16).eval()


def _generate(batch: int, prompt: int, length: int, model: Any) -> None:
    """The prompt, and then the last token, by a cache that holds all others."""
    from transformers import DynamicCache

    shape = model.config
    with torch.no_grad():
        cache = DynamicCache(config=shape)
        model(torch.randint(0, 9, (batch, prompt)), past_key_values=cache, logits_to_keep=1)
        del cache
        cache = DynamicCache(config=shape)
        width = shape.hidden_size // shape.num_attention_heads
        size = (batch, shape.num_key_value_heads, length - 1, width)
        for layer in range(shape.num_hidden_layers):
            cache.update(torch.empty(size, dtype=BF16), torch.empty(size, dtype=BF16), layer)
        model(torch.randint(0, 9, (batch, 1)), past_key_values=cache, logits_to_keep=1)


# ---- Liger's baselines: single modules of transformers and torch, forward and backward


def _liger(row: Row) -> Callable[[], DryRun]:
    kernel, _, provider = row["model"].partition(" ")
    shape = (row.get("extra") or {}).get("shape") or {}
    if provider != "(huggingface)" or kernel not in _KERNELS:
        raise Refused(f"{row['model']}: only the baselines {', '.join(_KERNELS)} are built")
    build, step = _KERNELS[kernel](shape)
    return lambda: dry_run(build, step, steps=3)


def _repeated(make: Callable[[], tuple[Any, ...]]) -> Callable[[nn.Module], None]:
    """Forward and backward of the same inputs, again and again; their gradients stay."""
    held: list[tuple[Any, ...]] = []

    def step(model: nn.Module) -> None:
        if not held:
            held.append(make())
        inputs, gradient = held[0]
        model(*inputs).backward(gradient, retain_graph=True)

    return step


class _HeadAndLoss(nn.Module):
    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False)
        # The benchmark makes its own kernel's module too, whichever of the two it runs.
        self.other = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(x), y)


def _cross_entropy(shape: Row) -> tuple[Any, Any]:
    def make() -> tuple[Any, ...]:
        rows = shape["B"] * shape["T"]
        logits = torch.randn(rows, shape["V"], requires_grad=True)
        return (logits, torch.randint(0, shape["V"], (rows,))), None

    return nn.CrossEntropyLoss, _repeated(make)


def _fused_cross_entropy(shape: Row) -> tuple[Any, Any]:
    def make() -> tuple[Any, ...]:
        x = torch.randn(shape["BT"], shape["H"], dtype=BF16, requires_grad=True)
        return (x, torch.randint(0, shape["V"], (shape["BT"],))), None

    return lambda: _HeadAndLoss(shape["H"], shape["V"]).to(BF16), _repeated(make)


def _gated_mlp(shape: Row) -> tuple[Any, Any]:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    config = LlamaConfig(
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        hidden_act=shape["hidden_act"],
    )
    batch = shape.get("bsz") or shape["B"]

    def make() -> tuple[Any, ...]:
        x = torch.randn(batch, shape["T"], shape["hidden_size"], dtype=BF16, requires_grad=True)
        return (x,), torch.randn_like(x)

    return lambda: LlamaMLP(config).to(BF16), _repeated(make)


_KERNELS: Mapping[str, Callable[[Row], tuple[Any, Any]]] = {
    "cross_entropy": _cross_entropy,
    "fused_linear_cross_entropy": _fused_cross_entropy,
    "geglu": _gated_mlp,
    "swiglu": _gated_mlp,
}

_BUILDERS: tuple[tuple[str, Callable[[Row], Callable[[], DryRun]]], ...] = (
    ("Lightning-AI/litgpt", _litgpt),
    ("assignment2-systems", _cs336),
    ("QwenLM/Qwen2.5", _qwen),
    ("Liger-Kernel", _liger),
)
