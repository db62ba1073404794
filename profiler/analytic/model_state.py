"""Parameters, gradients, optimizer state and buffers of one device that keeps them whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from vramscope.storage.records import MemoryClass, Phase

from .dtypes import ITEM_BYTES, ceil_div
from .inventory import TensorInventory, TensorSpec
from .optimizers import (
    BNB_SOURCE,
    EIGHT_BIT,
    QUANTILE_MAPS,
    OptimizerSpec,
    of_group,
    state_storages,
    step_temporaries,
)
from .scenario import Scenario
from .sharding import Parallelism
from .terms import ALWAYS, Allocation, Term, make_term

STORAGE_SOURCE = "torch: bytes of the unique storages, elements × element size"
QUANTISED_SOURCE = "bitsandbytes 0.50 functional.quantize_4bit, nn.Linear8bitLt"


def parameter_terms(inventory: TensorInventory) -> list[Term]:
    """One term for each element type; quantised weights and their constants apart."""
    plain: dict[str, list[tuple[TensorSpec, int]]] = defaultdict(list)
    packed: list[tuple[TensorSpec, int]] = []
    for tensor, count in inventory.counted():
        if tensor.storage_bytes is None:
            plain[tensor.dtype].append((tensor, count))
        elif tensor.storage_bytes:
            packed.append((tensor, count))
    terms = [_weights_term(f"weights, {dtype}", tensors, dtype) for dtype, tensors in plain.items()]
    return terms + (_packed_terms(packed) if packed else [])


def _weights_term(name: str, tensors: Sequence[tuple[TensorSpec, int]], dtype: str) -> Term:
    numel = sum(t.numel * n for t, n in tensors)
    return make_term(
        name,
        MemoryClass.PARAMETERS,
        [Allocation(t.nbytes, n) for t, n in tensors],
        f"{numel:,} × {ITEM_BYTES[dtype]} B",
        STORAGE_SOURCE,
    )


def _codes(tensor: TensorSpec) -> int:
    """Bytes of the packed codes alone: the nominal size of quantised weights."""
    held = tensor.held_bytes
    if held < tensor.nbytes:
        return min(held, ceil_div(tensor.numel, 2))
    return min(held, tensor.nbytes)


def _packed_terms(tensors: Sequence[tuple[TensorSpec, int]]) -> list[Term]:
    numel = sum(t.numel * n for t, n in tensors)
    codes = sum(_codes(t) * n for t, n in tensors)
    constants = sum((t.held_bytes - _codes(t)) * n for t, n in tensors)
    terms = [
        make_term(
            "weights in storages of their own size (quantised codes)",
            MemoryClass.PARAMETERS,
            [Allocation(_codes(t), n) for t, n in tensors],
            f"{numel:,} parameters in {codes:,} B",
            QUANTISED_SOURCE,
        )
    ]
    if constants:
        terms.append(
            make_term(
                "constants of quantisation",
                MemoryClass.PARAMETERS,
                [Allocation(t.held_bytes - _codes(t), n) for t, n in tensors],
                f"{constants:,} B: block scales, code books, offsets of {numel:,} parameters",
                QUANTISED_SOURCE,
            )
        )
    return terms


def buffer_terms(inventory: TensorInventory) -> list[Term]:
    """Module buffers."""
    return [
        make_term(
            "module buffers",
            MemoryClass.BUFFERS,
            [Allocation(b) for b in inventory.buffers],
            f"{len(inventory.buffers)} storages",
            STORAGE_SOURCE,
        )
    ]


def gradient_terms(scenario: Scenario, phases: frozenset[Phase]) -> list[Term]:
    """One term for each gradient type: every trainable parameter has one like itself."""
    by_dtype: dict[str, list[tuple[TensorSpec, int]]] = defaultdict(list)
    for tensor, count in scenario.inventory.counted():
        if tensor.trainable:
            by_dtype[scenario.gradient_dtype or tensor.dtype].append((tensor, count))
    return [
        make_term(
            f"gradients, {dtype}",
            MemoryClass.GRADIENTS,
            [Allocation(t.numel * ITEM_BYTES[dtype], n) for t, n in tensors],
            f"{sum(t.numel * n for t, n in tensors):,} trainable × {ITEM_BYTES[dtype]} B",
            "torch: one .grad for each trainable parameter, of its shape and type",
            phases,
        )
        for dtype, tensors in by_dtype.items()
    ]


@lru_cache(maxsize=4096)
def _master(tensor: TensorSpec) -> TensorSpec:
    """The parameter that the optimizer really steps on, where it keeps float32 copies."""
    return tensor if ITEM_BYTES[tensor.dtype] != 2 else replace(tensor, dtype="float32")


def stepped_tensors(scenario: Scenario) -> list[TensorSpec]:
    """The trainable parameters as the optimizer sees them, in order."""
    tensors = [t for t in scenario.inventory.ordered() if t.trainable]
    return [_master(t) for t in tensors] if scenario.master_weights else tensors


def optimizer_terms(scenario: Scenario, tensors: Sequence[TensorSpec]) -> list[Term]:
    """State by its kind, over all parameter groups; and what lies on the CPU is left out."""
    kinds: dict[tuple[str, str], list[Allocation]] = defaultdict(list)
    maps = 0
    for position, optimizer in enumerate(scenario.optimizers):
        group = list(of_group(tensors, position))
        mine = own_partition(group, scenario.parallelism) if optimizer.partitioned else group
        for tensor in mine:
            for kept in state_storages(tensor, optimizer, device=scenario.device):
                if kept.on_device:
                    kinds[kept.name, kept.source].append(Allocation(kept.nbytes))
        maps += int(_uses_maps(group, optimizer))
    terms = [
        make_term(
            name,
            MemoryClass.OPTIMIZER_STATE,
            storages,
            f"{len(storages)} storages of {sum(a.nbytes for a in storages):,} B in all",
            source,
        )
        for (name, source), storages in kinds.items()
    ]
    if maps:
        terms.append(
            make_term(
                "code books of the 8-bit states",
                MemoryClass.OPTIMIZER_STATE,
                [Allocation(QUANTILE_MAPS // 2, 2)],
                "2 × 256 × 4 B, shared by all states",
                BNB_SOURCE,
            )
        )
    return terms


def own_partition(tensors: Sequence[TensorSpec], parallelism: Parallelism) -> list[TensorSpec]:
    """The parameters whose states this rank keeps: the largest first, to the emptiest rank.

    Source: torch distributed/optim/zero_redundancy_optimizer.py ``_partition_parameters``.
    """
    ranks: list[list[TensorSpec]] = [[] for _ in range(parallelism.world_size)]
    sizes = [0] * parallelism.world_size
    for tensor in sorted(tensors, key=lambda t: -t.numel):
        emptiest = sizes.index(min(sizes))
        ranks[emptiest].append(tensor)
        sizes[emptiest] += tensor.numel
    return ranks[parallelism.rank]


def _uses_maps(group: Iterable[TensorSpec], optimizer: OptimizerSpec) -> bool:
    return optimizer.name in EIGHT_BIT and any(
        state_storages(t, optimizer, device="cuda")[0].name.endswith("8-bit") for t in group
    )


def master_terms(scenario: Scenario) -> list[Term]:
    """Float32 copies of 16-bit parameters, and of their gradients during the step."""
    half = [t for t in scenario.inventory.ordered() if t.trainable and ITEM_BYTES[t.dtype] == 2]
    if not scenario.master_weights or not half:
        return []
    copies = [Allocation(4 * t.numel) for t in half]
    numel = sum(t.numel for t in half)
    source = "DeepSpeed 0.19 runtime/fp16/unfused_optimizer.py; Megatron and Apex O2 do the same"
    return [
        make_term(
            MASTER_WEIGHTS,
            MemoryClass.OPTIMIZER_STATE,
            copies,
            f"{numel:,} × 4 B",
            source,
            ALWAYS,
        ),
        make_term(
            "float32 copies of the gradients",
            MemoryClass.TEMPORARIES,
            copies,
            f"{numel:,} × 4 B",
            source,
            frozenset({Phase.OPTIMIZER}),
        ),
    ]


MASTER_WEIGHTS = "float32 master weights"


def step_terms(scenario: Scenario, tensors: Sequence[TensorSpec]) -> list[Term]:
    """The largest temporary of any parameter group's step; groups step one after another."""
    found = [
        (step_temporaries(list(of_group(tensors, i)), optimizer), optimizer)
        for i, optimizer in enumerate(scenario.optimizers)
    ]
    if not found:
        return []
    largest, optimizer = max(found, key=lambda pair: pair[0].nbytes)
    return [
        make_term(
            f"temporaries of the step, {optimizer.implementation}",
            MemoryClass.TEMPORARIES,
            [Allocation(n) for n in largest.storages or (largest.nbytes,)],
            largest.formula,
            largest.source,
            frozenset({Phase.OPTIMIZER}),
        )
    ]
