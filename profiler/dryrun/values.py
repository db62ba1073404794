"""Control flow without data: what a model may ask of numbers that are not there.

Models look at numbers to decide what to do: whether a mask hides anything, how many tokens are
padding. Integers and booleans that follow from what the loop made itself (token ids, masks,
positions) are small, so they are computed beside the fake tensors. Everything else is answered
as a step that goes well would: a single number is 1, or true.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from ..storages import tensors_in

_DEVICE = torch.ops.prim.device.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_aten = torch.ops.aten
_PRODUCTS = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten._grouped_mm.default,
}
_GROUPED_MM = torch.ops.aten._grouped_mm.default
_MOST_NUMBERS = 1 << 20
_VALUE = "_vramscope_value"


class KnownValues(TorchDispatchMode):
    """Computes small whole numbers beside the fake tensors, and answers ``.item()``.

    Args:
        fakes: The mode below this one.
    """

    def __init__(self, fakes: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fakes = fakes
        self.products: set[bool] = set()
        """Whether matrices were multiplied outside backward (``False``) and inside (``True``)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, so torch's guard, which every operator would pass, is not."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs the operator on fake tensors, and on numbers where they are known."""
        if func is _DEVICE:
            return args[0].fake_device
        kwargs = kwargs or {}
        if func in _PRODUCTS:
            self.products.add(torch._C._current_graph_task_id() != -1)
        if func is _ITEM:
            return _answer(args[0])
        if func is _GROUPED_MM and args[0].dtype is not torch.bfloat16:
            return _like_bfloat16(func, args, kwargs)
        if torch.Tag.dynamic_output_shape in func.tags:
            real = _computed(func, args, kwargs)
            if real is None:
                return func(*args, **kwargs)
            return _each(real, self._counted)
        result = func(*args, **kwargs)
        if isinstance(result, FakeTensor):
            if func._schema.is_mutable:
                self._follow_change(func, args, kwargs)
            elif _is_countable(result, given=args):
                _remember(result, _computed(func, args, kwargs))
        return result

    def _counted(self, real: torch.Tensor) -> torch.Tensor:
        """A fake tensor of a shape that only numbers could tell."""
        fake = self._fakes.from_tensor(real)
        _remember(fake, real)
        return fake

    def _follow_change(self, func: Any, args: Any, kwargs: Any) -> None:
        changed = args[0] if args else None
        if getattr(changed, _VALUE, None) is not None and _computed(func, args, kwargs) is None:
            setattr(changed, _VALUE, None)


def _is_countable(result: FakeTensor, given: tuple[Any, ...]) -> bool:
    if result.numel() > _MOST_NUMBERS:
        return False
    if result.dtype.is_floating_point or result.dtype.is_complex:
        return result.numel() == 1 and not any(True for _ in tensors_in(given))
    return True


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """The operator's result in numbers; ``None`` where an argument is not known."""
    try:
        real_args, real_kwargs = _each(args, _known), _each(kwargs, _known)
    except LookupError:
        return None
    if "device" in real_kwargs:
        real_kwargs["device"] = torch.device("cpu")
    with unset_fake_temporarily():
        return func(*real_args, **real_kwargs)


def _known(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, FakeTensor):
        return tensor
    value: torch.Tensor | None = getattr(tensor, _VALUE, None)
    if value is None:
        raise LookupError
    return value


def _remember(fake: torch.Tensor, real: Any) -> None:
    setattr(fake, _VALUE, real if isinstance(real, torch.Tensor) else None)


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_each(item, change) for item in value)
    if isinstance(value, dict):
        return {name: _each(item, change) for name, item in value.items()}
    return value


def _like_bfloat16(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """Torch's kernel takes other types, but its rule for fake tensors does not."""
    shaped = func(*_each(args, _in_bfloat16), **_each(kwargs, _in_bfloat16))
    return torch.empty_strided(shaped.size(), shaped.stride(), dtype=args[0].dtype)


def _in_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.dtype.is_floating_point else tensor


def _answer(tensor: Any) -> Any:
    """The number in a tensor of one element; 1 or true where it is not known."""
    value = getattr(tensor, _VALUE, None)
    if value is not None:
        with unset_fake_temporarily():
            return value.item()
    if tensor.dtype is torch.bool:
        return True
    return 1.0 if tensor.dtype.is_floating_point else 1
