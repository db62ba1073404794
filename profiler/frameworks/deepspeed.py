"""DeepSpeed: flat weights, shards, partitions of gradients, buckets, and what is offloaded.

Where each of its optimizers keeps what was read off DeepSpeed 0.19. An attribute that another
version lacks holds nothing, so that its bytes stay visible as unattributed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from vramscope.storage.records import MemoryClass

from ..storages import tensors_in
from .state import KeptBytes, KeptTensor, Unclaimed

_OFFLOADED = ("cpu", "nvme")


class _Place(NamedTuple):
    """An attribute of a DeepSpeed optimizer, and what lies there."""

    name: str
    memory_class: MemoryClass
    master: bool = False
    follows: str = ""
    """Lies in the host's memory when ``optimizer`` or ``param`` is offloaded, or always."""


_PLACES = (
    _Place("bit16_groups_flat", MemoryClass.PARAMETERS),
    _Place("bf16_groups_flat", MemoryClass.PARAMETERS),
    _Place("fp16_groups_flat", MemoryClass.PARAMETERS),
    _Place("param_buffer_of_bit16_for_cpu_offload_groups", MemoryClass.PARAMETERS, False, "host"),
    _Place("param_groups_fp16_flat_cpu_memory", MemoryClass.PARAMETERS, False, "host"),
    _Place("lp_param_buffer", MemoryClass.PARAMETERS, False, "param"),
    _Place("single_partition_of_fp32_groups", MemoryClass.OPTIMIZER_STATE, True, "optimizer"),
    _Place("fp32_partitioned_groups_flat", MemoryClass.OPTIMIZER_STATE, True, "optimizer"),
    _Place("fp32_groups_flat_partition", MemoryClass.OPTIMIZER_STATE, True),
    _Place("fp32_groups_flat", MemoryClass.OPTIMIZER_STATE, True),
    _Place("fp32_groups", MemoryClass.OPTIMIZER_STATE, True),
    _Place("grad_partitions_flat_buffer", MemoryClass.GRADIENTS, False, "optimizer"),
    _Place("averaged_gradients", MemoryClass.GRADIENTS, False, "optimizer"),
    _Place("all_grad_tensors", MemoryClass.GRADIENTS),
    _Place("grads_in_partition", MemoryClass.GRADIENTS),
    _Place("fp32_groups_gradients_flat", MemoryClass.GRADIENTS),
    _Place("accumulated_grads_in_cpu", MemoryClass.GRADIENTS, False, "host"),
    _Place("temp_grad_buffer_for_gpu_offload", MemoryClass.COMMUNICATION),
    _Place("temp_grad_buffer_for_cpu_offload", MemoryClass.COMMUNICATION, False, "host"),
    _Place("_muon_allgather_buffers", MemoryClass.COMMUNICATION),
    _Place("inf_or_nan_tracker", MemoryClass.BUFFERS),
)


