"""A scenario and flat settings read off a live model, its optimizers and its first batch.

Nothing is typed by the user and nothing is changed: tensors are looked at, never kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from vramscope.profiler.analytic import (
    BatchShape,
    LossSpec,
    OptimizerSpec,
    Parallelism,
    Scenario,
    TensorInventory,
)
from vramscope.profiler.analytic.dtypes import ITEM_BYTES

from .live_architecture import read_architecture
from .live_inventory import full_device, logical_numel, read_inventory, whole_parameters
from .live_optimizer import group_specs, unwrap_optimizers
from .live_parallelism import (
    compute_dtype,
    pipeline_stages,
    read_offload,
    read_parallelism,
    shared_matrices,
)
from .wrappers import unwrap_model, wrapped_by

SettingValue = str | int | float | bool | None


def batch_shape(args: Sequence[object], kwargs: Mapping[str, object]) -> BatchShape | None:
    """The batch that a forward call sees, from its tensors; ``None`` when it has none.

    Token numbers ``(samples, tokens)`` and embeddings ``(samples, tokens, width)`` give a
    sequence; any other tensor gives samples only. Named inputs of Hugging Face models win.
    """
    named = [kwargs.get(name) for name in ("input_ids", "inputs_embeds", "idx")]
    for value in [*named, *args, *kwargs.values()]:
        if isinstance(value, Mapping):
            if (found := batch_shape((), value)) is not None:
                return found
        elif isinstance(value, torch.Tensor) and not value.is_nested and value.dim() and len(value):
            return _shape_of(value)
    return None


def _shape_of(tensor: torch.Tensor) -> BatchShape:
    tokens = tensor.dim() == 2 and not tensor.is_floating_point()
    embeddings = tensor.dim() == 3 and tensor.is_floating_point()
    sequence = int(tensor.shape[1]) if tokens or embeddings else None
    return BatchShape(micro_batch=int(tensor.shape[0]), sequence=sequence or None)


def read_scenario(
    models: Sequence[nn.Module],
    optimizers: Sequence[object],
    *,
    device: torch.device,
    batch: BatchShape | None = None,
    autocast_dtype: torch.dtype | None = None,
    world_size: int = 1,
    rank: int = 0,
    accumulation: int = 1,
    loss_in_model: bool = True,
) -> Scenario:
    """Read what a prediction depends on off a live run.

    Args:
        models: The models as they are trained (wrapped or not).
        optimizers: Their optimizers (wrapped or not); one seen twice counts once.
        device: The device to predict; what lies elsewhere or on ``meta`` is left out.
        batch: What one forward pass sees, from :func:`batch_shape`.
        autocast_dtype: What autocast computes in, ``None`` without autocast.
        world_size: Data-parallel processes.
        rank: This process among them.
        accumulation: Micro-batches in a step.
        loss_in_model: Whether the model computes its loss itself (labels are passed to it).
    """
    inner = [unwrap_model(m) for m in models]
    found = unwrap_optimizers(optimizers)
    positions, specs = _positions(found)
    engine = wrapped_by(models, "DeepSpeedEngine")
    tensors = read_inventory(models, device, positions, engine)
    parallelism = read_parallelism(models, world_size, rank)
    autocast_dtype = autocast_dtype or compute_dtype(models)
    architecture, reasons = read_architecture(inner, tensors)
    return Scenario(
        architecture=architecture,
        activations_unknown=None if architecture else "; ".join(reasons),
        tensors=tensors,
        autocast=_half_name(autocast_dtype),
        master_weights=_keeps_masters(tensors, parallelism),
        gradient_dtype=_gradient_dtype(engine),
        optimizers=tuple(specs),
        batch=batch,
        accumulation=accumulation,
        checkpointing="full" if _checkpoints(inner) else "none",
        attention=_attention(inner),
        use_cache=_fills_cache(inner),
        dropout_active=any(m.training for m in inner),
        loss=_loss(loss_in_model),
        device="cuda" if device.type == "cuda" else "cpu",
        parallelism=parallelism,
        offload=read_offload(models),
    )


def _loss(in_model: bool) -> LossSpec:
    """A loss of the user's own takes the logits and the labels as they are."""
    return LossSpec() if in_model else LossSpec(upcast_logits=False, shifts_labels=False)


def _positions(
    optimizers: Sequence[torch.optim.Optimizer],
) -> tuple[dict[int, int], list[OptimizerSpec]]:
    """Which parameter group updates which parameter (by identity), and the groups' settings."""
    positions: dict[int, int] = {}
    specs: list[OptimizerSpec] = []
    for optimizer in optimizers:
        for group, spec in group_specs(optimizer):
            for parameter in group["params"]:
                positions.setdefault(id(parameter), len(specs))
            specs.append(spec)
    return positions, specs


