"""A model as a nested mapping of module names, in the order of its ``named_parameters()``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind = Literal["linear", "experts", "other"]
"""What quantisation asks: a linear layer's matrix, stacked matrices of experts, or neither."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter."""

    shape: tuple[int, ...]
    kind: Kind = "other"

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Tied:
    """A second name of a parameter that another module owns."""

    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements, which are not stored again."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A module's buffer."""

    shape: tuple[int, ...]
    item_bytes: int = 4

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


Leaf: TypeAlias = Weight | Tied | Buffer
Tree: TypeAlias = Mapping[str, "Leaf | Tree"]

NOTHING: Tree = {}
"""A module without tensors of its own."""


def named_leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Every tensor with its full name, in torch's order: a module's own first, then its parts'."""
    parts: list[tuple[str, Tree]] = []
    for name, part in tree.items():
        if isinstance(part, Weight | Tied | Buffer):
            yield prefix + name, part
        else:
            parts.append((f"{prefix}{name}.", part))
    for inner, part in parts:
        yield from named_leaves(part, inner)


def numbered(parts: Iterable[Tree]) -> Tree:
    """A list of modules."""
    return {str(i): part for i, part in enumerate(parts)}


def repeat(count: int, part: Tree) -> Tree:
    """Equal modules in a list."""
    return numbered([part] * count)


def tied(tree: Tree) -> Tree:
    """The same names over parameters that another module owns."""
    result: dict[str, Leaf | Tree] = {}
    for name, part in tree.items():
        if isinstance(part, Weight):
            result[name] = Tied(part.shape)
        elif isinstance(part, Tied | Buffer):
            result[name] = part
        else:
            result[name] = tied(part)
    return result


def weight(*shape: int) -> Weight:
    """A parameter that is no linear layer's."""
    return Weight(shape)


def linear(inputs: int, outputs: int, bias: bool = True) -> Tree:
    """A linear layer: ``(outputs, inputs)``, and a bias."""
    matrix = Weight((outputs, inputs), "linear")
    return {"weight": matrix, "bias": weight(outputs)} if bias else {"weight": matrix}


def conv1d(inputs: int, outputs: int) -> Tree:
    """GPT-2's linear layer, whose matrix is kept transposed."""
    return {"weight": Weight((inputs, outputs), "linear"), "bias": weight(outputs)}


def embedding(rows: int, width: int) -> Tree:
    """A table of vectors."""
    return {"weight": weight(rows, width)}


def norm(width: int, bias: bool = False) -> Tree:
    """A norm's scale, and a shift."""
    return {"weight": weight(width), "bias": weight(width)} if bias else {"weight": weight(width)}


def layer_norm(width: int) -> Tree:
    """A layer norm with scale and shift."""
    return norm(width, bias=True)


def convolution(inputs: int, outputs: int, *kernel: int, bias: bool = True) -> Tree:
    """A convolution: ``(outputs, inputs, *kernel)``, and a bias."""
    matrix = weight(outputs, inputs, *kernel)
    return {"weight": matrix, "bias": weight(outputs)} if bias else {"weight": matrix}


def buffer(*shape: int, item_bytes: int = 4) -> Buffer:
    """A buffer, of float32 unless said otherwise."""
    return Buffer(shape, item_bytes)


def position_ids(count: int) -> Buffer:
    """Whole numbers of 64 bits, one a position."""
    return Buffer((1, count), 8)


def rotary(channels: int, kinds: Iterable[str] = ("",)) -> Tree:
    """Rotary frequencies: for each kind two copies of one float32 for two channels.

    Source: transformers 5 ``modeling_rope_utils.py`` (``inv_freq``, ``original_inv_freq``).
    """
    return {
        f"{kind}_{name}" if kind else name: buffer((channels + 1) // 2)
        for kind in kinds
        for name in ("inv_freq", "original_inv_freq")
    }
