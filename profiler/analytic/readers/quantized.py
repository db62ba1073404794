"""Quantised checkpoints: how many bytes a weight takes under each method."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..dtypes import TensorDtype, ceil_div, quantisation_storages, weight_bytes
from .modules import Weight

HEADS = ("lm_head", "embed_out", "score", "classifier", "qa_outputs", "proj_out", "cls.")
"""Modules that no method quantises unless it is told to."""

BytesOf = Callable[[int, int], int]
"""Bytes of a matrix of so many rows (outputs) and columns (inputs), with all that belongs to it."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What a ``quantization_config`` does to the weights."""

    method: str
    dtype: TensorDtype
    bytes_of: BytesOf
    experts: bool
    """Whether stacked experts are quantised."""
    linears: bool = True
    """Whether linear layers are."""
    kept: tuple[str, ...] = ()
    """Modules that are left as they are; ``re:`` begins a pattern, ``*`` stands for anything."""
    heads: bool = False
    """Whether the head is quantised too."""
    double: bool = False
    """Whether 4-bit scales are quantised too."""

    def storage_bytes(self, name: str, weight: Weight) -> int | None:
        """Bytes of a quantised weight; ``None`` where it stays as it is."""
        wanted = (self.linears and weight.kind == "linear") or (
            self.experts and weight.kind == "experts"
        )
        if not wanted or self._is_kept(name):
            return None
        *stack, rows, columns = weight.shape
        return math.prod(stack) * self.bytes_of(rows, columns)

    def _is_kept(self, name: str) -> bool:
        if not self.heads and name.startswith(HEADS):
            return True
        return any(_matches(name, pattern) for pattern in self.kept)


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    if "*" in pattern:
        return fnmatch.fnmatch(name, f"{pattern}*")
    return pattern in name


def read_quantisation(config: Mapping[str, Any]) -> Quantisation:
    """What a ``quantization_config`` says.

    Raises:
        ValueError: The method is not known here, or one of its values is not understood.
    """
    method = _method(config)
    if method not in _METHODS:
        known = ", ".join(sorted(_METHODS))
        raise ValueError(
            f"quantization_config.quant_method={method!r}: not known here; known are {known}"
        )
    return _METHODS[method](config)


def _method(config: Mapping[str, Any]) -> str:
    said = config.get("quant_method")
    if said:
        return str(said).replace("_", "-").lower()
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "bitsandbytes"
    if "quant_algo" in config or "quantization" in config:
        return "modelopt"
    return "gptq" if "bits" in config else str(said)


