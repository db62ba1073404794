"""What a scenario has and the formulas do not cover: named, and never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramscope.storage.records import MemoryClass

from .adapter_state import ROLES
from .scenario import Scenario
from .sharding import Parallelism

STATE = frozenset(
    {
        MemoryClass.PARAMETERS,
        MemoryClass.GRADIENTS,
        MemoryClass.OPTIMIZER_STATE,
        MemoryClass.COMMUNICATION,
        MemoryClass.TEMPORARIES,
    }
)
"""What lies otherwise as soon as the model's state is spread in a way that is not modelled."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One setting that is not modelled, and the classes that become unknown by it."""

    what: str
    classes: frozenset[MemoryClass] = frozenset()


def gaps(scenario: Scenario) -> list[Gap]:
    """Every setting of the scenario that the formulas do not cover."""
    return [*_parallel(scenario.parallelism), *_zero(scenario.parallelism), *_others(scenario)]


def _parallel(parallelism: Parallelism) -> Iterator[Gap]:
    if parallelism.expert_parallel > 1:
        yield Gap(f"parallelism.expert_parallel={parallelism.expert_parallel}: not modelled", STATE)
    if parallelism.pipeline_parallel > 1:
        yield Gap(
            "parallelism.pipeline_parallel: the first stage is taken, as many micro-batches in "
            "flight as stages (1F1B)"
        )
    if parallelism.megatron_sequence_parallel and parallelism.tensor_parallel == 1:
        yield Gap("parallelism.megatron_sequence_parallel: nothing without tensor parallelism")
    if parallelism.replicas > 1 and parallelism.strategy == "zero":
        yield Gap(f"parallelism.replicas={parallelism.replicas} (MiCS): not modelled", STATE)


def _zero(parallelism: Parallelism) -> Iterator[Gap]:
    if parallelism.strategy != "zero" or not parallelism.zero_stage:
        return
    if parallelism.hpz_partition > 1:
        yield Gap(
            f"parallelism.hpz_partition={parallelism.hpz_partition}: the second copy of the "
            "weights is not modelled",
            frozenset({MemoryClass.PARAMETERS}),
        )
    if not parallelism.contiguous_gradients and parallelism.zero_stage < 3:
        yield Gap(
            "parallelism.contiguous_gradients=false: gradients are reduced where they lie; "
            "the bucket is counted all the same"
        )
    default = Parallelism()
    for name in ("allgather_bucket_elements", "prefetch_bucket_elements", "sub_group_elements"):
        value = getattr(parallelism, name)
        if value != getattr(default, name):
            yield Gap(f"parallelism.{name}={value:,}: has no term of its own")


def _others(scenario: Scenario) -> Iterator[Gap]:
    offload = scenario.offload
    sharded = scenario.parallelism.strategy in ("fsdp", "zero")
    if offload.optimizer != "none" or (offload.parameters != "none" and sharded):
        yield Gap("offload: what the host holds, pinned or not, is not predicted")
    if offload.optimizer != "none" and offload.optimizer_share < 1:
        yield Gap(
            f"offload.optimizer_share={offload.optimizer_share:g}: not modelled",
            frozenset({MemoryClass.OPTIMIZER_STATE}),
        )
    if offload.parameters != "none" and not sharded:
        yield Gap(
            f"offload.parameters={offload.parameters}: weights off the device are modelled for "
            "FSDP and ZeRO only",
            frozenset({MemoryClass.PARAMETERS, MemoryClass.COMMUNICATION}),
        )
    if offload.activations:
        yield Gap("offload.activations: not modelled", frozenset({MemoryClass.ACTIVATIONS}))
    if scenario.lora is not None and scenario.architecture is None:
        yield Gap(
            f"lora.rank={scenario.lora.rank}: which matrices have adapters is not known without "
            "an architecture",
            STATE | {MemoryClass.ACTIVATIONS},
        )
    if scenario.lora is not None and (unknown := set(scenario.lora.targets) - set(ROLES)):
        yield Gap(
            f"lora.targets={', '.join(sorted(unknown))}: not names of matrices that are known",
            STATE | {MemoryClass.ACTIVATIONS},
        )
