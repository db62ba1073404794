"""Analytical rows: tables that papers and libraries print from formulas of their own."""

from __future__ import annotations

import re
from typing import Literal, cast

from published import Answer, Row
from published_models import Unanswered, tensors_of
from vramscope.profiler.analytic import textbook

Stage = Literal[0, 1, 2, 3]


def answer_table(row: Row) -> Answer:
    """The figure that the table's own formula gives.

    Raises:
        Unanswered: The table's formula is not known.
    """
    return Answer(_estimate(row).nbytes)


def _estimate(row: Row) -> textbook.Estimate:
    words, parameters = str(row.measured), row.arch.get("params")
    stage, ranks = cast("Stage", row.zero_stage), int(row.dp)
    if re.search("model states per GPU", words):
        return textbook.zero_model_states(parameters, ranks, stage)
    if re.search("largest parameter count that fits", words):
        capacity = re.search(r"(\d+) GB", words)
        assert capacity
        return textbook.largest_model(float(capacity[1]) * 1e9, ranks, stage, int(row.tp))
    if re.search("estimate", words) and stage >= 2:
        return _deepspeed(row, words)
    if re.search("Adam states", words):
        return textbook.optimizer_states(parameters, ranks, 12)
    if re.search("activation", words):
        return _activations(row, words)
    return _counted(row, words)


def _deepspeed(row: Row, words: str) -> textbook.Estimate:
    parameters, said = row.arch["params"], str(row.offload or "")
    if "cpu total" in words:
        return textbook.deepspeed_host_estimate(parameters, int(row.n_gpus))
    offload: textbook.Offload = (
        "all" if "params" in said else "optimizer" if "optimizer" in said else "none"
    )
    return textbook.deepspeed_estimate(
        parameters, int(row.dp), row.zero_stage, offload, row.arch.get("largest_layer") or 0
    )


def _activations(row: Row, words: str) -> textbook.Estimate:
    if not row.arch.get("hidden"):
        raise Unanswered("no model: hidden is not given")
    if "layer" not in words:
        return textbook.transformer_activations(
            tokens=row.seq,
            samples=row.micro_batch,
            hidden=row.arch["hidden"],
            layers=row.arch["layers"],
            checkpointing=row.checkpointing == "full",
        )
    return textbook.layer_activations(
        tokens=row.seq,
        samples=row.micro_batch,
        hidden=row.arch["hidden"],
        heads=row.arch["heads"],
        tensor_parallel=row.tp,
        sequence_parallel=bool(row.extra.get("sequence_parallel")),
        recomputation=row.checkpointing,
    )


def _counted(row: Row, words: str) -> textbook.Estimate:
    """Estimates that are a number of bytes for each parameter."""
    if "double quantisation" in words:
        return textbook.double_quantisation_saves()
    for pattern, each, kind in (
        (r"Adam estimate", 16, "weights, gradients and two moments"),
        (r"fp32 fused", 4, "one float32 element"),
        (r"total size", 4, "weights"),
        (r"model weights", 2, "weights"),
    ):
        if re.search(pattern, words):
            number = row.arch.get("params") or tensors_of(row.arch, "float32").numel
            return textbook.Estimate(each * number, f"{each} B · {number:,}: {kind}", "torch")
    raise Unanswered(f"table: no formula known for {words!r}")
