"""Which tensors a leak is made of: what outlives a followed step, beside the followed step before.

What leaks in steps that are not followed is not seen here, so a difference is that of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from vramscope.storage.records import MemoryClass

from .growth_events import Growth
from .replay import DetailLog, TensorGroup, class_of, largest_groups
from .tracker import TrackedStorage

_NAMED = 2
_LEAST_PART = 0.5
"""Tensors are named if they make up at least this part of the leak's slope."""

_COUNTED = (
    MemoryClass.PARAMETERS,
    MemoryClass.GRADIENTS,
    MemoryClass.OPTIMIZER_STATE,
    MemoryClass.BUFFERS,
)

Kind: TypeAlias = tuple[MemoryClass, tuple[int, ...], torch.dtype]
"""What the tensors of one group have in common."""


class Leftover(NamedTuple):
    """Tensors that a step left behind, and the step before did not."""

    group: TensorGroup
    modules: tuple[str, ...] = ()
    """Paths of the modules whose calls made them, as far as they are known."""


def alive_at_end(log: DetailLog, device: torch.device) -> list[TensorGroup]:
    """All that outlives a followed step, grouped."""
    return largest_groups(log, device, len(log.entries), len(log.base) + len(log.entries))


def grown(before: Sequence[TensorGroup], after: Sequence[TensorGroup]) -> tuple[TensorGroup, ...]:
    """What there is more of than before, the most bytes first.

    Args:
        before: All that was alive at the end of a followed step.
        after: The same of the next followed step.

    Returns:
        Groups with the difference as their count and bytes.
    """
    known = {_kind_of(g): g for g in before}
    more = []
    for group in after:
        old = known.get(_kind_of(group))
        count = group.count - (0 if old is None else old.count)
        size = group.bytes - (0 if old is None else old.bytes)
        if count > 0 and size > 0:
            more.append(replace(group, count=count, bytes=size))
    return tuple(sorted(more, key=lambda g: (-g.bytes, g.memory_class.value, g.shape)))


def leftovers(
    groups: Sequence[TensorGroup],
    log: DetailLog,
    device: torch.device,
    module_of: Callable[[int], str],
) -> tuple[Leftover, ...]:
    """Groups as :func:`grown` gives them, with the modules that made their tensors.

    Args:
        groups: By how much the step left more than the one before.
        log: Of the step.
        device: Whose storages to look at.
        module_of: Path of the module that made a graph node, by its sequence number.
    """
    made = _made_by({_kind_of(g) for g in groups}, log, device, module_of)
    return tuple(Leftover(g, tuple(made.get(_kind_of(g), ()))) for g in groups)


def _made_by(
    kinds: Collection[Kind],
    log: DetailLog,
    device: torch.device,
    module_of: Callable[[int], str],
) -> dict[Kind, list[str]]:
    alive: dict[int, TrackedStorage] = {}
    for storage, sign, _ in log.entries:
        if sign < 0:
            alive.pop(storage.serial, None)
        elif storage.device == device and storage.sequence >= 0:
            alive[storage.serial] = storage
    made: dict[Kind, list[str]] = {}
    for storage in alive.values():
        kind = (class_of(storage), storage.shape, storage.dtype)
        path = module_of(storage.sequence) if kind in kinds else ""
        if path and path not in made.setdefault(kind, []):
            made[kind].append(path)
    return made


def with_shapes(growth: Growth, found: Sequence[Leftover]) -> Growth:
    """A leak, naming the tensors that make up most of it; unchanged where none do.

    Args:
        growth: Of any kind; only a leak is named.
        found: As :func:`leftovers` gives it.
    """
    if growth.kind != "leak" or not growth.slope_bytes:
        return growth
    if growth.memory_class is None:
        its = [f for f in found if f.group.memory_class not in _COUNTED]
    else:
        its = [f for f in found if f.group.memory_class is growth.memory_class]
    named = its[:_NAMED]
    if sum(f.group.bytes for f in named) < _LEAST_PART * growth.slope_bytes:
        return growth
    said = " and ".join(_words(f) for f in named)
    return replace(growth, message=f"{growth.message}; each step leaves {said}")


def _kind_of(group: TensorGroup) -> Kind:
    return group.memory_class, group.shape, group.dtype


def _words(found: Leftover) -> str:
    group = found.group
    shape = "×".join(map(str, group.shape)) or "one number"
    tensors = "1 tensor" if group.count == 1 else f"{group.count:,} tensors"
    words = f"{tensors} of {shape} {str(group.dtype).removeprefix('torch.')}"
    if not found.modules:
        return words
    shown = ", ".join(found.modules[:_NAMED])
    others = ", …" if len(found.modules) > _NAMED else ""
    return f"{words} (made in module {shown}{others})"
