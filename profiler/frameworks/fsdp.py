"""FullyShardedDataParallel (FSDP1) and ``fully_shard`` (FSDP2): shards, and what is gathered.

A gathered parameter's storage lives on between uses and is resized to nothing: only storages
that hold bytes count. Both mechanisms are looked at by attribute, as of torch 2.13; an attribute
that another torch lacks holds nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from vramscope.storage.records import MemoryClass

from .state import KeptBytes, KeptTensor, Unclaimed

_PARAMETERS, _GRADIENTS, _COMMUNICATION = (
    MemoryClass.PARAMETERS,
    MemoryClass.GRADIENTS,
    MemoryClass.COMMUNICATION,
)


class FSDP1Reader:
    """One wrapper's flat parameter: the local shard, and what is gathered of it.

    Args:
        module: The wrapper; nested ones have readers of their own.
    """

    def __init__(self, module: FullyShardedDataParallel) -> None:
        self._module = weakref.ref(module)

    @classmethod
    def of(cls, module: torch.nn.Module) -> FSDP1Reader | None:
        """A reader, if the module is such a wrapper."""
        return cls(module) if isinstance(module, FullyShardedDataParallel) else None

    def tensors(self) -> Iterator[KeptTensor]:
        """Shards and their gradients; gathered and 16-bit copies as ``communication``."""
        for flat, host in self._flat():
            yield from _kept([_attribute(flat, "_local_shard")], _PARAMETERS, host)
            gradients = [_attribute(flat, "_saved_grad_shard"), _attribute(flat, "_cpu_grad")]
            yield from _kept(gradients, _GRADIENTS, host)
            names = ("_full_param_padded", "_full_prec_full_param_padded", "_mp_shard")
            yield from _kept((_attribute(flat, name) for name in names), _COMMUNICATION)

    def hidden(self) -> Iterator[KeptBytes]:
        """Nothing is hidden."""
        return iter(())

    def fingerprint(self) -> Hashable:
        """Whether something is gathered, or a gradient is kept, now."""
        found: list[Hashable] = []
        for flat, _ in self._flat():
            found.append(_size(_attribute(flat, "_full_param_padded")))
            found.append(_attribute(flat, "_saved_grad_shard") is None)
        return tuple(found)

    def claim(self, unclaimed: Sequence[Unclaimed]) -> None:
        """Everything is known by attribute."""

    def _flat(self) -> Iterator[tuple[torch.Tensor, torch.device | None]]:
        module = self._module()
        handle = getattr(module, "_handle", None)
        if handle is not None:
            yield handle.flat_param, handle.device if handle._offload_params else None


class FSDP2Reader:
    """One module's group of sharded parameters.

    Args:
        module: A module that ``fully_shard`` was called on.
    """

    def __init__(self, module: FSDPModule) -> None:
        self._module = weakref.ref(module)

    @classmethod
    def of(cls, module: torch.nn.Module) -> FSDP2Reader | None:
        """A reader, if ``fully_shard`` was called on the module."""
        return cls(module) if isinstance(module, FSDPModule) else None

    def tensors(self) -> Iterator[KeptTensor]:
        """Shards and their gradients; gathered parameters and reductions as ``communication``."""
        for group in self._groups():
            for one in group.fsdp_params:
                host = one.device if getattr(one, "offload_to_cpu", False) else None
                sharded = _attribute(one, "sharded_param")
                yield from _kept(
                    [sharded, _attribute(one, "_sharded_post_forward_param")], _PARAMETERS, host
                )
                yield from _kept([_attribute(sharded, "grad")], _GRADIENTS, host)
                whole = _attribute(one, "_unsharded_param")
                gradients = [
                    _attribute(whole, "grad"),
                    _attribute(one, "unsharded_accumulated_grad"),
                ]
                yield from _kept(gradients, _GRADIENTS)
                gathered = [
                    *(_attribute(one, "all_gather_outputs") or ()),
                    *(_attribute(one, "_unsharded_inner_tensors") or ()),
                    whole,
                ]
                yield from _kept(gathered, _COMMUNICATION)
            yield from _kept([_attribute(group, "_partial_reduce_output")], _GRADIENTS)
            yield from _kept(_in_flight(group), _COMMUNICATION)

    def hidden(self) -> Iterator[KeptBytes]:
        """Nothing is hidden."""
        return iter(())

    def fingerprint(self) -> Hashable:
        """Whether the parameters are gathered, and which gradients are kept, now."""
        found: list[Hashable] = []
        for group in self._groups():
            found.append(_attribute(group, "_sharded_state"))
            found.append(_attribute(group, "_partial_reduce_output") is None)
            found.append(
                sum(_attribute(p, "unsharded_accumulated_grad") is None for p in group.fsdp_params)
            )
        return tuple(found)

    def claim(self, unclaimed: Sequence[Unclaimed]) -> None:
        """Everything is known by attribute."""

    def _groups(self) -> Iterator[Any]:
        module: Any = self._module()
        if module is None:
            return
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # before torch 2.12 there was one at most
            groups = [getattr(state, "_fsdp_param_group", None)]
        yield from (group for group in groups if group is not None)


def _in_flight(group: Any) -> Iterator[torch.Tensor]:
    """What collectives of this group hold until they have ended."""
    context = _attribute(group, "comm_ctx")
    results = [_attribute(group, "_all_gather_result")]
    gathering = _attribute(context, "all_gather_state")
    results.append(_attribute(gathering, "all_gather_result"))
    for result in results:
        yield from _tensors([_attribute(result, "all_gather_output")])
    for state in _attribute(context, "reduce_scatter_states") or ():
        yield from _tensors([_attribute(state, "reduce_scatter_input")])
    yield from _tensors([_attribute(_attribute(group, "_all_reduce_state"), "all_reduce_input")])


def _attribute(owner: Any, name: str) -> Any:
    return getattr(owner, name, None)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))


def _kept(
    values: Iterable[Any], memory_class: MemoryClass, host_for: torch.device | None = None
) -> Iterator[KeptTensor]:
    for tensor in _tensors(values):
        yield KeptTensor(tensor, memory_class, host_for=host_for)


def _size(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.untyped_storage().nbytes()
