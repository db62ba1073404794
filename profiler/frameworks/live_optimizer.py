"""Optimizers as they are: unwrapped, and each parameter group's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import _default_to_fused_or_foreach
from vramscope.profiler.analytic import OptimizerSpec

from .wrappers import unwrapped

_EIGHT_BIT = {
    "Adam8bit": "adam8bit",
    "AdamW8bit": "adamw8bit",
    "PagedAdam8bit": "adam8bit",
    "PagedAdamW8bit": "adamw8bit",
}
_TORCH = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}


def unwrap_optimizers(optimizers: Sequence[object]) -> list[torch.optim.Optimizer]:
    """The optimizers that hold the state, each once.

    accelerate's and DeepSpeed's wrappers keep theirs in ``optimizer``, ZeroRedundancyOptimizer
    in ``optim``; wrappers nest.
    """
    inner = (unwrapped(optimizer) for optimizer in optimizers)
    found = {id(o): o for o in inner if isinstance(o, torch.optim.Optimizer)}
    return list(found.values())


def group_specs(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[Mapping[str, Any], OptimizerSpec]]:
    """Every parameter group with the settings of its step; groups step one after another."""
    name, paged = _name(optimizer)
    for group in optimizer.param_groups:
        yield (
            group,
            OptimizerSpec(
                name=name,
                class_name=type(optimizer).__name__ if name == "other" else None,
                implementation=_implementation(group, name),
                momentum=_plain(group.get("momentum")) if name == "sgd" else 0.0,
                nesterov=bool(group.get("nesterov")),
                amsgrad=bool(group.get("amsgrad")),
                weight_decay=_plain(group.get("weight_decay")),
                maximize=bool(group.get("maximize")),
                capturable=bool(group.get("capturable")),
                paged=paged,
            ),
        )


def _name(optimizer: torch.optim.Optimizer) -> tuple[Any, bool]:
    """Which optimizer it is, by the nearest known base class; and whether its state is paged."""
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("bitsandbytes.") and base.__name__ in _EIGHT_BIT:
            return _EIGHT_BIT[base.__name__], base.__name__.startswith("Paged")
        if base.__module__.startswith("torch.optim.") and base.__name__ in _TORCH:
            return _TORCH[base.__name__], False
    return "other", False


def _plain(value: object) -> float:
    """A setting as a number; one that lies in a tensor counts as given."""
    if isinstance(value, torch.Tensor):
        return 1.0
    return float(value) if isinstance(value, int | float) else 0.0


def _implementation(group: Mapping[str, Any], name: str) -> Any:
    """How torch will run the step: as told, else its default for these parameters."""
    if name not in ("sgd", "adam", "adamw"):
        return "foreach"
    fused, foreach = group.get("fused"), group.get("foreach")
    if fused is None and foreach is None:
        differentiable = bool(group.get("differentiable"))
        _, foreach = _default_to_fused_or_foreach(group["params"], differentiable, False)
        # torch: no foreach by default with a tensor lr that is not captured.
        if name != "sgd" and isinstance(group.get("lr"), torch.Tensor):
            foreach = foreach and bool(group.get("capturable"))
    if fused:
        return "fused"
    return "foreach" if foreach else "for-loop"
