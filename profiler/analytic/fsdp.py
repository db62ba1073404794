"""Model state of one rank under torch's FSDP: shards, gathered units, gradients on their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from vramscope.storage.records import MemoryClass, Phase

from .dtypes import ITEM_BYTES, ceil_div
from .inventory import TensorBlock, TensorSpec
from .model_state import optimizer_terms, step_terms
from .scenario import Scenario
from .terms import ALWAYS, Allocation, Term, make_term

FSDP_SOURCE = (
    "torch 2.13 distributed/fsdp/_fully_shard (FSDP2: shards of ⌈rows/N⌉ rows) and "
    "fsdp/_flat_param.py (FSDP1), shards checked on 2 to 4 ranks"
)
PASSES = frozenset({Phase.FORWARD, Phase.BACKWARD})
BACKWARD = frozenset({Phase.BACKWARD})
AFTER_FORWARD = frozenset({Phase.BACKWARD, Phase.OPTIMIZER, Phase.IDLE})


@dataclass(frozen=True, slots=True)
class _Units:
    """Bytes of what is gathered at once: one block, and what no block holds."""

    block: int
    root: int
    blocks: int
    trained: int
    """Trained elements of one block; of all, where nothing repeats."""


def fsdp_terms(scenario: Scenario) -> list[Term]:
    """Terms of parameters, gradients, optimizer state and gathered weights under FSDP.

    The root's weights (embedding, last norm, head) stay gathered through both passes; of the
    blocks two are, the one at work and the next, whose gathered pieces lie beside it once more.
    """
    ranks = shard_ranks(scenario)
    units = _units(scenario)
    blocks = scenario.inventory.blocks
    shards = [Allocation(_shard_bytes(t, ranks), b.repeat) for b in blocks for t in b.tensors]
    trained = stepped_shards(scenario, ranks)
    if scenario.offload.parameters != "none":
        # Shards, their gradients and the optimizer are the host's; what is gathered is not.
        moving = [t for t in _gradients(scenario, trained, units) if t.phases == BACKWARD]
        return [*_gathered(scenario, units), *moving]
    return [
        make_term(
            "shards of the weights",
            MemoryClass.PARAMETERS,
            shards,
            f"Σ ⌈rows/{ranks}⌉ rows of each parameter = {sum(a.total for a in shards):,} B",
            FSDP_SOURCE,
        ),
        *_gathered(scenario, units),
        *_gradients(scenario, trained, units),
        *optimizer_terms(scenario, trained),
        *step_terms(scenario, trained),
    ]


def shard_ranks(scenario: Scenario) -> int:
    """Devices that one copy of the state is spread over."""
    parallelism = scenario.parallelism
    if parallelism.fsdp_sharding == "none":
        return 1
    return max(1, parallelism.world_size // parallelism.replicas)


@lru_cache(maxsize=4096)
def _shard(tensor: TensorSpec, ranks: int) -> TensorSpec:
    if not tensor.shape:
        return tensor
    first, *rest = tensor.shape
    held = tensor.storage_bytes
    return TensorSpec(
        shape=(ceil_div(first, ranks), *rest),
        dtype=tensor.dtype,
        trainable=tensor.trainable,
        optimizer=tensor.optimizer,
        storage_bytes=None if held is None else ceil_div(held, ranks),
    )


def _shard_bytes(tensor: TensorSpec, ranks: int) -> int:
    return _shard(tensor, ranks).held_bytes


def stepped_shards(scenario: Scenario, ranks: int) -> list[TensorSpec]:
    """The trained parameters as this rank's optimizer sees them."""
    return [_shard(t, ranks) for t in scenario.inventory.ordered() if t.trainable]


def _units(scenario: Scenario) -> _Units:
    """By blocks that repeat; where nothing repeats, the whole model is one unit."""
    blocks = scenario.inventory.blocks
    item = compute_bytes(scenario)
    everything = sum(_gathered_bytes(b, item) * b.repeat for b in blocks)
    repeated = [b for b in blocks if b.repeat > 1]
    if not repeated or scenario.parallelism.fsdp_units == "model":
        return _Units(0, everything, 0, scenario.inventory.trainable_numel)
    layers = max(b.repeat for b in repeated)
    unit = [b for b in repeated if b.repeat == layers]
    block = sum(_gathered_bytes(b, item) for b in unit)
    trained = sum(t.numel for b in unit for t in b.tensors if t.trainable)
    return _Units(block, everything - layers * block, layers, trained)


