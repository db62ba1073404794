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

    strategy: Literal["none", "ddp", "fsdp", "zero"] = setting(
        "One device, DistributedDataParallel, torch's FSDP, or DeepSpeed ZeRO.", "none"
    )
    world_size: int = setting(
        "Devices that the model's state is spread over or copied to: the data-parallel ones, with "
        "those of sequence and context parallelism among them.",
        1,
        minimum=1,
    )
    rank: int = setting("Which of them this is.", 0, minimum=0)
    replicas: int = setting(
        "Groups of devices that hold all of the state each (HSDP, MiCS); it is sharded over "
        "world_size / replicas.",
        1,
        minimum=1,
    )
    tensor_parallel: int = setting("Devices that share each matrix.", 1, minimum=1)
    pipeline_parallel: int = setting("Stages that the layers are cut into.", 1, minimum=1)
    sequence_parallel: int = setting(
        "Devices that share each sequence and exchange heads (Ulysses).", 1, minimum=1
    )
    context_parallel: int = setting(
        "Devices that share each sequence and pass keys and values round (ring attention).",
        1,
        minimum=1,
    )
    expert_parallel: int = setting("Devices that share the experts of a layer.", 1, minimum=1)
    megatron_sequence_parallel: bool = setting(
        "Whether tensor-parallel devices share the sequence between their matrices.", False
    )
    zero_stage: Literal[0, 1, 2, 3] = setting("Stage of ZeRO.", 0)
    reduce_bucket_elements: int = setting(
        "DeepSpeed `reduce_bucket_size`, elements.", 500_000_000, minimum=1
    )
    allgather_bucket_elements: int = setting(
        "DeepSpeed `allgather_bucket_size`, elements.", 500_000_000, minimum=1
    )
    overlap_comm: bool = setting("DeepSpeed `overlap_comm`: two reduce buckets.", False)
    contiguous_gradients: bool = setting(
        "DeepSpeed `contiguous_gradients`: gradients are copied into the reduce bucket.", True
    )
    persistence_threshold: int = setting(
        "DeepSpeed `stage3_param_persistence_threshold`: parameters of at most so many elements "
        "stay whole.",
        100_000,
        minimum=0,
    )
    max_live_parameters: int = setting(
        "DeepSpeed `stage3_max_live_parameters`, elements.", 1_000_000_000, minimum=0
    )
    max_reuse_distance: int = setting(
        "DeepSpeed `stage3_max_reuse_distance`, elements.", 1_000_000_000, minimum=0
    )
    prefetch_bucket_elements: int = setting(
        "DeepSpeed `stage3_prefetch_bucket_size`, elements.", 50_000_000, minimum=0
    )
    sub_group_elements: int = setting(
        "DeepSpeed `sub_group_size`: elements that the optimizer steps over at once.",
        1_000_000_000,
        minimum=0,
    )
    hpz_partition: int = setting(
        "DeepSpeed `zero_hpz_partition_size`: devices that keep a second copy of the 16-bit "
        "weights among them.",
        1,
        minimum=1,
    )
    bucket_view: bool = setting("DDP `gradient_as_bucket_view`.", False)
    fsdp_version: Literal[1, 2] = setting("FullyShardedDataParallel, or `fully_shard`.", 2)
    fsdp_sharding: Literal["full", "gradients", "none"] = setting(
        "What FSDP frees: weights after forward (FULL_SHARD, reshard_after_forward), only after "
        "backward (SHARD_GRAD_OP), or nothing (NO_SHARD).",
        "full",
    )
    fsdp_units: Literal["blocks", "size", "model"] = setting(
        "What FSDP gathers at once: a block, modules of at least `fsdp_unit_elements`, or all.",
        "blocks",
    )
    fsdp_unit_elements: int | None = setting(
        "Least parameters of a unit where units are made by size.", None, minimum=0
    )
    forward_prefetch: bool = setting("Whether FSDP gathers the next unit early in forward.", False)
    backward_prefetch: Literal["pre", "post", "none"] = setting(
        "When FSDP gathers the next unit in backward.", "pre"
    )

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
                f"Parallelism.world_size={self.world_size}: needs strategy='ddp', 'fsdp' or 'zero'"
            )
        self._check_divides("replicas", self.replicas)
        shared = self.sequence_parallel * self.context_parallel
        self._check_divides("sequence_parallel × context_parallel", shared)

    def _check_divides(self, name: str, value: int) -> None:
        if self.world_size % value:
            raise ValueError(
                f"Parallelism.{name}={value}: must divide world_size={self.world_size}"
            )

    @property
    def data_parallel(self) -> int:
        """Devices that see different samples, of those with the same part of the model."""
        return self.world_size // (self.sequence_parallel * self.context_parallel)

    @property
    def devices(self) -> int:
        """All devices."""
        return self.world_size * self.tensor_parallel * self.pipeline_parallel


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