def _keeps_masters(tensors: TensorInventory, parallelism: Parallelism) -> bool:
    """DeepSpeed without sharding wraps 16-bit models' optimizers with float32 copies."""
    if parallelism.strategy != "zero" or parallelism.zero_stage:
        return False
    return any(t.trainable and ITEM_BYTES[t.dtype] == 2 for t, _ in tensors.counted())


def _gradient_dtype(engine: Any) -> Any:
    """What DeepSpeed accumulates gradients in, where it is not the model's own type."""
    if engine is None or not hasattr(engine, "get_data_types"):
        return None
    model, accumulated = engine.get_data_types()
    return None if model == accumulated else str(accumulated).removeprefix("torch.")


def _half_name(dtype: torch.dtype | None) -> Any:
    name = str(dtype).removeprefix("torch.")
    return name if ITEM_BYTES.get(name) == 2 and dtype is not None else None


def _checkpoints(models: Sequence[nn.Module]) -> bool:
    """Whether any model computes its blocks again in backward."""
    for model in models:
        # transformers renamed its property; asking the old one in a new version warns.
        names = ("is_activation_checkpointing", "is_gradient_checkpointing")
        name = next((n for n in names if hasattr(type(model), n)), None)
        if name is not None and getattr(model, name) is True:
            return True
        if getattr(getattr(model, "config", None), "gradient_checkpointing", False) is True:
            return True
    return False


def _attention(models: Sequence[nn.Module]) -> Any:
    for model in models:
        name = getattr(getattr(model, "config", None), "_attn_implementation", None)
        if name == "eager":
            return "eager"
        # nanoGPT notes on its attention whether it takes the fused operator.
        if any(getattr(m, "flash", None) is False for m in model.modules()):
            return "eager"
    return "sdpa"


def _fills_cache(models: Sequence[nn.Module]) -> bool:
    """Hugging Face decoders fill a key-value cache in training too, unless told otherwise."""
    configs = [getattr(m, "config", None) for m in models]
    fills = any(
        getattr(c, "use_cache", False) is True and hasattr(c, "model_type") for c in configs
    )
    return fills and not _checkpoints(models)


def read_settings(
    models: Sequence[nn.Module],
    optimizers: Sequence[object],
    *,
    batch: BatchShape | None = None,
    autocast_dtype: torch.dtype | None = None,
    world_size: int = 1,
    accumulation: int = 1,
    device: torch.device | None = None,
) -> dict[str, SettingValue]:
    """Flat settings of a live run, for people: what it was trained with.

    Sizes are counted over all devices unless one is given; unknown values are ``None``.
    """
    inner = [unwrap_model(m) for m in models]
    found = unwrap_optimizers(optimizers)
    parameters = list({id(p): p for m in models for p in whole_parameters(m)}.values())
    if device is not None:
        parameters = [p for p in parameters if p.device == full_device(device)]
    parallelism = read_parallelism(models, world_size, 0)
    offload = read_offload(models)
    group: Mapping[str, Any] = found[0].param_groups[0] if found else {}
    return {
        "model": ", ".join(type(m).__name__ for m in inner) or None,
        "parameters": sum(logical_numel(p) for p in parameters),
        "trainable_parameters": sum(logical_numel(p) for p in parameters if p.requires_grad),
        "dtype": _dtypes(parameters),
        "autocast": _half_name(autocast_dtype),
        "optimizer": ", ".join(type(o).__name__ for o in found) or None,
        "lr": _number(group.get("lr")),
        "weight_decay": _number(group.get("weight_decay")),
        "momentum": _number(group.get("momentum")),
        "micro_batch": batch.micro_batch if batch else None,
        "sequence": batch.sequence if batch else None,
        "accumulation": accumulation,
        "gradient_checkpointing": _checkpoints(inner),
        "attention": _attention(inner) if _has_attention(inner) else None,
        "strategy": parallelism.strategy,
        "zero_stage": parallelism.zero_stage if parallelism.strategy == "zero" else None,
        "world_size": world_size,
        "tensor_parallel": shared_matrices(models),
        "pipeline_parallel": pipeline_stages(models),
        "offload_optimizer": offload.optimizer,
        "offload_parameters": offload.parameters,
    }


def _dtypes(parameters: Sequence[nn.Parameter]) -> str | None:
    """The parameters' types, the most frequent first."""
    counts: dict[str, int] = {}
    for parameter in parameters:
        name = str(parameter.dtype).removeprefix("torch.")
        counts[name] = counts.get(name, 0) + logical_numel(parameter)
    return ", ".join(sorted(counts, key=lambda n: -counts[n])) or None


def _number(value: object) -> float | None:
    if isinstance(value, torch.Tensor):
        # A tensor's value would have to be fetched from its device.
        return float(value) if value.device.type == "cpu" else None
    return float(value) if isinstance(value, int | float) else None


def _has_attention(models: Sequence[nn.Module]) -> bool:
    return any("attention" in type(x).__name__.lower() for m in models for x in m.modules())
