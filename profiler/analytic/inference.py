"""Inference: what a prompt's pass and the last generated token hold on one device."""

# ruff: noqa: RUF009 (setting() makes a dataclass field)
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .dtypes import DTYPE_ALIASES, ITEM_BYTES, ceil_div
from .mapping import check, setting

CacheDtype = Literal["float32", "bfloat16", "float16", "float8_e4m3fn", "int8"]
CacheKind = Literal["dynamic", "static", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceSpec:
    """Generation: a prompt of `batch.sequence` tokens, then one token after another."""

    new_tokens: int = setting("Tokens generated after the prompt.", 0, minimum=0)
    beams: int = setting("Beams, or sequences, that each sample is generated in.", 1, minimum=1)
    cache: CacheKind = setting(
        "Key-value cache: grown by a copy at each token (transformers' DynamicCache), allocated "
        "for the longest sequence at once, or none.",
        "dynamic",
    )
    cache_dtype: CacheDtype | None = setting(
        "What keys and values are kept in; null: what they are computed in.",
        None,
        aliases=DTYPE_ALIASES,
    )
    cache_tokens: int | None = setting(
        "Tokens that a static cache is made for; null: prompt and new tokens.", None, minimum=1
    )
    window: int | None = setting(
        "Sliding window, tokens: no more of each sequence is kept.", None, minimum=1
    )
    loading_copies: int = setting(
        "16-bit copies of the largest matrix that loading holds while it quantises them "
        "(Lightning's bitsandbytes plugin: 2).",
        0,
        minimum=0,
    )
    logits: Literal["last", "all"] = setting(
        "Positions of the prompt whose logits are computed.", "last"
    )

    def __post_init__(self) -> None:
        check(self)

    def kept_tokens(self, prompt: int, generated: int) -> int:
        """Tokens of one sequence in the cache after so many generated ones."""
        if self.cache == "none":
            return 0
        if self.cache == "static":
            tokens = self.cache_tokens or prompt + self.new_tokens
        else:
            tokens = prompt + generated
        return min(tokens, self.window) if self.window else tokens


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Keys and values of one token in one layer."""

    key_width: int
    value_width: int
    heads: int
    dtype: str

    def nbytes(self, tokens: int) -> int:
        """Bytes of keys and values of so many tokens in one layer.

        Quantised ones have a float16 scale and zero point for each token and head.
        """
        elements = (self.key_width + self.value_width) * tokens
        constants = 2 * 2 * 2 * self.heads * tokens if self.dtype == "int8" else 0
        return ceil_div(elements * ITEM_BYTES[self.dtype], 1) + constants
