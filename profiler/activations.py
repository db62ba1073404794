"""What the autograd graph keeps for backward, found by walking it; nothing is unpacked.

``SavedTensor.data`` (torch 2.7 and newer) gives the saved tensor without running any hook, so a
checkpointed segment is not recomputed and an offloaded tensor is not brought back. Tensors kept
otherwise (attributes of custom functions, inputs of checkpointed segments and their closures)
are read off the objects that keep them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .storages import storages_of, tensors_in

_RAW = "_raw_saved_"

_saved_names: dict[type, tuple[str, ...]] = {}


class Saved:
    """One tensor that a graph node keeps.

    Attributes:
        tensor: The tensor; do not keep it.
        sequence: The node's autograd sequence number, for attribution to a module.
    """

    __slots__ = ("sequence", "tensor")

    def __init__(self, tensor: torch.Tensor, sequence: int) -> None:
        self.tensor = tensor
        self.sequence = sequence


def saved_for_backward(roots: Sequence[Any]) -> Iterator[Saved]:
    """Yields what the graph behind ``roots`` keeps; a tensor may come several times.

    Args:
        roots: Tensors or ``GradientEdge``s, as given to the autograd engine.
    """
    pending = [_node_of(root) for root in roots]
    seen: set[Any] = set()
    frames: set[int] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        sequence = _sequence_of(node)
        for tensor in _tensors_of(node, frames):
            yield Saved(tensor, sequence)
        pending.extend(edge[0] for edge in node.next_functions)


def saved_bytes(roots: Sequence[Any], others: set[int]) -> dict[torch.device, int]:
    """Bytes kept for backward by device, each storage once.

    Args:
        roots: As for :func:`saved_for_backward`.
        others: ``_cdata`` of storages that are something else: parameters, inputs.
    """
    seen = set(others)
    kept: dict[torch.device, int] = {}
    for saved in saved_for_backward(roots):
        for storage in storages_of(saved.tensor):
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                kept[storage.device] = kept.get(storage.device, 0) + storage.nbytes()
    return kept


def _node_of(root: Any) -> Any:
    if isinstance(root, torch.Tensor):
        return root.grad_fn
    return getattr(root, "node", None)


def _sequence_of(node: Any) -> int:
    try:
        return int(node._sequence_nr())
    except (AttributeError, RuntimeError):
        return -1


def _names_of(node: Any) -> tuple[str, ...]:
    kind = type(node)
    names = _saved_names.get(kind)
    if names is None:
        names = tuple(name for name in dir(node) if name.startswith(_RAW))
        _saved_names[kind] = names
    return names


def _tensors_of(node: Any, frames: set[int]) -> Iterator[torch.Tensor]:
    for name in _names_of(node):
        try:
            value = getattr(node, name)
        except RuntimeError:  # already freed by an earlier backward
            continue
        for saved in value if isinstance(value, (list, tuple)) else (value,):
            data = getattr(saved, "data", None)
            if isinstance(data, torch.Tensor):
                yield data
            else:
                yield from _checkpoint_inputs(saved, frames)
    attributes = getattr(node, "__dict__", None)
    if attributes:
        yield from tensors_in(list(attributes.values()))
        for value in attributes.values():
            if callable(value):
                yield from _closure_tensors(value)


def _checkpoint_inputs(saved: Any, frames: set[int]) -> Iterator[torch.Tensor]:
    """Inputs of a non-reentrant checkpointed segment, through its unpack hook's closure."""
    hook = getattr(saved, "unpack_hook", None)
    for value in _closure_values(hook):
        inner = [value, *_closure_values(value)] if callable(value) else [value]
        for frame in inner:
            arguments = getattr(frame, "saved_args", None)
            if arguments is None or id(frame) in frames:
                continue
            frames.add(id(frame))
            for argument in arguments:
                data = getattr(argument, "data", None)
                if isinstance(data, torch.Tensor):
                    yield data
            yield from _closure_tensors(getattr(frame, "recompute_fn", None))


def _closure_values(function: Any) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a cell not yet filled
            continue


def _closure_tensors(function: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    if depth == 0 or function is None:
        return
    for part in (getattr(function, "args", None), getattr(function, "keywords", None)):
        yield from tensors_in(part)  # functools.partial
    for value in _closure_values(function):
        yield from tensors_in(value)
        if callable(value) and not isinstance(value, torch.nn.Module):
            yield from _closure_tensors(value, depth - 1)
