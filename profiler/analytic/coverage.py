"""What a scenario has and the formulas do not cover: named, and never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramscope.storage.records import MemoryClass

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
PASSES = frozenset({MemoryClass.ACTIVATIONS, MemoryClass.AUTOCAST_CACHE, MemoryClass.TEMPORARIES})
"""What lies otherwise as soon as a device computes something else."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One setting that is not modelled, and the classes that become unknown by it."""

    what: str
    classes: frozenset[MemoryClass] = frozenset()


def gaps(scenario: Scenario) -> list[Gap]:
    """Every setting of the scenario that the formulas do not cover."""
    return [*_parallel(scenario.parallelism), *_zero(scenario.parallelism), *_others(scenario)]


def _parallel(parallelism: Parallelism) -> Iterator[Gap]:
    if parallelism.strategy == "fsdp":
        yield Gap(
            f"parallelism.strategy=fsdp (version {parallelism.fsdp_version}, sharding "
            f"{parallelism.fsdp_sharding}): its units and gathered weights are not modelled",
            STATE,
        )
    degrees = {
        "tensor_parallel": STATE | PASSES,
        "pipeline_parallel": STATE | PASSES,
        "expert_parallel": STATE,
        "sequence_parallel": PASSES,
        "context_parallel": PASSES,
    }
    for name, classes in degrees.items():
        degree = getattr(parallelism, name)
        if degree > 1:
            yield Gap(f"parallelism.{name}={degree}: not modelled", classes)
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
    if offload.optimizer != "none":
        yield Gap(
            f"offload.optimizer={offload.optimizer}: optimizer state off the device, and the "
            "gradients' way to it, are not modelled",
            STATE - {MemoryClass.PARAMETERS},
        )
    if offload.parameters != "none":
        yield Gap(
            f"offload.parameters={offload.parameters}: weights off the device are not modelled",
            frozenset({MemoryClass.PARAMETERS, MemoryClass.COMMUNICATION}),
        )
    if offload.activations:
        yield Gap("offload.activations: not modelled", frozenset({MemoryClass.ACTIVATIONS}))
    if scenario.lora is not None:
        yield Gap(
            f"lora.rank={scenario.lora.rank}: adapters are not modelled",
            STATE | {MemoryClass.ACTIVATIONS},
        )
