"""Models of fake tensors: real shapes, types and storages, and no memory behind them.

A model is built and cast on the ``meta`` device, where nothing is computed, and its tensors are
then replaced by fake CPU tensors: a torch without CUDA cannot make fake CUDA tensors that
autograd accepts, and under ``FakeTensorMode`` modules cannot be cast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

_M = TypeVar("_M", bound=nn.Module)


def build_fake(build: Callable[[], _M], mode: FakeTensorMode) -> _M:
    """Builds a model whose tensors are fake.

    Args:
        build: Makes the model, cast and with adapters; called with ``meta`` as the default device.
        mode: The mode that the fake tensors belong to.

    Raises:
        TypeError: ``build`` returned something else than a module.
    """
    with torch.device("meta"):
        model = build()
    if not isinstance(model, nn.Module):
        raise TypeError(f"build_model must return a torch.nn.Module, got {type(model).__name__}")
    make_fake(model, mode)
    return model


def make_fake(model: nn.Module, mode: FakeTensorMode) -> None:
    """Replaces every tensor of a module by a fake one; shared tensors stay shared."""
    memo: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def fake_of(tensor: torch.Tensor) -> torch.Tensor:
        known = memo.get(id(tensor))
        if known is None:
            known = memo[id(tensor)] = (tensor, _fake(tensor, mode))
        return known[1]

    for module in model.modules():
        tensors: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for owned in tensors:
            for name, value in list(owned.items()):
                if isinstance(value, torch.Tensor):
                    owned[name] = fake_of(value)


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    with mode:
        made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.requires_grad)
        else:
            made.requires_grad_(tensor.requires_grad)
    vars(made).update(vars(tensor))
    return made
