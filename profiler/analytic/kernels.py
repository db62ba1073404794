"""One operator benchmarked by itself: what is alive at the peak of its forward and backward.

Counted on the operators' code, tensor by tensor: the input and its kept gradient, what is saved,
the gradients on their way. ``e`` is the bytes of an element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from .overheads import workspace_bytes
from .textbook import Estimate

Implementation = Literal["huggingface", "liger"]
LIGER_SOURCE = "Liger-Kernel benchmark/scripts and src/liger_kernel/ops; torch's own operators"
MULTIPROCESSORS = 108
"""Of an A100: Liger's layer norm sums its weights' gradients once a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a benchmarked operator; those that it has not are 0."""

    rows: int
    width: int
    inner: int = 0
    key_width: int = 0
    item_bytes: int = 2


def _workspaces(count: int, gpu: str | None) -> int:
    return count * workspace_bytes(gpu)


def _cross_entropy(s: Shape, liger: bool) -> tuple[int, str]:
    """Torch: input, log-probabilities, two gradients, ``.grad``. Liger works in its input."""
    logits = s.rows * s.width * s.item_bytes
    whole = 1 if liger else 5
    return whole * logits + 8 * s.rows, f"{whole}·N·V·e + 8·N"


def _linear_cross_entropy(s: Shape, liger: bool) -> tuple[int, str]:
    """Head and loss together: ``3·W + N·(3·V + 2·H)·e``; Liger ``4·W + 7·N·H·e``."""
    weight = s.width * s.inner * s.item_bytes
    if liger:
        return 4 * weight + 7 * s.rows * s.inner * s.item_bytes, "4·W + 7·N·H·e"
    each = (3 * s.width + 2 * s.inner) * s.item_bytes
    return 3 * weight + s.rows * each + 8 * s.rows, "3·W + N·(3·V + 2·H)·e + 8·N"


def _gated_mlp(s: Shape, liger: bool) -> tuple[int, str]:
    """Weights and gradients, ``N·(7·i + 4·h)·e``; Liger ``N·(3·i + 7·h)·e`` and one matrix more."""
    matrix = s.width * s.inner * s.item_bytes
    inner, outer, matrices = (3, 7, 7) if liger else (7, 4, 6)
    each = (inner * s.inner + outer * s.width) * s.item_bytes
    return matrices * matrix + s.rows * each, f"{matrices}·h·i·e + N·({inner}·i + {outer}·h)·e"


def _layer_norm(s: Shape, liger: bool) -> tuple[int, str]:
    """Input, output, their gradients, ``.grad``; two numbers a row, and Liger's partial sums."""
    partial = 2 * MULTIPROCESSORS * s.width * 4 if liger else 0
    return 5 * s.rows * s.width * s.item_bytes + 8 * s.rows + partial, "5·N·h·e + 8·N"


def _rms_norm(s: Shape, liger: bool) -> tuple[int, str]:
    """Written out in float32: 40 B an element of a 16-bit input."""
    if liger:
        raise ValueError("rms_norm: Liger's partial sums are not modelled")
    return 20 * s.rows * s.width * s.item_bytes, "20·N·h·e"


def _rotary(s: Shape, liger: bool) -> tuple[int, str]:
    """Queries, keys, cosines and sines of a head: ``6·q + 4·k + 2·d``, Liger ``2·(q + k + d)``."""
    queries, keys = (2, 2) if liger else (6, 4)
    each = queries * s.width + keys * s.key_width + 2 * s.inner
    return s.rows * each * s.item_bytes, f"N·({queries}·q + {keys}·k + 2·d)·e"


_OPERATORS: Mapping[str, tuple[Callable[[Shape, bool], tuple[int, str]], int]] = {
    "cross_entropy": (_cross_entropy, 0),
    "fused_linear_cross_entropy": (_linear_cross_entropy, 2),
    "geglu": (_gated_mlp, 2),
    "swiglu": (_gated_mlp, 2),
    "layer_norm": (_layer_norm, 0),
    "rms_norm": (_rms_norm, 0),
    "rope": (_rotary, 1),
}
"""Formula, and the cuBLAS workspaces that are there."""


def kernel_peak(
    name: str, implementation: Implementation, shape: Shape, gpu: str | None
) -> Estimate:
    """Peak of an operator's forward and backward.

    Raises:
        ValueError: The operator is not known, or is not modelled in this implementation.
    """
    if name not in _OPERATORS:
        raise ValueError(f"operator {name!r}: known are {', '.join(_OPERATORS)}")
    formula, threads = _OPERATORS[name]
    nbytes, words = formula(shape, implementation == "liger")
    return Estimate(nbytes + _workspaces(threads, gpu), words, LIGER_SOURCE)


def written_out_attention_kept(
    *, samples: int, tokens: int, width: int, squares: int, others: int, gpu: str | None
) -> Estimate:
    """Attention written out in float32, after its forward: ``squares`` matrices of ``s·s``.

    ``others`` are the tensors of ``s·d`` that are alive: queries, keys, values, the output, and
    the gradient that backward will begin with.
    """
    nbytes = 4 * samples * tokens * (squares * tokens + others * width)
    words = f"4 B · {samples}·{tokens}·({squares}·{tokens} + {others}·{width})"
    return Estimate(nbytes + _workspaces(2, gpu), words, "torch, operator by operator")
