"""How a live run is spread over devices, read off what wraps its model.

What was asked for can differ from what runs: settings are taken from the wrapper that is there
(DeepSpeed's engine, DDP, FSDP), never from the arguments that led to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from vramscope.profiler.analytic import Parallelism
from vramscope.profiler.analytic.offload import Offload

from .deepspeed import offload_device
from .pipelining import stage_of
from .wrappers import wrapped_by

_FSDP1_SHARDING: Mapping[str, Literal["full", "gradients", "none"]] = {
    "FULL_SHARD": "full",
    "HYBRID_SHARD": "full",
    "SHARD_GRAD_OP": "gradients",
    "_HYBRID_SHARD_ZERO2": "gradients",
    "NO_SHARD": "none",
}
_FSDP1_PREFETCH: Mapping[str | None, Literal["pre", "post", "none"]] = {
    "BACKWARD_PRE": "pre",
    "BACKWARD_POST": "post",
    None: "none",
}


def read_parallelism(models: Sequence[nn.Module], world_size: int, rank: int) -> Parallelism:
    """How parameters, gradients and optimizer state are spread.

    Args:
        models: The models as they are trained.
        world_size: Processes, where the wrapper does not say.
        rank: This process among them.
    """
    engine = wrapped_by(models, "DeepSpeedEngine")
    if engine is not None:
        return _of_engine(engine, world_size, rank)
    if groups := list(fsdp2_groups(models)):
        return _of_fsdp2(groups, rank)
    if (fsdp := wrapped_by(models, "FullyShardedDataParallel")) is not None:
        return _of_fsdp1(fsdp, rank)
    if (ddp := wrapped_by(models, "DistributedDataParallel")) is not None:
        group = getattr(ddp, "process_group", None)
        return Parallelism(
            strategy="ddp",
            world_size=world_size if group is None else group.size(),
            rank=rank if group is None else group.rank(),
            bucket_view=bool(getattr(ddp, "gradient_as_bucket_view", False)),
        )
    return Parallelism()


def read_offload(models: Sequence[nn.Module]) -> Offload:
    """What is kept off the device between its uses."""
    engine = wrapped_by(models, "DeepSpeedEngine")
    if engine is not None:
        return _engine_offload(engine)
    fsdp1 = wrapped_by(models, "FullyShardedDataParallel")
    ones = [one for group in fsdp2_groups(models) for one in group.fsdp_params]
    offloaded = [one for one in ones if getattr(one, "offload_to_cpu", False)]
    if offloaded:
        pinned = any(one.pin_memory for one in offloaded)
        return Offload(optimizer="cpu", parameters="cpu", pinned=pinned)
    if fsdp1 is not None and getattr(fsdp1.cpu_offload, "offload_params", False):
        return Offload(optimizer="cpu", parameters="cpu", pinned=True)
    return Offload()


def compute_dtype(models: Sequence[nn.Module]) -> torch.dtype | None:
    """What FSDP's mixed precision computes in; ``None`` where weights are used as they are."""
    found: Any = None
    for group in fsdp2_groups(models):
        found = found or group.mp_policy.param_dtype
    fsdp1 = wrapped_by(models, "FullyShardedDataParallel")
    if fsdp1 is not None:
        found = found or getattr(fsdp1.mixed_precision, "param_dtype", None)
    return found if isinstance(found, torch.dtype) else None


def shared_matrices(models: Sequence[nn.Module]) -> int:
    """Devices that share each matrix (tensor parallel); 1 where none are shared."""
    engine = wrapped_by(models, "DeepSpeedEngine")
    if engine is not None:
        return int(getattr(engine, "mp_world_size", 1))
    sharded = fsdp2_dimensions(models)
    for parameter in (p for model in models for p in model.parameters()):
        for size, name, placement in mesh_placements(parameter):
            if placement.is_shard() and name not in sharded:
                return size
    return 1


def pipeline_stages(models: Sequence[nn.Module]) -> int:
    """Stages that the model is cut into; 1 without a pipeline."""
    for model in models:
        stage = stage_of(model)
        if stage is not None:
            return int(stage.num_stages)
    return 1


