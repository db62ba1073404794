"""Autocast as CUDA does it, for tensors that say they are on a CPU.

CUDA casts more operators to float32 than the CPU does. The lists are those of torch 2.13,
``ATen/autocast_mode.h``.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

_HALF = (torch.float16, torch.bfloat16)
_KEY = "AutocastCPU"

# AT_FORALL_FP32
_IN_FLOAT32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim
nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss
nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
"""

# AT_FORALL_FP32_SET_OPT_DTYPE: the kernel is told the type of its result.
_WITH_DTYPE = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
"""


@contextlib.contextmanager
def autocast_as_on_cuda() -> Iterator[None]:
    """Inside, ``torch.autocast("cuda")`` casts, and does so by CUDA's lists."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*overrid", category=UserWarning)
        for name in _IN_FLOAT32.split():
            library.impl(name, _cast_to_float32(_operator(name)), _KEY, allow_override=True)
        for name in _WITH_DTYPE.split():
            library.impl(name, _told_float32(_operator(name)), _KEY, allow_override=True)
    try:
        with _autocast_means_cpu():
            yield
    finally:
        library._destroy()


@contextlib.contextmanager
def _autocast_means_cpu() -> Iterator[None]:
    """Autocast of CUDA is that of the CPU, which has become CUDA's."""
    made = torch.amp.autocast_mode.autocast.__init__

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type = "cpu"
            if not args and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.get_autocast_dtype("cuda")
        made(self, device_type, *args, **kwargs)

    with mock.patch.object(torch.amp.autocast_mode.autocast, "__init__", init):
        yield


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _cast_to_float32(operator: Any) -> Callable[..., Any]:
    def cast(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return operator(*_raised(args), **_raised(kwargs))

    return cast


def _told_float32(operator: Any) -> Callable[..., Any]:
    def cast(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        if kwargs.get("dtype") is None and first.dtype in _HALF:
            kwargs["dtype"] = torch.float32
        with _without_autocast():
            return operator(*args, **kwargs)

    return cast


def _without_autocast() -> contextlib.AbstractContextManager[Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    guard: contextlib.AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(keys)
    return guard


def _raised(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _HALF else value
    if isinstance(value, (list, tuple)):
        return type(value)(_raised(item) for item in value)
    if isinstance(value, dict):
        return {name: _raised(item) for name, item in value.items()}
    return value
