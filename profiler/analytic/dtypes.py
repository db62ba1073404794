"""How many bytes an element takes, quantised weights included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

TensorDtype = Literal[
    "float64",
    "float32",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
    "complex64",
    "complex128",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
]
"""What one tensor is stored in, by torch's name."""

WeightDtype = Literal["float32", "bfloat16", "float16", "int8", "nf4", "fp4"]
"""What a model's weights are kept in; ``int8``, ``nf4`` and ``fp4`` quantise the linear layers."""

HalfDtype = Literal["bfloat16", "float16"]
"""The 16-bit types that autocast computes in."""

DTYPE_ALIASES: Mapping[str, str] = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "8bit": "int8",
}
"""Other spellings read from files. TF32 is a way to multiply; its tensors are float32."""

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

QUANTISED: frozenset[str] = frozenset({"int8", "nf4", "fp4"})
BLOCK_4BIT = 64
"""Elements that share one scale in bitsandbytes' 4-bit weights."""
NESTED_BLOCK = 256
"""Scales that share one scale of their own under double quantisation."""


def ceil_div(a: int, b: int) -> int:
    """``⌈a / b⌉`` of whole numbers."""
    return -(-a // b)


def round_up(size: int, multiple: int) -> int:
    """``size`` rounded up to a multiple."""
    return ceil_div(size, multiple) * multiple


def weight_bytes(numel: int, dtype: str) -> int:
    """Nominal bytes of weights: the codes alone, without the constants of quantisation.

    >>> round(weight_bytes(7_000_559_616, "nf4") / 2**30, 2)
    3.26
    """
    if dtype in ("nf4", "fp4"):
        return ceil_div(numel, 2)
    return numel * ITEM_BYTES[dtype]


def quantisation_storages(
    rows: int, columns: int, dtype: str, *, double_quantization: bool
) -> dict[str, int]:
    """Bytes of the constants kept beside one quantised weight matrix, storage by storage.

    Source: bitsandbytes 0.50, ``functional.quantize_4bit`` (block size 64, nested block size 256,
    code books of 16 and 256 float32 that are not shared between layers) and
    ``nn.Linear8bitLt`` (``SCB``: one float32 a row); checked against its tensors byte for byte.
    """
    if dtype == "int8":
        return {"row scales": 4 * rows}
    if dtype not in ("nf4", "fp4"):
        return {}
    blocks = ceil_div(rows * columns, BLOCK_4BIT)
    if not double_quantization:
        return {"block scales": 4 * blocks, "code book": 64}
    return {
        "block scales": blocks,
        "scales of the scales": 4 * ceil_div(blocks, NESTED_BLOCK),
        "code book": 64,
        "nested code book": 1024,
        "offset": 4,
    }
