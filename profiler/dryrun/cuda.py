"""What a GPU keeps or chooses differently from a CPU, put in the CPU's place.

=====================  ==============================================================
dropout                keeps a mask of one byte an element (``native_dropout``)
attention              the fused kernels that torch would choose, by the types and
                       shapes of queries, keys, values and mask
autocast               the lists of operators that CUDA casts; ``autocast("cuda")`` is on
RMS norm               keeps its input and one float32 a row (``_fused_rms_norm``)
optimizers, clipping   step over lists of tensors (``foreach``) unless told otherwise
devices                "cuda" means the fake tensors' device
=====================  ==============================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils

from .attention import scaled_dot_product_attention
from .autocast import autocast_as_on_cuda
from .norms import rms_norm


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Inside, fake CPU tensors are computed with, saved and stepped over as CUDA tensors are."""
    with _foreach_on_cpu(), autocast_as_on_cuda(), CudaFunctions():
        yield


class CudaFunctions(TorchFunctionMode):
    """Calls CUDA's kernels where torch would choose others for a CPU tensor."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs a function of torch's, or what stands for it on a GPU."""
        kwargs = kwargs or {}
        substitute = _SUBSTITUTES.get(func)
        if substitute is not None:
            return substitute(*args, **kwargs)
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if func in _MOVES:
            args = tuple("cpu" if _is_cuda(value) else value for value in args)
        return func(*args, **kwargs)


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def _dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    if not training or p == 0.0:
        return input
    kept: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return input.copy_(kept) if inplace else kept


def _same(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return tensor


_SUBSTITUTES: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.dropout: _dropout,
    torch.nn.functional.rms_norm: rms_norm,
    torch.nn.functional.scaled_dot_product_attention: scaled_dot_product_attention,
    torch.Tensor.cuda: _same,
    torch.Tensor.pin_memory: _same,
}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MOVES = {torch.Tensor.to, torch.Tensor.type}


@contextlib.contextmanager
def _foreach_on_cpu() -> Iterator[None]:
    """Torch steps over lists by default where all tensors are on a GPU."""
    supported = [*_foreach_utils._get_foreach_kernels_supported_devices(), "cpu"]
    name = "_get_foreach_kernels_supported_devices"
    with (
        mock.patch(f"torch.optim.optimizer.{name}", return_value=supported),
        mock.patch("torch.optim.optimizer._foreach_supported_types", [*_PLAIN, FakeTensor]),
        mock.patch.object(_foreach_utils, name, return_value=supported),
    ):
        yield
