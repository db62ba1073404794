"""The parameters that low-rank adapters add, and which matrices they stand beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from .adapters import LoraSpec
from .architectures import DecoderArchitecture
from .dtypes import TensorDtype
from .inventory import TensorBlock, TensorInventory, TensorSpec

if TYPE_CHECKING:
    from .scenario import Scenario

PEFT_SOURCE = "PEFT 0.21 tuners/lora/layer.py: A is rank × inputs, B outputs × rank"

ROLES: Mapping[str, tuple[str, ...]] = {
    "query": ("query",),
    "key": ("key",),
    "value": ("value",),
    "output": ("output",),
    "projection": ("output",),
    "q_proj": ("query",),
    "k_proj": ("key",),
    "v_proj": ("value",),
    "o_proj": ("output",),
    "output_proj": ("output",),
    "gate_proj": ("gate",),
    "up_proj": ("up",),
    "down_proj": ("down",),
    "mlp": ("gate", "up", "down"),
    "head": ("head",),
    "lm_head": ("head",),
    "q": ("query",),
    "v": ("value",),
    "c_attn": ("query", "key", "value"),
    "c_proj": ("output", "down"),
    "w1": ("gate",),
    "w2": ("up",),
    "all-linear": ("query", "key", "value", "output", "gate", "up", "down"),
}
"""What the names of layers in common models say about which matrix is meant."""


def roles_of(lora: LoraSpec) -> frozenset[str]:
    """Which matrices have an adapter, by what they make; unknown names have none."""
    return frozenset(role for name in lora.targets for role in ROLES.get(name, ()))


def adapter_dtype(scenario: Scenario) -> str:
    """Type of the adapters: float32 beside 16-bit weights, as PEFT makes them."""
    assert scenario.lora is not None
    return scenario.lora.dtype or "float32"


def _matrices(arch: DecoderArchitecture) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each matrix of a block."""
    inward = (arch.intermediate, arch.hidden)
    found = {
        "query": (arch.query_width, arch.hidden),
        "key": (arch.kv_width, arch.hidden),
        "value": (arch.kv_width, arch.hidden),
        "output": (arch.hidden, arch.query_width),
        "gate": inward,
        "down": (arch.hidden, arch.intermediate),
    }
    if arch.has_gate:
        found["up"] = inward
    return found


def _adapter(lora: LoraSpec, shape: tuple[int, int], dtype: str) -> Iterator[TensorSpec]:
    rows, columns = shape
    yield TensorSpec(shape=(lora.rank, columns), dtype=dtype)  # type: ignore[arg-type]
    yield TensorSpec(shape=(rows, lora.rank), dtype=dtype)  # type: ignore[arg-type]
    if lora.dora:
        yield TensorSpec(shape=(rows,), dtype=dtype)  # type: ignore[arg-type]


def _plain_dtype(inventory: TensorInventory) -> TensorDtype:
    """Type of most of the weights that are not quantised."""
    counts: dict[TensorDtype, int] = {}
    for tensor, n in inventory.counted():
        if tensor.storage_bytes is None:
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel * n
    return max(counts, key=lambda name: counts[name], default="float32")


@lru_cache(maxsize=64)
def with_adapters(
    inventory: TensorInventory, arch: DecoderArchitecture, lora: LoraSpec
) -> TensorInventory:
    """The frozen tensors of a model, and its adapters, the only ones that are trained.

    Modules that are trained whole (``modules_to_save``) are copied in their own type: the
    embedding, the head.
    """
    roles, dtype = roles_of(lora), lora.dtype or "float32"
    shapes = _matrices(arch)
    block = [t for role in shapes if role in roles for t in _adapter(lora, shapes[role], dtype)]
    table = (arch.vocabulary, arch.hidden)
    outside = list(_adapter(lora, table, dtype)) if "head" in roles else []
    outside += [TensorSpec(shape=table, dtype=_plain_dtype(inventory)) for _ in lora.trained_whole]
    base = tuple(
        replace(b, tensors=tuple(replace(t, trainable=False, optimizer=None) for t in b.tensors))
        for b in inventory.blocks
    )
    added = (
        TensorBlock(tensors=tuple(block), repeat=arch.layers),
        TensorBlock(tensors=tuple(outside)),
    )
    return replace(inventory, blocks=(*base, *(b for b in added if b.tensors)))
