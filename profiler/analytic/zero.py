"""Model state of one rank under DeepSpeed's ZeRO, term by term."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vramscope.storage.records import MemoryClass, Phase

from .dtypes import ITEM_BYTES
from .inventory import TensorSpec
from .model_state import MASTER_WEIGHTS
from .optimizers import EIGHT_BIT, QUANTILE_MAPS, OptimizerSpec, eight_bit_storages
from .scenario import Scenario
from .sharding import (
    ZERO_SOURCE,
    Partition,
    intersecting_numel,
    partition,
    persistent_numel,
    sharded_numel,
)
from .terms import ALWAYS, Allocation, Term, make_term

BACKWARD = frozenset({Phase.BACKWARD})
STEP = frozenset({Phase.OPTIMIZER})
UNTIL_STEP = frozenset({Phase.BACKWARD})
"""The step frees the reduced gradients before its own peak."""


def zero_terms(scenario: Scenario) -> list[Term]:
    """Terms of parameters, gradients, optimizer state and buckets under ZeRO 1, 2 or 3.

    Frozen parameters stay outside the flat groups in stages 1 and 2.
    """
    tensors = list(scenario.inventory.ordered())
    trainable = [t for t in tensors if t.trainable]
    item = ITEM_BYTES[trainable[0].dtype] if trainable else 4
    if scenario.parallelism.zero_stage == 3:
        return _stage_3(scenario, tensors, trainable, item)
    return _stages_1_2(scenario, tensors, trainable, item)


def _groups(scenario: Scenario, trainable: Sequence[TensorSpec]) -> list[list[TensorSpec]]:
    positions = range(len(scenario.optimizers))
    groups = [[t for t in trainable if t.optimizer == i] for i in positions]
    return [g for g in groups if g]


def _term(
    name: str,
    memory_class: MemoryClass,
    nbytes: int,
    formula: str,
    phases: frozenset[Phase] = ALWAYS,
) -> Term:
    return make_term(name, memory_class, [Allocation(nbytes)], formula, ZERO_SOURCE, phases)


def _moments(optimizer: OptimizerSpec) -> int:
    """How many float32 tensors the optimizer keeps for a shard."""
    if optimizer.name == "sgd":
        return 1 if optimizer.momentum else 0
    return 3 if optimizer.amsgrad else 2


def _state(optimizer: OptimizerSpec, shard: int) -> Term:
    """What the optimizer keeps for a flat shard."""
    memory_class = MemoryClass.OPTIMIZER_STATE
    if optimizer.name in EIGHT_BIT:
        kept = eight_bit_storages(TensorSpec(shape=(shard,)), paged=False)
        nbytes = sum(s.nbytes for s in kept) + QUANTILE_MAPS
        return _term("optimizer state, 8-bit", memory_class, nbytes, f"2 × ({shard:,} + scales)")
    moments = _moments(optimizer)
    formula = f"{moments} × 4 B × {shard:,}"
    return _term("optimizer state", memory_class, 4 * moments * shard, formula)


def _stepping(scenario: Scenario, shard: int) -> list[Term]:
    """What every stage keeps in float32 for a shard of ``shard`` elements."""
    optimizer = scenario.optimizers[0]
    held = {"foreach": 1, "for-loop": 2, "fused": 0}[optimizer.implementation]
    held = held if optimizer.is_adam else 0
    state, temporary = MemoryClass.OPTIMIZER_STATE, MemoryClass.TEMPORARIES
    return [
        _term(MASTER_WEIGHTS, state, 4 * shard, f"4 B × {shard:,} (also when the model is fp32)"),
        _state(optimizer, shard),
        _term("float32 gradients of the step", temporary, 4 * shard, f"4 B × {shard:,}", STEP),
        _term(
            f"temporaries of the step, {optimizer.implementation}",
            temporary,
            4 * held * shard,
            f"{held} × 4 B × {shard:,}",
            STEP,
        ),
    ]


def _bucket(scenario: Scenario, item: int, phases: frozenset[Phase]) -> Term:
    parallelism = scenario.parallelism
    elements = parallelism.reduce_bucket_elements
    buckets = 2 if parallelism.overlap_comm else 1
    return _term(
        "reduce buckets",
        MemoryClass.COMMUNICATION,
        buckets * item * elements,
        f"{buckets} × {item} B × {elements:,} elements (reduce_bucket_size)",
        phases,
    )


def _stages_1_2(
    scenario: Scenario, tensors: Sequence[TensorSpec], trainable: Sequence[TensorSpec], item: int
) -> list[Term]:
    parallelism = scenario.parallelism
    groups = _groups(scenario, trainable)
    parts = [partition(sum(t.numel for t in g), parallelism) for g in groups]
    frozen = sum(t.held_bytes for t in tensors if not t.trainable)
    padded = sum(p.padded for p in parts)
    shard = sum(p.shard for p in parts)
    world = parallelism.world_size
    if scenario.offload.optimizer != "none":
        kept = [_staging(trainable, item), _bucket(scenario, item, BACKWARD)]
    else:
        kept = [
            *_stepping(scenario, shard),
            *_reduced_gradients(scenario, groups, parts, item),
            _bucket(scenario, item, _bucket_phases(scenario)),
        ]
    return [
        _term(
            "flat 16-bit weights" if item == 2 else "flat weights",
            MemoryClass.PARAMETERS,
            item * padded,
            f"{item} B × {padded:,} (padded to 2 × {world})",
        ),
        _term("frozen weights", MemoryClass.PARAMETERS, frozen, f"{frozen:,} B"),
        *kept,
    ]


def _staging(tensors: Sequence[TensorSpec], item: int) -> Term:
    """Optimizer on the host: its masters, states and float32 gradients are there too."""
    largest = max((t.numel for t in tensors), default=0)
    return _term(
        "gradients on their way to the host",
        MemoryClass.COMMUNICATION,
        2 * item * largest,
        f"2 × {item} B × {largest:,} (temp_grad_buffer_for_{{cpu,gpu}}_offload)",
    )


def _bucket_phases(scenario: Scenario) -> frozenset[Phase]:
    """Stage 1 keeps its bucket between micro-steps; otherwise it lives in backward."""
    if scenario.parallelism.zero_stage == 1 and scenario.accumulation > 1:
        return frozenset({Phase.FORWARD, Phase.BACKWARD})
    return BACKWARD


def _reduced_gradients(
    scenario: Scenario,
    groups: Sequence[Sequence[TensorSpec]],
    parts: Sequence[Partition],
    item: int,
) -> list[Term]:
    gradients = MemoryClass.GRADIENTS
    whole = sum(t.numel for g in groups for t in g)
    if scenario.parallelism.zero_stage == 1 and scenario.accumulation > 1:
        between = frozenset({Phase.FORWARD, Phase.BACKWARD})
        return [
            _term("gradients, whole", gradients, item * whole, f"{item} B × {whole:,}", between)
        ]
    kept = sum(intersecting_numel(g, p) for g, p in zip(groups, parts, strict=True))
    phases = UNTIL_STEP | ({Phase.FORWARD} if scenario.accumulation > 1 else set())
    formula = f"{item} B × {kept:,} (every parameter that meets this rank's slice, whole)"
    return [_term("reduced gradients", gradients, item * kept, formula, frozenset(phases))]


def _stage_3(
    scenario: Scenario, tensors: Sequence[TensorSpec], trainable: Sequence[TensorSpec], item: int
) -> list[Term]:
    parallelism = scenario.parallelism
    world = parallelism.world_size
    shard_of: Callable[[Sequence[TensorSpec]], int] = lambda ts: sharded_numel(ts, world)  # noqa: E731
    everything, stepped = shard_of(tensors), shard_of(trainable)
    whole = persistent_numel(tensors, parallelism)
    away = scenario.offload
    on_device = [] if away.optimizer != "none" else _stage_3_state(scenario, stepped, item)
    held = 0 if away.parameters != "none" else everything
    gathered = min(sum(t.numel for t in tensors) - whole, parallelism.max_live_parameters)
    return [
        _term(
            "shards of the weights",
            MemoryClass.PARAMETERS,
            item * held,
            f"{item} B × Σ⌈n/{world}⌉ = {item} B × {held:,}",
        ),
        _term(
            "small weights kept whole",
            MemoryClass.PARAMETERS,
            item * whole,
            f"{item} B × {whole:,} (at most {parallelism.persistence_threshold:,} elements each)",
        ),
        *on_device,
        _bucket(scenario, item, ALWAYS),
        _term(
            "gathered weights",
            MemoryClass.COMMUNICATION,
            item * gathered,
            f"{item} B × {gathered:,} (at most max_live_parameters)",
            frozenset({Phase.FORWARD, Phase.BACKWARD}),
        ),
    ]


def _stage_3_state(scenario: Scenario, stepped: int, item: int) -> list[Term]:
    """Master weights, states and gradients where the optimizer is on the device."""
    return [
        *_stepping(scenario, stepped),
        _term(
            "shards of the gradients",
            MemoryClass.GRADIENTS,
            item * stepped,
            f"{item} B × {stepped:,}, permanent",
        ),
    ]