class DeepSpeedReader:
    """What an engine and its optimizer keep, at every stage.

    On a machine whose accelerator is the CPU, host and device are told apart by the engine's
    configuration alone: what is offloaded there counts as the host's.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: torch.nn.Module) -> None:
        self._engine = weakref.ref(engine)

    @classmethod
    def of(cls, module: torch.nn.Module) -> DeepSpeedReader | None:
        """A reader, if the module is an engine."""
        return cls(module) if is_engine(module) else None

    def tensors(self) -> Iterator[KeptTensor]:
        """Shards, partitions, copies, buckets and gathered parameters, host memory included."""
        engine: Any = self._engine()
        optimizer = getattr(engine, "optimizer", None)
        if optimizer is None:
            return
        hosts = self._hosts(engine)
        yield from _sharded_parameters(engine, hosts["param"])
        for place in _PLACES:
            host = hosts[place.follows]
            for tensor in tensors_in(_list_of(getattr(optimizer, place.name, None))):
                yield KeptTensor(tensor, place.memory_class, place.master, host)
                if place.master and tensor.grad is not None:
                    yield KeptTensor(tensor.grad, MemoryClass.GRADIENTS, False, host)
        yield from _buckets(optimizer)
        yield from _optimizer_state(engine, hosts["optimizer"])
        yield from _swap_buffers(optimizer, hosts["host"])

    def hidden(self) -> Iterator[KeptBytes]:
        """The files that master weights, optimizer state and gradients were swapped out to."""
        engine: Any = self._engine()
        swapper = getattr(getattr(engine, "optimizer", None), "optimizer_swapper", None)
        for info in _swap_infos(swapper):
            for memory_class, paths in (
                (MemoryClass.OPTIMIZER_STATE, info.get_swap_paths()),
                (MemoryClass.GRADIENTS, info.get_swap_gradient_paths()),
            ):
                size = sum(_file_size(path) for path in paths)
                if size:
                    yield KeptBytes(_device(engine), memory_class, size, "nvme")

    def fingerprint(self) -> Hashable:
        """Which gradients, buckets and gathered parameters there are."""
        engine: Any = self._engine()
        optimizer = getattr(engine, "optimizer", None)
        if optimizer is None:
            return None
        averaged = getattr(optimizer, "averaged_gradients", None) or {}
        return (
            sum(value is not None for value in averaged.values()),
            len(getattr(optimizer, "all_grad_tensors", None) or ()),
            len(getattr(optimizer, "accumulated_grads_in_cpu", None) or ()),
            getattr(optimizer, "grads_in_partition", None) is None,
            tuple(len(_list_of(bucket.buffer)) for bucket in _ipg_buckets(optimizer)),
            sum(_is_gathered(parameter) for parameter in engine.module.parameters()),
            len(_swap_infos(getattr(optimizer, "optimizer_swapper", None))),
        )

    def claim(self, unclaimed: Sequence[Unclaimed]) -> None:
        """Everything is known by attribute."""

    def _hosts(self, engine: Any) -> dict[str, torch.device | None]:
        """For each kind of place the device that it lies on the host for, or ``None``."""
        device = _device(engine)
        return {
            "": None,
            "host": device,
            "optimizer": device if offload_device(engine, "optimizer") else None,
            "param": device if offload_device(engine, "param") else None,
        }


def is_engine(module: torch.nn.Module) -> bool:
    """Whether the module is a DeepSpeed engine; DeepSpeed itself is not imported for it."""
    return any(
        kind.__name__ == "DeepSpeedEngine" and kind.__module__.startswith("deepspeed.")
        for kind in type(module).__mro__
    )


def optimizer_of(engine: Any) -> torch.optim.Optimizer | None:
    """The torch optimizer inside an engine; ``None`` for one that only evaluates."""
    inner = getattr(engine, "basic_optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else None


def offload_device(engine: Any, what: str) -> str | None:
    """Where ``optimizer`` or ``param`` is offloaded to: ``cpu``, ``nvme``, or nowhere.

    Below stage 3 DeepSpeed knows no NVMe for optimizer state and keeps it in host memory.
    """
    zero = getattr(getattr(engine, "_config", None), "zero_config", None)
    config = getattr(zero, f"offload_{what}", None)
    device = getattr(config, "device", None)
    name = str(getattr(device, "value", device))
    stage = int(engine.zero_optimization_stage())
    if name not in _OFFLOADED or stage == 0 or (what == "param" and stage < 3):
        return None
    return name if stage == 3 else "cpu"


def _device(engine: Any) -> torch.device:
    return torch.device(engine.device)


def _list_of(value: Any) -> Any:
    return () if value is None else value


def _sharded_parameters(engine: Any, host: torch.device | None) -> Iterator[KeptTensor]:
    """Stage 3: each parameter's shard, and its gathered whole while it is there."""
    for parameter in engine.module.parameters():
        shard = getattr(parameter, "ds_tensor", None)
        if not isinstance(shard, torch.Tensor):
            continue
        yield KeptTensor(shard, MemoryClass.PARAMETERS, host_for=host)
        secondary = getattr(parameter, "ds_secondary_tensor", None)
        if isinstance(secondary, torch.Tensor):
            yield KeptTensor(secondary, MemoryClass.PARAMETERS)
        if _is_gathered(parameter):
            yield KeptTensor(parameter.data, MemoryClass.COMMUNICATION)


def _is_gathered(parameter: Any) -> bool:
    """Whether a sharded parameter is whole now and will not stay so."""
    return (
        not getattr(parameter, "ds_persist", True)
        and getattr(getattr(parameter, "ds_status", None), "name", "") == "AVAILABLE"
    )


def _ipg_buckets(optimizer: Any) -> Iterable[Any]:
    buckets: dict[Any, Any] = getattr(optimizer, "ipg_buckets", None) or {}
    return buckets.values()


def _buckets(optimizer: Any) -> Iterator[KeptTensor]:
    for bucket in _ipg_buckets(optimizer):
        for tensor in tensors_in(_list_of(getattr(bucket, "buffer", None))):
            yield KeptTensor(tensor, MemoryClass.COMMUNICATION)


def _optimizer_state(engine: Any, host: torch.device | None) -> Iterator[KeptTensor]:
    """State in host memory; on the device it is counted as in any optimizer."""
    if host is None:
        return
    inner = getattr(engine, "basic_optimizer", None)
    for tensor in tensors_in(list(getattr(inner, "state", {}).values())):
        yield KeptTensor(tensor, MemoryClass.OPTIMIZER_STATE, host_for=host)


def _swap_infos(swapper: Any) -> Sequence[Any]:
    infos: dict[Any, Any] = getattr(swapper, "swap_params_info", None) or {}
    return list(infos.values())


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # not written yet
        return 0


def _swap_buffers(optimizer: Any, host: torch.device | None) -> Iterator[KeptTensor]:
    """Pinned buffers through which shards pass on their way to the disk and back."""
    swapper = getattr(optimizer, "optimizer_swapper", None)
    buffers = getattr(getattr(swapper, "swap_buffer_manager", None), "all_buffers", None)
    for tensor in tensors_in(_list_of(buffers)):
        yield KeptTensor(tensor, MemoryClass.OPTIMIZER_STATE, host_for=host)
