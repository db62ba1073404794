"""What frameworks wrap around models and optimizers, and how to look through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

_MODELS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "DeepSpeedEngine": "module",
    "PipelineEngine": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
"""Classes that wrap a model, and the attribute that holds it."""
_OPTIMIZERS = ("optimizer", "optim")
"""Where wrappers keep an optimizer: accelerate and DeepSpeed, and ZeroRedundancyOptimizer."""


def unwrap_model(model: nn.Module) -> nn.Module:
    """The user's own module inside DDP, DataParallel, FSDP1, DeepSpeed and ``torch.compile``."""
    while True:
        names = [c.__name__ for c in type(model).__mro__]
        attribute = next((a for n, a in _MODELS.items() if n in names), None)
        inner = getattr(model, attribute, None) if attribute else None
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def wrapped_by(models: Iterable[nn.Module], name: str) -> Any:
    """The first wrapper of a class of this name around any of the models."""
    for model in models:
        found: Any = model
        while isinstance(found, nn.Module):
            names = [c.__name__ for c in type(found).__mro__]
            if name in names:
                return found
            attribute = next((a for n, a in _MODELS.items() if n in names), None)
            found = getattr(found, attribute, None) if attribute else None
    return None


def unwrapped(optimizer: Any) -> Any:
    """The optimizer that holds the state, inside wrappers of any depth; anything else as it is.

    Wrappers are optimizers themselves (accelerate) or only look like one (DeepSpeed).
    """
    seen: set[int] = set()
    current = optimizer
    while id(current) not in seen:
        seen.add(id(current))
        for name in _OPTIMIZERS:
            inner = getattr(current, name, None)
            if hasattr(inner, "param_groups"):
                current = inner
                break
    return current if isinstance(current, Optimizer) else optimizer
