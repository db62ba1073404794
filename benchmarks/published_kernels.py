"""Rows that measure one operator by itself."""

from __future__ import annotations

import re
from typing import Any, cast

from published import Answer, Row
from published_models import Unanswered
from vramscope.profiler.analytic.kernels import (
    Implementation,
    Shape,
    kernel_peak,
    written_out_attention_kept,
)

UNCLEAR = 1.1
"""Where Hopper's larger workspaces make so much of the sum, an unnamed GPU leaves it open."""


def answer_kernel(row: Row) -> Answer:
    """The peak of an operator, or what its forward leaves.

    Raises:
        Unanswered: The operator is not known.
    """
    shape = row.extra.get("shape")
    if shape is None:
        return _adapted_layer(row)
    if {"S", "d"} <= set(shape):
        return _attention(row, shape)
    named = re.match(r"liger-(\w+)-(liger|huggingface)-", row.id)
    if not named:
        raise Unanswered("operator: not named")
    try:
        peak = kernel_peak(
            named[1], cast("Implementation", named[2]), _shape(row, shape, named[1]), row.gpu
        )
    except ValueError as unknown:
        raise Unanswered(str(unknown)) from None
    return Answer(peak.nbytes)


def _shape(row: Row, s: dict[str, Any], name: str) -> Shape:
    item = 4 if row.says("float32", "precision") else 2
    if "cross_entropy" in name:
        rows = s.get("BT") or s["B"] * s["T"]
        return Shape(rows=rows, width=s["V"], inner=s.get("H", 0), item_bytes=item)
    if name in ("geglu", "swiglu"):
        rows = (s.get("bsz") or s["B"]) * s["T"]
        width, inner = s["hidden_size"], s["intermediate_size"]
        return Shape(rows=rows, width=width, inner=inner, item_bytes=item)
    if name == "rope":
        width = s.get("hidden_size") or s["H"]
        head = width // s["num_q_heads"]
        keys = head * s["num_kv_heads"]
        rows = s.get("seq_len") or s["T"]
        return Shape(rows=rows, width=width, inner=head, key_width=keys, item_bytes=item)
    return Shape(rows=s["M"], width=s.get("N") or s["H"], item_bytes=item)


def _attention(row: Row, s: dict[str, Any]) -> Answer:
    """Saved probabilities, and where the loop's variables keep them the scores too.

    Raises:
        Unanswered: The GPU is not named, and its workspaces decide the sum.
    """
    two = row.says("two S x S", "attention", "notes")
    shape = {
        "samples": s["B"],
        "tokens": s["S"],
        "width": s["d"],
        "squares": 2 if two else 1,
        "others": 5 if row.says("dO alive", "measured") else 4,
    }
    low, high = (written_out_attention_kept(**shape, gpu=gpu).nbytes for gpu in ("A100", "H100"))
    said = re.search(r"~(\d+) MB workspace", str(row.notes or ""))
    if row.gpu is None and not said and high > UNCLEAR * low:
        raise Unanswered("operator: the GPU is not named, and its workspaces decide the sum")
    return Answer(low)


def _adapted_layer(row: Row) -> Answer:
    """One square linear layer with an adapter, by the numbers of its name."""
    size = re.search(r"-(\d+)$", row.id)
    if not size or row.quant:
        raise Unanswered("operator: its shape is not given")
    width, rank = int(size[1]), int(row.lora["r"])
    return Answer(4 * (width * width + 2 * rank * width))
