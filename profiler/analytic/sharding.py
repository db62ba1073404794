"""How model state is spread over devices: DeepSpeed's ZeRO to the byte, and DDP's buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .dtypes import ceil_div, round_up
from .inventory import TensorSpec
from .mapping import check, setting

ZERO_SOURCE = (
    "DeepSpeed 0.19 runtime/zero (stage_1_and_2.py, stage3.py), checked byte for byte on 22 runs"
)
DDP_SOURCE = "torch 2.13 nn/parallel/distributed.py (Reducer buckets), checked on 2 and 4 ranks"
ALIGNMENT = 2
"""DeepSpeed pads flat groups to a multiple of this times the world size (for NCCL)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelism:
    """How the work is spread over devices."""

    strategy: Literal["none", "ddp", "zero"] = setting(
        "One device, DistributedDataParallel, or DeepSpeed ZeRO.", "none"
    )
    world_size: int = setting("Data-parallel devices.", 1, minimum=1)
    rank: int = setting("Which of them this is.", 0, minimum=0)
    zero_stage: Literal[0, 1, 2, 3] = setting("Stage of ZeRO.", 0)
    reduce_bucket_elements: int = setting(
        "DeepSpeed `reduce_bucket_size`, elements.", 500_000_000, minimum=1
    )
    overlap_comm: bool = setting("DeepSpeed `overlap_comm`: two reduce buckets.", False)
    persistence_threshold: int = setting(
        "DeepSpeed `stage3_param_persistence_threshold`: parameters of at most so many elements "
        "stay whole.",
        100_000,
        minimum=0,
    )
    max_live_parameters: int = setting(
        "DeepSpeed `stage3_max_live_parameters`, elements.", 1_000_000_000, minimum=0
    )
    bucket_view: bool = setting("DDP `gradient_as_bucket_view`.", False)

    def __post_init__(self) -> None:
        check(self)
        if self.rank >= self.world_size:
            raise ValueError(
                f"Parallelism.rank={self.rank}: must be below world_size={self.world_size}"
            )
        if self.zero_stage and self.strategy != "zero":
            raise ValueError(
                f"Parallelism.zero_stage={self.zero_stage}: needs strategy='zero', "
                f"not {self.strategy!r}"
            )
        if self.world_size > 1 and self.strategy == "none":
            raise ValueError(
                f"Parallelism.world_size={self.world_size}: needs strategy='ddp' or 'zero'"
            )


@dataclass(frozen=True, slots=True)
class Partition:
    """One rank's slice of a flat group of parameters (stages 1 and 2), in elements."""

    padded: int
    shard: int
    start: int


def partition(numel: int, parallelism: Parallelism) -> Partition:
    """The slice of a flat group of ``numel`` elements: ``Pp = ⌈Ψ/(2N)⌉·2N``, ``Pp/N`` each."""
    n = parallelism.world_size
    padded = round_up(numel, ALIGNMENT * n)
    shard = padded // n
    return Partition(padded, shard, shard * parallelism.rank)


def intersecting_numel(tensors: Sequence[TensorSpec], part: Partition) -> int:
    """Elements of every parameter that meets this rank's slice, whole.

    DeepSpeed keeps the reduced gradient of a parameter whole on each rank whose slice it meets,
    so that this is more than ``Ψ/N``.
    """
    total = place = 0
    for tensor in tensors:
        if place < part.start + part.shard and place + tensor.numel > part.start:
            total += tensor.numel
        place += tensor.numel
    return total


def sharded_numel(tensors: Sequence[TensorSpec], world_size: int) -> int:
    """Elements of one rank's shards under stage 3: ``S = Σ ⌈n/N⌉``."""
    return sum(ceil_div(t.numel, world_size) for t in tensors)


def persistent_numel(tensors: Sequence[TensorSpec], parallelism: Parallelism) -> int:
    """Elements that stay whole under stage 3 beside their shards."""
    threshold = parallelism.persistence_threshold
    return sum(t.numel for t in tensors if t.numel <= threshold)