def mesh_placements(parameter: torch.Tensor) -> Iterator[tuple[int, str, Any]]:
    """Of a DTensor: size, name and placement for each dimension of its mesh."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return
    names = _dimension_names(mesh)
    placements: Any = getattr(parameter, "placements", ())
    for dimension, (name, placement) in enumerate(zip(names, placements, strict=True)):
        yield mesh.size(dimension), name, placement


def fsdp2_groups(models: Sequence[nn.Module]) -> Iterator[Any]:
    """The parameter groups of every module that ``fully_shard`` was called on."""
    for module in (m for model in models for m in model.modules()):
        get_state = getattr(module, "_get_fsdp_state", None)
        if get_state is None:
            continue
        state = get_state()
        one = getattr(state, "_fsdp_param_group", None)
        groups = getattr(state, "_fsdp_param_groups", None) or [one]
        yield from (group for group in groups if group is not None)


def fsdp2_dimensions(models: Sequence[nn.Module]) -> set[str]:
    """Names of the mesh dimensions that ``fully_shard`` cuts or copies over."""
    groups = fsdp2_groups(models)
    return {name for group in groups for name in _dimension_names(group.mesh_info.mesh)}


def _dimension_names(mesh: Any) -> tuple[str, ...]:
    return tuple(mesh.mesh_dim_names or (str(i) for i in range(mesh.ndim)))


def _of_engine(engine: Any, world_size: int, rank: int) -> Parallelism:
    zero = getattr(getattr(engine, "_config", None), "zero_config", None)
    group = getattr(engine.optimizer, "dp_process_group", None) if dist.is_initialized() else None
    known: dict[str, Any] = {
        field: int(value)
        for field, name in {
            "persistence_threshold": "param_persistence_threshold",
            "max_live_parameters": "max_live_parameters",
            "max_reuse_distance": "max_reuse_distance",
            "prefetch_bucket_elements": "prefetch_bucket_size",
            "sub_group_elements": "sub_group_size",
            "hpz_partition": "zero_hpz_partition_size",
            "allgather_bucket_elements": "allgather_bucket_size",
        }.items()
        if (value := getattr(zero, name, None)) is not None
    }
    return Parallelism(
        strategy="zero",
        world_size=int(getattr(engine, "dp_world_size", world_size)),
        rank=rank if group is None else dist.get_rank(group),
        sequence_parallel=int(getattr(engine, "sequence_parallel_size", 1)),
        zero_stage=int(engine.zero_optimization_stage()),  # type: ignore[arg-type]
        reduce_bucket_elements=int(engine.zero_reduce_bucket_size()),
        overlap_comm=bool(engine.zero_overlap_comm()),
        contiguous_gradients=bool(getattr(zero, "contiguous_gradients", True)),
        **known,
    )


def _engine_offload(engine: Any) -> Offload:
    zero = getattr(getattr(engine, "_config", None), "zero_config", None)
    optimizer = getattr(zero, "offload_optimizer", None)
    parameters = getattr(zero, "offload_param", None)
    places = {
        "optimizer": offload_device(engine, "optimizer") or "none",
        "parameters": offload_device(engine, "param") or "none",
    }
    if set(places.values()) == {"none"}:
        return Offload()
    given = [config for config in (optimizer, parameters) if config is not None]
    return Offload(
        **places,  # type: ignore[arg-type]
        pinned=any(bool(config.pin_memory) for config in given),
        optimizer_share=float(getattr(optimizer, "ratio", 1.0)),
        buffer_count=int(getattr(parameters or optimizer, "buffer_count", 5)),
        buffer_elements=int(getattr(parameters, "buffer_size", 100_000_000)),
        max_in_cpu_elements=int(getattr(parameters, "max_in_cpu", 1_000_000_000)),
    )


def _of_fsdp2(groups: Sequence[Any], rank: int) -> Parallelism:
    # The root is gathered throughout; what the blocks do decides.
    group = groups[-1]
    info = group.mesh_info
    shards = int(getattr(info, "shard_mesh_size", 1))
    replicas = int(getattr(info, "replicate_mesh_size", None) or 1)
    place = int(getattr(info, "shard_mesh_rank", 0)) if replicas == 1 else rank
    return Parallelism(
        strategy="fsdp",
        world_size=shards * replicas,
        rank=place,
        replicas=replicas,
        fsdp_version=2,
        fsdp_sharding="gradients" if group.post_forward_mesh_info is None else "full",
        fsdp_units="blocks" if len(groups) > 1 else "model",
    )


def _of_fsdp1(fsdp: Any, rank: int) -> Parallelism:
    wrapped = [m for m in fsdp.modules() if isinstance(m, type(fsdp))]
    between = getattr(fsdp, "_inter_node_pg", None)
    hybrid = fsdp.sharding_strategy.name in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
    replicas = int(between.size()) if hybrid and between is not None else 1
    prefetch = getattr(fsdp, "backward_prefetch", None)
    return Parallelism(
        strategy="fsdp",
        world_size=int(fsdp.process_group.size()) * replicas,
        rank=rank if replicas > 1 else int(fsdp.process_group.rank()),
        replicas=replicas,
        fsdp_version=1,
        fsdp_sharding=_FSDP1_SHARDING[fsdp.sharding_strategy.name],
        fsdp_units="blocks" if len(wrapped) > 1 else "model",
        forward_prefetch=bool(getattr(fsdp, "forward_prefetch", False)),
        backward_prefetch=_FSDP1_PREFETCH[getattr(prefetch, "name", None)],
    )
