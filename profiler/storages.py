"""From a tensor to the storages that really hold bytes.

Bytes are those of unique untyped storages on a device: a tied, sliced, viewed or expanded
tensor counts once. Wrapper subclasses (DTensor, torchao, bitsandbytes) are opened; sparse
tensors are counted by their indices and values; meta and fake tensors hold nothing, except in a
dry run, where fake ones stand for real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}

_fakes_count: ContextVar[bool] = ContextVar("fakes_count", default=False)


@contextmanager
def fakes_counted() -> Iterator[None]:
    """Inside, fake tensors hold the bytes that they stand for: this is a dry run.

    Their storages say that they are on the ``meta`` device.
    """
    token = _fakes_count.set(True)
    try:
        yield
    finally:
        _fakes_count.reset(token)


def is_traced(tensor: Any) -> bool:
    """Whether this is a fake tensor of a compiler's trace."""
    return isinstance(tensor, torch._subclasses.FakeTensor) and not _fakes_count.get()


def storages_of(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """Yields every storage that holds bytes of this tensor.

    Args:
        tensor: Any tensor; a fake (see :func:`fakes_counted`), functional or meta tensor yields
            nothing.
    """
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        yield from _plain_storages(tensor)
    elif isinstance(tensor, torch._subclasses.FakeTensor):
        if _fakes_count.get():
            yield tensor.untyped_storage()
    elif is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            inner = getattr(tensor, name, None)
            if isinstance(inner, torch.Tensor):
                yield from storages_of(inner)
    else:
        yield from _plain_storages(tensor)
        yield from _quantization_storages(tensor)


def _plain_storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    if tensor.layout is torch.strided:
        if tensor.device.type == "meta":
            return
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # what torch.func wraps has no storage itself
            if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                yield from storages_of(torch._C._functorch.get_unwrapped(tensor))
            return
        yield storage
        return
    for part in _SPARSE_PARTS.get(tensor.layout, ()):
        yield from storages_of(getattr(tensor.detach(), part)())


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Its shape; of a nested tensor without one, the number of elements."""
    try:
        return tuple(tensor.shape)
    except RuntimeError:
        return (tensor.numel(),)


def _quantization_storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """Bitsandbytes keeps scales beside the weight: ``quant_state`` (4-bit), ``SCB`` (8-bit)."""
    state = getattr(tensor, "quant_state", None)
    while state is not None:
        for name in ("absmax", "code", "offset"):
            yield from _tensors_in(getattr(state, name, None))
        state = getattr(state, "state2", None)
    for name in ("SCB", "CB"):
        yield from _tensors_in(getattr(tensor, name, None))


def _tensors_in(value: Any) -> Iterator[torch.UntypedStorage]:
    if isinstance(value, torch.Tensor):
        yield from storages_of(value)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested lists, tuples, sets and dictionaries, at any depth."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from tensors_in(item)
