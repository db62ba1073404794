"""Scaled dot-product attention by the kernel that torch chooses on a GPU.

The order is that of ``sdp_utils.cpp`` (torch 2.13, compute capability 8.0 and newer): flash, then
the memory-efficient kernel, then plain mathematics. cuDNN's kernel, which comes first on some
newer GPUs, keeps as much as flash does. ``torch.nn.attention.sdpa_kernel`` is obeyed.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
_ALIGNED_BYTES = 16


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As ``torch.nn.functional.scaled_dot_product_attention``, for fake tensors.

    Args:
        query: ``(…, heads, queries, width)``.
        key: ``(…, heads or key-value heads, keys, width)``.
        value: Like ``key``.
        attn_mask: Booleans, or what is added to the scores.
        dropout_p: Chance that a score is dropped.
        is_causal: Whether a query sees no key after it.
        scale: Of the scores; ``1/√width`` by default.
        enable_gqa: Whether a key-value head serves several heads.
    """
    aten = torch.ops.aten
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (_cast(t, dtype) for t in (query, key, value))
    if _flash_fits(query, key, value, attn_mask):
        width = query.shape[-1]
        query, key, value = (_padded(t, 8) for t in (query, key, value))
        scale = width**-0.5 if scale is None else scale
        kept: Tensor = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
        return kept[..., :width] if kept.shape[-1] != width else kept
    bias = _as_bias(attn_mask, query)
    if _efficient_fits(query, key, value):
        bias = None if bias is None else _expanded(bias, query, key)
        saved = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        attended: Tensor = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, saved, dropout_p, is_causal, scale=scale
        )[0]
        return attended
    plain: Tensor = aten._scaled_dot_product_attention_math(
        query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return plain


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.dtype.is_floating_point else tensor


def _flash_fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and mask is None
        and query.dtype in _HALF
        and query.dim() == 4
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _LARGEST_HEAD
    )


def _efficient_fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    aligned = _ALIGNED_BYTES // query.element_size()
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and query.dim() == 4
        and query.shape[-3] == key.shape[-3]
        and query.shape[-1] % aligned == 0
        and value.shape[-1] % aligned == 0
    )


def _padded(tensor: Tensor, multiple: int) -> Tensor:
    """Heads whose width is no multiple of eight are padded to one."""
    missing = -tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _as_bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask of booleans becomes one of numbers in the queries' type."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -torch.inf)


def _expanded(bias: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The kernel wants rows that begin at multiples of 16 bytes, and every head's own view."""
    keys = key.shape[-2]
    if keys % _ALIGNED_BYTES:
        bias = _padded(bias, _ALIGNED_BYTES)[..., :keys]
    return bias.expand(*query.shape[:-1], keys)