def _gathered_bytes(block: TensorBlock, item: int) -> int:
    """Quantised weights are gathered as they are packed, the others in the computing type."""
    return sum(
        item * t.numel if t.storage_bytes is None else t.storage_bytes for t in block.tensors
    )


def compute_bytes(scenario: Scenario) -> int:
    """Bytes of an element of the gathered weights: mixed precision's type, or the shards' own."""
    if scenario.autocast:
        return 2
    plain = [t.dtype for t, _ in scenario.inventory.counted() if t.storage_bytes is None]
    return min((ITEM_BYTES[d] for d in plain), default=2)


def _gathered(scenario: Scenario, units: _Units) -> list[Term]:
    if scenario.parallelism.fsdp_sharding == "none":
        return []
    kept = scenario.parallelism.fsdp_sharding == "gradients"
    blocks = units.blocks if kept else min(2, units.blocks)
    made = [
        make_term(
            "gathered weights: embedding, last norm, head",
            MemoryClass.COMMUNICATION,
            [Allocation(units.root)],
            f"{units.root:,} B in the computing type",
            FSDP_SOURCE,
            PASSES,
        ),
        make_term(
            "gathered weights of blocks",
            MemoryClass.COMMUNICATION,
            [Allocation(units.block, blocks)],
            f"{blocks} blocks × {units.block:,} B",
            FSDP_SOURCE,
            PASSES,
        ),
    ]
    if scenario.parallelism.fsdp_version == 2:
        made.append(
            make_term(
                "pieces of the next block, as they are gathered",
                MemoryClass.COMMUNICATION,
                [Allocation(units.block)],
                f"{units.block:,} B",
                FSDP_SOURCE,
                PASSES,
            )
        )
    return made


def _gradients(scenario: Scenario, trained: Sequence[TensorSpec], units: _Units) -> list[Term]:
    parallelism = scenario.parallelism
    if units.blocks and units.trained:
        if scenario.accumulation > 1 and parallelism.fsdp_version == 1:
            words = "a flat parameter has one gradient, frozen parts too"
            return [_whole_gradients(units.block, units.blocks, "no_sync", words)]
        if parallelism.pipeline_parallel > 1:
            words = "reduced once all micro-batches are through, in the reducing type"
            item = reduce_bytes(scenario)
            return [_whole_gradients(item * units.trained, units.blocks, "pipeline", words)]
    item, reduced = compute_bytes(scenario), reduce_bytes(scenario)
    return [
        make_term(
            "shards of the gradients",
            MemoryClass.GRADIENTS,
            [Allocation(t.nbytes) for t in trained],
            f"{sum(t.numel for t in trained):,} elements of this rank",
            FSDP_SOURCE,
            ALWAYS if scenario.accumulation > 1 else AFTER_FORWARD,
        ),
        make_term(
            "gradients of one block, and what is reduced of them",
            MemoryClass.COMMUNICATION,
            [Allocation(item * units.trained), Allocation(reduced * units.trained)],
            f"({item} + {reduced}) B × {units.trained:,}",
            FSDP_SOURCE,
            BACKWARD,
        ),
    ]


def reduce_bytes(scenario: Scenario) -> int:
    """Bytes of an element on its way to its shard: float32 under mixed precision."""
    return 4 if scenario.autocast else compute_bytes(scenario)


def _whole_gradients(each: int, blocks: int, why: str, words: str) -> Term:
    return make_term(
        f"gradients of whole units between micro-steps ({why})",
        MemoryClass.GRADIENTS,
        [Allocation(each, blocks)],
        f"{blocks} blocks × {each:,} B: {words}",
        FSDP_SOURCE,
        ALWAYS,
    )
