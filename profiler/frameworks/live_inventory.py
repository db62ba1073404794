"""The model's parameters and buffers on a device, as they were before anything cut them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from vramscope.profiler.analytic import TensorInventory, TensorSpec, fold

from ..storages import storages_of
from .live_parallelism import fsdp2_dimensions, mesh_placements


def read_inventory(
    models: Sequence[nn.Module],
    device: torch.device,
    positions: Mapping[int, int],
    engine: Any = None,
) -> TensorInventory:
    """Every parameter and buffer on the device, each storage counted once.

    A second parameter over a storage that was counted keeps its gradient and its state, and adds
    no bytes. What DeepSpeed and FSDP cut has its whole shape: the scenario says how it is cut.
    What tensor or pipeline parallelism cuts has this device's own.

    Args:
        models: The models as they are trained.
        device: What lies elsewhere is left out.
        positions: By identity of a parameter, the optimizer's group that updates it.
        engine: DeepSpeed's engine around the model, if there is one.
    """
    seen_parameters: set[int] = set()
    seen_storages: set[int] = set()
    specs: list[TensorSpec] = []
    groups = _zero_groups(engine)
    sharded_over = fsdp2_dimensions(models)
    for parameter in (p for m in models for p in whole_parameters(m)):
        if id(parameter) in seen_parameters or parameter.device != full_device(device):
            continue
        seen_parameters.add(id(parameter))
        position = groups.get(id(parameter), positions.get(id(parameter)))
        if is_flat(parameter):
            specs += _flat_specs(parameter, position, positions)
            continue
        cut = hasattr(parameter, "ds_shape") or (engine is not None and parameter.requires_grad)
        cut = cut or any(name in sharded_over for _, name, _ in mesh_placements(parameter))
        shape = _whole_shape(parameter, sharded_over)
        specs.append(_tensor_spec(parameter, shape, seen_storages, position, cut=cut))
    buffers = [
        storage.nbytes()
        for module in models
        for buffer in module.buffers()
        if buffer.device == full_device(device)
        for storage in storages_of(buffer)
        if _is_new(storage, seen_storages)
    ]
    return TensorInventory(blocks=fold(specs), buffers=tuple(buffers))


def is_flat(parameter: torch.Tensor) -> bool:
    """Whether this is FSDP1's flat parameter, which stands for several."""
    return hasattr(parameter, "_fqns") and hasattr(parameter, "_shapes")


def logical_numel(parameter: torch.Tensor) -> int:
    """Elements before anything packed or cut them."""
    if is_flat(parameter):
        shapes: Any = getattr(parameter, "_shapes", ())
        return sum(int(torch.Size(shape).numel()) for shape in shapes)
    return int(torch.Size(logical_shape(parameter)).numel())


def full_device(device: torch.device) -> torch.device:
    """The device with its index, as tensors carry it."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def logical_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """The shape before quantisation packed it or ZeRO-3 cut it; a DTensor's is its whole."""
    quantised = getattr(parameter, "quant_state", None)
    shape: Any = getattr(quantised, "shape", None)
    if shape is None:
        shape = getattr(parameter, "ds_shape", parameter.shape)
    return tuple(int(n) for n in shape)


def _is_new(storage: torch.UntypedStorage, seen: set[int]) -> bool:
    if storage._cdata in seen:
        return False
    seen.add(storage._cdata)
    return True


def _tensor_spec(
    parameter: nn.Parameter,
    shape: tuple[int, ...],
    seen: set[int],
    position: int | None,
    *,
    cut: bool,
) -> TensorSpec:
    held = sum(s.nbytes() for s in storages_of(parameter) if _is_new(s, seen))
    spec = _spec(shape, parameter, position)
    if cut or held == spec.nbytes:
        return spec
    return TensorSpec(
        shape=spec.shape,
        dtype=spec.dtype,
        trainable=spec.trainable,
        optimizer=spec.optimizer,
        storage_bytes=held,
    )


def _spec(shape: tuple[int, ...], parameter: torch.Tensor, position: int | None) -> TensorSpec:
    return TensorSpec(
        shape=shape,
        dtype=str(parameter.dtype).removeprefix("torch."),  # type: ignore[arg-type]
        trainable=parameter.requires_grad,
        optimizer=position if parameter.requires_grad else None,
    )


def _whole_shape(parameter: nn.Parameter, sharded_over: set[str]) -> tuple[int, ...]:
    """The shape with all of FSDP's shards, and this device's part of what others cut."""
    shape = list(logical_shape(parameter))
    for size, name, placement in mesh_placements(parameter):
        if placement.is_shard() and name not in sharded_over:
            shape[placement.dim] = -(-shape[placement.dim] // size)
    return tuple(shape)


def whole_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters; of FSDP1's wrappers the flat ones, which hold their originals' shapes."""
    flat = [
        handle.flat_param
        for module in model.modules()
        if (handle := getattr(module, "_handle", None)) is not None
        and hasattr(handle, "flat_param")
    ]
    inside = {id(p) for one in flat for p in getattr(one, "_params", None) or ()}
    yield from flat
    yield from (p for p in model.parameters() if id(p) not in inside)


def _flat_specs(
    flat: Any, position: int | None, positions: Mapping[int, int]
) -> Iterator[TensorSpec]:
    """What lies one after the other in a flat parameter, in the shapes it had."""
    originals = getattr(flat, "_params", None) or [flat] * len(flat._shapes)
    for shape, original in zip(flat._shapes, originals, strict=True):
        yield _spec(tuple(shape), original, positions.get(id(original), position))


def _zero_groups(engine: Any) -> dict[int, int]:
    """Under DeepSpeed the optimizer sees flat copies: its own lists say who is in which group."""
    optimizer = getattr(engine, "optimizer", None)
    for name in ("bit16_groups", "fp16_groups", "bf16_groups"):
        groups = getattr(optimizer, name, None)
        if groups:
            # Stage 3 cuts parameter groups into sub-groups.
            whole = getattr(optimizer, "sub_group_to_group_id", None) or {}
            return {id(p): whole.get(i, i) for i, group in enumerate(groups) for p in group}
    return {}
