"""A model as a list of tensors: enough for parameters, gradients, optimizer state and buffers."""

# ruff: noqa: RUF009 (setting() makes a dataclass field)
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from .dtypes import DTYPE_ALIASES, ITEM_BYTES, TensorDtype
from .mapping import check, setting

LONGEST_PERIOD = 128
"""Most tensors in a repeating layer that :func:`fold` looks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One parameter as it lies on the device."""

    shape: tuple[int, ...] = setting("Logical shape: what a gradient of it would have.", minimum=0)
    dtype: TensorDtype = setting("Element type.", "float32", aliases=DTYPE_ALIASES)
    trainable: bool = setting("Whether it gets a gradient.", True)
    optimizer: int | None = setting(
        "Position in `optimizers` of the parameter group that updates it; null for none.",
        0,
        minimum=0,
    )
    storage_bytes: int | None = setting(
        "Bytes of its storage, where these are not elements × element size: 0 for a view of a "
        "storage counted before, packed codes and their constants for quantised weights.",
        None,
        minimum=0,
    )
    state_bits: Literal[8, 32] | None = setting(
        "Bits of its state in an 8-bit optimizer where these differ from the rule (32 for "
        "embeddings under the Hugging Face Trainer).",
        None,
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Elements × element size: what a gradient or a state of the same kind takes."""
        return self.numel * ITEM_BYTES[self.dtype]

    @property
    def held_bytes(self) -> int:
        """Bytes of the storage that it adds to the device."""
        return self.nbytes if self.storage_bytes is None else self.storage_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorBlock:
    """A sequence of parameters that repeats, as the layers of a network do."""

    tensors: tuple[TensorSpec, ...] = setting("The parameters, in the order of the model.")
    repeat: int = setting("How many times the sequence follows itself.", 1, minimum=1)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInventory:
    """Every parameter of a model in order, and its buffers."""

    blocks: tuple[TensorBlock, ...] = setting("The parameters, repeated layers folded.")
    buffers: tuple[int, ...] = setting(
        "Bytes of each unique storage of a module buffer.", (), minimum=0
    )
    tied_numel: int = setting(
        "Elements that second names of a parameter (a head tied to the embedding) would count "
        "again; they are stored once.",
        0,
        minimum=0,
    )
    buffer_numel: int | None = setting(
        "Elements of all buffers, where they are known.", None, minimum=0
    )

    def __post_init__(self) -> None:
        check(self)

    def counted(self) -> Iterator[tuple[TensorSpec, int]]:
        """Every parameter once for each repeating block, with how often it occurs."""
        for block in self.blocks:
            for tensor in block.tensors:
                yield tensor, block.repeat

    def ordered(self) -> Iterator[TensorSpec]:
        """Every parameter in the order of the model."""
        for block in self.blocks:
            for _ in range(block.repeat):
                yield from block.tensors

    @property
    def numel(self) -> int:
        """Number of parameters; a second parameter over the same storage is not counted."""
        return sum(t.numel * n for t, n in self.counted() if t.storage_bytes != 0)

    @property
    def trainable_numel(self) -> int:
        """Number of parameters that get a gradient."""
        return sum(t.numel * n for t, n in self.counted() if t.trainable)


def fold(tensors: Sequence[TensorSpec]) -> tuple[TensorBlock, ...]:
    """Fold a list of parameters into blocks that repeat; the order stays.

    Greedy: at each place the shortest sequence that follows itself is taken. Twelve equal layers
    of twelve parameters become one block of twelve tensors, repeated twelve times.
    """
    blocks: list[TensorBlock] = []
    single: list[TensorSpec] = []
    place = 0
    while place < len(tensors):
        period, repeat = _repetition(tensors, place)
        if repeat == 1:
            single.append(tensors[place])
            place += 1
            continue
        if single:
            blocks.append(TensorBlock(tensors=tuple(single)))
            single = []
        blocks.append(TensorBlock(tensors=tuple(tensors[place : place + period]), repeat=repeat))
        place += period * repeat
    if single:
        blocks.append(TensorBlock(tensors=tuple(single)))
    return tuple(blocks)


def _repetition(tensors: Sequence[TensorSpec], start: int) -> tuple[int, int]:
    """The period and the count of the longest repetition that begins at ``start``."""
    best = (1, 1)
    for period in range(1, min(LONGEST_PERIOD, (len(tensors) - start) // 2) + 1):
        if tensors[start] != tensors[start + period]:
            continue
        first = tensors[start : start + period]
        repeat = 1
        while tensors[start + repeat * period : start + (repeat + 1) * period] == first:
            repeat += 1
        if repeat > 1 and period * repeat > best[0] * best[1]:
            best = (period, repeat)
    return best


def parameters_of(total: int, *, dtype: str = "float32", count: int = 1) -> TensorInventory:
    """An inventory of equal one-dimensional parameters, where only their number is known."""
    each, rest = divmod(total, count)
    specs: Iterable[TensorSpec] = (
        TensorSpec(shape=(each + (1 if i < rest else 0),), dtype=dtype)  # type: ignore[arg-type]
        for i in range(count)
    )
    return TensorInventory(blocks=fold(list(specs)))