def _kept(config: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    for key in keys:
        if config.get(key):
            return tuple(str(name) for name in config[key])
    return ()


def _number(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    for key in keys:
        if config.get(key) is not None:
            value = config[key]
            break
    else:
        value = default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"quantization_config.{keys[0]}={value!r}: must be a whole number")
    return value


def _fp8(config: Mapping[str, Any]) -> Quantisation:
    """Codes of one byte and a float32 scale for each block (DeepSeek, Qwen).

    Source: transformers 5 ``integrations/finegrained_fp8.py`` (``weight_scale_inv``).
    """
    block = config.get("weight_block_size")
    if block and not (isinstance(block, list) and len(block) == 2 and min(block) > 0):
        raise ValueError(f"quantization_config.weight_block_size={block!r}: must be two numbers")

    def bytes_of(rows: int, columns: int) -> int:
        blocks = ceil_div(rows, block[0]) * ceil_div(columns, block[1]) if block else 1
        return rows * columns + 4 * blocks

    kept = _kept(config, "modules_to_not_convert", "ignored_layers")
    return Quantisation("fp8", "float8_e4m3fn", bytes_of, experts=True, kept=kept)


def _bitsandbytes(config: Mapping[str, Any]) -> Quantisation:
    """int8, NF4 or FP4 linear layers; stacked experts are no linear layers and stay as they are."""
    four = bool(config.get("load_in_4bit") or config.get("_load_in_4bit"))
    kind = str(config.get("bnb_4bit_quant_type") or "fp4") if four else "int8"
    if kind not in ("nf4", "fp4", "int8"):
        raise ValueError(
            f"quantization_config.bnb_4bit_quant_type={kind!r}: must be one of nf4, fp4"
        )
    double = bool(config.get("bnb_4bit_use_double_quant"))

    def bytes_of(rows: int, columns: int) -> int:
        constants = quantisation_storages(rows, columns, kind, double_quantization=double)
        return weight_bytes(rows * columns, kind) + sum(constants.values())

    kept = _kept(config, "llm_int8_skip_modules")
    dtype: TensorDtype = "uint8" if four else "int8"
    return Quantisation(kind, dtype, bytes_of, experts=False, kept=kept, double=double)


def _packed(config: Mapping[str, Any], *, index: bool, method: str) -> Quantisation:
    """Codes packed into int32, 16-bit scales and packed zero points for each group.

    Source: the tensors ``qweight``, ``qzeros``, ``scales`` and (GPTQ) ``g_idx`` of AutoGPTQ and
    AutoAWQ checkpoints.
    """
    bits = _number(config, "bits", "w_bit", default=4)
    group = _number(config, "group_size", "q_group_size", default=128)

    def bytes_of(rows: int, columns: int) -> int:
        groups = ceil_div(columns, group) if group > 0 else 1
        codes = 4 * ceil_div(columns * bits, 32) * rows
        zeros = 4 * groups * ceil_div(rows * bits, 32)
        return codes + zeros + 2 * groups * rows + (4 * columns if index else 0)

    kept = _kept(config, "modules_to_not_convert", "modules_in_block_to_not_quantize")
    heads = bool(config.get("lm_head"))
    return Quantisation(method, "uint8", bytes_of, experts=True, kept=kept, heads=heads)


def _gptq(config: Mapping[str, Any]) -> Quantisation:
    return _packed(config, index=True, method="gptq")


def _awq(config: Mapping[str, Any]) -> Quantisation:
    return _packed(config, index=False, method="awq")


def _mxfp4(config: Mapping[str, Any]) -> Quantisation:
    """gpt-oss: experts in four bits, a byte of scale for 32 elements."""

    def bytes_of(rows: int, columns: int) -> int:
        return rows * columns // 2 + rows * columns // 32

    kept = _kept(config, "modules_to_not_convert")
    return Quantisation("mxfp4", "uint8", bytes_of, experts=True, linears=False, kept=kept)


def _fbgemm(config: Mapping[str, Any]) -> Quantisation:
    """Codes of one byte and a float32 scale a row."""
    kept = _kept(config, "modules_to_not_convert")
    return Quantisation(
        "fbgemm-fp8",
        "float8_e4m3fn",
        lambda rows, columns: rows * columns + 4 * rows,
        experts=True,
        kept=kept,
    )


def _compressed(config: Mapping[str, Any]) -> Quantisation:
    """compressed-tensors (llm-compressor): one scheme for all linear layers."""
    groups = config.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = schemes[0].get("weights") if schemes else None
    if not isinstance(weights, Mapping):
        raise ValueError(
            "quantization_config.config_groups: names no scheme for weights; nothing to go by"
        )
    if len({str(s.get("weights")) for s in schemes}) > 1:
        raise ValueError(
            "quantization_config.config_groups: several schemes for weights are not understood yet"
        )
    bits = _number(weights, "num_bits", default=8)
    strategy, group = weights.get("strategy"), weights.get("group_size")

    def scales(rows: int, columns: int) -> int:
        if strategy == "tensor":
            return 1
        return rows * (ceil_div(columns, int(group)) if group and int(group) > 0 else 1)

    def bytes_of(rows: int, columns: int) -> int:
        packed = bits < 8
        codes = 4 * ceil_div(columns * bits, 32) * rows if packed else rows * columns
        return codes + 2 * scales(rows, columns) + (16 if packed else 0)

    floating = weights.get("type") == "float"
    dtype: TensorDtype = "float8_e4m3fn" if floating and bits == 8 else "int8"
    kept = _kept(config, "ignore")
    return Quantisation("compressed-tensors", dtype, bytes_of, experts=True, kept=kept)


def _modelopt(config: Mapping[str, Any]) -> Quantisation:
    """NVIDIA ModelOpt: FP8 with a scale a matrix, NVFP4 with one for 16 elements."""
    inner = config.get("quantization") if "quant_algo" not in config else config
    said = inner if isinstance(inner, Mapping) else {}
    algorithm = str(said.get("quant_algo"))
    kept = _kept(said, "ignore", "exclude_modules")
    if algorithm == "FP8":
        return Quantisation(
            "modelopt FP8", "float8_e4m3fn", lambda r, c: r * c + 8, experts=True, kept=kept
        )
    if algorithm == "NVFP4":
        return Quantisation(
            "modelopt NVFP4",
            "uint8",
            lambda r, c: r * c // 2 + r * ceil_div(c, 16) + 8,
            experts=True,
            kept=kept,
        )
    raise ValueError(
        f"quantization_config.quant_algo={algorithm!r}: not known here; known are FP8, NVFP4"
    )


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], Quantisation]] = {
    "fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
    "gptq": _gptq,
    "awq": _awq,
    "mxfp4": _mxfp4,
    "fbgemm-fp8": _fbgemm,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}
