"""Closed formulas as papers and libraries print them, to be set beside what a stack really holds.

These count what their authors count, no more: no buckets, no padding, no allocator. ``predict``
answers for a real stack; these answer for the published tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .dtypes import BLOCK_4BIT, NESTED_BLOCK

ZERO_PAPER = "ZeRO, arXiv 1910.02054, section 5 and Table 1"
DEEPSPEED_ESTIMATOR = "DeepSpeed runtime/zero/stage_1_and_2.py, stage3.py estimate_zero*_mem_needs"
KORTHIKANTI = "Korthikanti et al., arXiv 2205.05198, Table 2"
ZERO_R = "ZeRO, arXiv 1910.02054, section 3.2"

Recomputation = Literal["none", "selective", "full"]
Offload = Literal["none", "optimizer", "all"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A formula with its numbers in."""

    nbytes: float
    formula: str
    source: str


def zero_model_states(
    parameters: float, ranks: int, stage: Literal[0, 1, 2, 3], optimizer_bytes: int = 12
) -> Estimate:
    """Model states of one rank in mixed precision: ``2Ψ`` weights, ``2Ψ`` gradients, ``KΨ``.

    Stage 1 divides the optimizer's ``KΨ`` by the ranks, stage 2 the gradients too, stage 3 all.
    """
    whole, divided = {
        0: (4 + optimizer_bytes, 0),
        1: (4, optimizer_bytes),
        2: (2, 2 + optimizer_bytes),
        3: (0, 4 + optimizer_bytes),
    }[stage]
    nbytes = parameters * (whole + divided / ranks)
    formula = f"{whole}·Ψ + {divided}·Ψ/{ranks}, Ψ = {parameters:,.0f}"
    return Estimate(nbytes, formula, ZERO_PAPER)


def optimizer_states(parameters: float, ranks: int, bytes_each: int) -> Estimate:
    """The optimizer's states of one rank, divided over the ranks."""
    nbytes = parameters * bytes_each / ranks
    return Estimate(nbytes, f"{bytes_each}·{parameters:,.0f}/{ranks}", ZERO_PAPER)


def deepspeed_estimate(
    parameters: float, ranks: int, stage: Literal[2, 3], offload: Offload, largest_layer: float = 0
) -> Estimate:
    """What DeepSpeed's estimator prints for one GPU.

    Stage 2: ``4·P + 16·P/N`` without offload, ``2·P`` with the optimizer on the CPU. Stage 3:
    ``4·largest layer``, and ``18·P/N`` without offload, ``2·P/N`` with the optimizer offloaded.
    """
    if stage == 2:
        whole, divided = {"none": (4, 16), "optimizer": (2, 0), "all": (2, 0)}[offload]
        nbytes = parameters * (whole + divided / ranks)
        return Estimate(nbytes, f"{whole}·P + {divided}·P/{ranks}", DEEPSPEED_ESTIMATOR)
    divided = {"none": 18, "optimizer": 2, "all": 0}[offload]
    nbytes = 4 * largest_layer + divided * parameters / ranks
    formula = f"4·{largest_layer:,.0f} + {divided}·{parameters:,.0f}/{ranks}"
    return Estimate(nbytes, formula, DEEPSPEED_ESTIMATOR)


def deepspeed_host_estimate(parameters: float, gpus: int, factor: float = 1.5) -> Estimate:
    """Host memory that the estimator prints for stage 2 with the optimizer on the CPU.

    ``P·max(4·gpus, 16)·factor``; the factor is its ``additional_buffer_factor``.
    """
    nbytes = parameters * max(4 * gpus, 16) * factor
    return Estimate(nbytes, f"P·max(4·{gpus}, 16)·{factor}", DEEPSPEED_ESTIMATOR)


def largest_model(capacity: float, ranks: int, stage: Literal[0, 1, 2, 3], slices: int) -> Estimate:
    """Parameters whose model states fill a device, with each model cut into ``slices``."""
    each = zero_model_states(1, ranks, stage).nbytes
    formula = f"{capacity:,.0f}·{slices}/{each:.4g} B a parameter"
    return Estimate(capacity * slices / each, formula, ZERO_PAPER)


def layer_activations(
    *,
    tokens: int,
    samples: int,
    hidden: int,
    heads: int,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recomputation: Recomputation = "none",
) -> Estimate:
    """Activation bytes of one GPT layer on one GPU, in 16 bit with one-byte dropout masks.

    ``sbh·(10 + 24/t + 5as/(ht))``; sequence parallelism divides the 10 too, selective
    recomputation leaves the attention share out, full keeps the input alone (``2·sbh``).
    """
    sbh = tokens * samples * hidden
    t = tensor_parallel
    if recomputation == "full":
        return Estimate(2 * sbh, f"2·sbh, sbh = {sbh:,}", KORTHIKANTI)
    outside = 10 / t if sequence_parallel else 10
    attention = 0.0 if recomputation == "selective" else attention_share(tokens, hidden, heads) / t
    factor = outside + 24 / t + attention
    return Estimate(sbh * factor, f"{factor:g}·sbh, sbh = {sbh:,}, t = {t}", KORTHIKANTI)


def attention_share(tokens: int, hidden: int, heads: int) -> float:
    """``5as/h``: attention's share of a layer's activations, in bytes an element of ``sbh``."""
    return 5 * heads * tokens / hidden


def transformer_activations(
    *, tokens: int, samples: int, hidden: int, layers: int, checkpointing: bool
) -> Estimate:
    """ZeRO's rule of thumb: ``12·h·b·s·L`` elements of 2 B; with checkpointing ``√L`` for ``L``."""
    depth = math.sqrt(layers) if checkpointing else layers
    nbytes = 2 * 12 * hidden * samples * tokens * depth
    return Estimate(nbytes, f"2 B · 12·{hidden}·{samples}·{tokens}·{depth:.4g}", ZERO_R)


def double_quantisation_saves() -> Estimate:
    """Bits a parameter that quantising the scales saves: ``32/64 − (8/64 + 32/(64·256))``."""
    saved = 32 / BLOCK_4BIT - (8 / BLOCK_4BIT + 32 / (BLOCK_4BIT * NESTED_BLOCK))
    return Estimate(
        saved, "32/64 − (8/64 + 32/(64·256)) bits", "QLoRA, arXiv 2305.14314, section 3"
    )
