"""Which tensors a leak is made of: what outlives a followed step, beside the followed step before.

What leaks in steps that are not followed is not seen here, so a difference is that of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vramscope.storage.records import MemoryClass

from .growth_events import Growth
from .replay import TensorGroup

_NAMED = 2
_LEAST_PART = 0.5
"""Tensors are named if they make up at least this part of the leak's slope."""

_COUNTED = (
    MemoryClass.PARAMETERS,
    MemoryClass.GRADIENTS,
    MemoryClass.OPTIMIZER_STATE,
    MemoryClass.BUFFERS,
)


def grown(before: Sequence[TensorGroup], after: Sequence[TensorGroup]) -> tuple[TensorGroup, ...]:
    """What there is more of than before, the most bytes first.

    Args:
        before: All that was alive at the end of a followed step.
        after: The same of the next followed step.

    Returns:
        Groups with the difference as their count and bytes.
    """
    known = {(g.memory_class, g.shape, g.dtype): g for g in before}
    more = []
    for group in after:
        old = known.get((group.memory_class, group.shape, group.dtype))
        count = group.count - (0 if old is None else old.count)
        size = group.bytes - (0 if old is None else old.bytes)
        if count > 0 and size > 0:
            more.append(replace(group, count=count, bytes=size))
    return tuple(sorted(more, key=lambda g: (-g.bytes, g.memory_class.value, g.shape)))


def with_shapes(growth: Growth, groups: Sequence[TensorGroup]) -> Growth:
    """A leak, naming the tensors that make up most of it; unchanged where none do.

    Args:
        growth: Of any kind; only a leak is named.
        groups: As :func:`grown` gives them.
    """
    if growth.kind != "leak" or not growth.slope_bytes:
        return growth
    if growth.memory_class is None:
        its = [g for g in groups if g.memory_class not in _COUNTED]
    else:
        its = [g for g in groups if g.memory_class is growth.memory_class]
    named = its[:_NAMED]
    if sum(g.bytes for g in named) < _LEAST_PART * growth.slope_bytes:
        return growth
    said = " and ".join(_words(g) for g in named)
    return replace(growth, message=f"{growth.message}; each step leaves {said}")


def _words(group: TensorGroup) -> str:
    shape = "×".join(map(str, group.shape)) or "one number"
    tensors = "1 tensor" if group.count == 1 else f"{group.count:,} tensors"
    return f"{tensors} of {shape} {str(group.dtype).removeprefix('torch.')}"
