"""What would make a scenario smaller: one change at a time, each predicted, each with its price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

from .adapters import LoraSpec
from .dtypes import QUANTISED
from .estimate import Prediction, predict
from .scenario import BatchShape, Scenario

_FREE = "none"
_SHARDS = "none to speak of"
_MICRO_STEPS = "more micro-steps for the same batch"
_FEWER = "fewer samples at once"
_GATHERED = "parameters are gathered for every pass"
_PARTLY = "a part of each block's forward is computed twice"
_TWICE = "each block's forward is computed twice"
_ON_CPU = "the optimizer steps on the CPU"
_PRODUCTS = "precision of the products: 16 bits"
_MOMENTS = "precision of the moments"
_WEIGHTS = "precision of the weights"
_ADAPTERS = "only adapters are trained"
PRICES = (
    _FREE,
    _SHARDS,
    _MICRO_STEPS,
    _FEWER,
    _GATHERED,
    _PARTLY,
    _TWICE,
    _ON_CPU,
    _PRODUCTS,
    _MOMENTS,
    _WEIGHTS,
    _ADAPTERS,
)
"""What changes cost, in words, the cheapest first."""

_ADAPTER_RANK = 16

_Variant = tuple[str, str, Scenario]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change to a scenario and what it would do."""

    change: str
    """In words: ``attention eager → sdpa``."""
    price: str
    """What it costs: one of :data:`PRICES`."""
    peak_bytes: int
    """Predicted peak with the change."""
    saved_bytes: int
    """Predicted peak without it, less the one with it."""
    prediction: Prediction
    """With the change."""

    @property
    def scenario(self) -> Scenario:
        """With the change."""
        return self.prediction.scenario


def remedies(scenario: Scenario, *, train_less: bool = False) -> tuple[Remedy, ...]:
    """Changes that lower the predicted peak, the largest saving first.

    Args:
        scenario: As it is. Where its activations cannot be predicted, changes that work on
            activations are left out.
        train_less: Whether low-rank adapters in place of the whole model are among them.
    """
    found = _saving(scenario)
    if train_less:
        found += _tried(scenario, _adapter_variants(scenario))
    return tuple(sorted(found, key=lambda remedy: -remedy.saved_bytes))


@lru_cache(maxsize=32)
def _saving(scenario: Scenario) -> tuple[Remedy, ...]:
    return _tried(scenario, _variants(scenario))


def _tried(scenario: Scenario, variants: Iterable[_Variant]) -> tuple[Remedy, ...]:
    """The changes that lower the peak, of all that can be made."""
    before = _peak(predict(scenario))
    if before is None:
        return ()
    found = []
    for change, price, other in variants:
        try:
            prediction = predict(other)
        except ValueError:
            continue
        after = _peak(prediction)
        if after is not None and after < before:
            found.append(
                Remedy(
                    change=change,
                    price=price,
                    peak_bytes=after,
                    saved_bytes=before - after,
                    prediction=prediction,
                )
            )
    return tuple(found)


def _peak(prediction: Prediction) -> int | None:
    known = [use.allocated for use in prediction.phases.values() if use.allocated is not None]
    return max(known, default=None)


def _variants(scenario: Scenario) -> Iterator[_Variant]:
    batch = scenario.batch
    if scenario.architecture is not None and batch is not None:
        yield from _batch_variants(scenario, batch)
        if scenario.attention == "eager":
            yield "attention eager → sdpa", _FREE, scenario.replace(attention="sdpa")
    if scenario.inference is not None:
        yield from _quantised_variants(scenario)
        return
    if scenario.architecture is not None and batch is not None:
        yield from _activation_variants(scenario)
    yield from _optimizer_variants(scenario)
    yield from _sharding_variants(scenario)


def _batch_variants(scenario: Scenario, batch: BatchShape) -> Iterator[_Variant]:
    samples = batch.micro_batch
    if samples == 1:
        return
    parts = next(n for n in count(2) if samples % n == 0)
    change = f"micro_batch {samples} → {samples // parts}"
    smaller = replace(batch, micro_batch=samples // parts)
    if scenario.inference is not None:
        yield change, _FEWER, scenario.replace(batch=smaller)
        return
    steps = scenario.accumulation * parts
    yield (
        f"{change}, accumulation {scenario.accumulation} → {steps}",
        _MICRO_STEPS,
        scenario.replace(batch=smaller, accumulation=steps),
    )


def _activation_variants(scenario: Scenario) -> Iterator[_Variant]:
    if scenario.checkpointing == "none":
        yield (
            "selective gradient checkpointing",
            _PARTLY,
            scenario.replace(checkpointing="selective"),
        )
    if scenario.checkpointing != "full":
        yield "gradient checkpointing", _TWICE, scenario.replace(checkpointing="full")
    if scenario.loss.keep_outputs:
        yield (
            "delete the logits before the next forward pass",
            _FREE,
            scenario.replace(loss=replace(scenario.loss, keep_outputs=False)),
        )
    if scenario.weight_dtype == "float32" and scenario.autocast is None:
        yield "autocast in bfloat16", _PRODUCTS, scenario.replace(autocast="bfloat16")
    if scenario.weight_dtype == "float32" and scenario.tensors is None:
        yield (
            "weights in bfloat16",
            _WEIGHTS,
            scenario.replace(weight_dtype="bfloat16", autocast=None),
        )


def _quantised_variants(scenario: Scenario) -> Iterator[_Variant]:
    if scenario.tensors is None and scenario.weight_dtype not in QUANTISED:
        for dtype in ("int8", "nf4"):
            yield f"weights in {dtype}", _WEIGHTS, scenario.replace(weight_dtype=dtype)


def _optimizer_variants(scenario: Scenario) -> Iterator[_Variant]:
    specs = scenario.optimizers
    if any(spec.is_adam and spec.implementation == "foreach" for spec in specs):
        fused = tuple(
            replace(spec, implementation="fused") if spec.is_adam else spec for spec in specs
        )
        yield "optimizer foreach → fused", _FREE, scenario.replace(optimizers=fused)
    if any(spec.is_adam for spec in specs):
        small = tuple(
            replace(s, name="adamw8bit" if s.name == "adamw" else "adam8bit") if s.is_adam else s
            for s in specs
        )
        yield "8-bit optimizer state", _MOMENTS, scenario.replace(optimizers=small)


def _sharding_variants(scenario: Scenario) -> Iterator[_Variant]:
    parallelism = scenario.parallelism
    if parallelism.world_size == 1:
        return
    if parallelism.strategy == "ddp" and not parallelism.bucket_view:
        viewed = replace(parallelism, bucket_view=True)
        yield "gradient_as_bucket_view", _FREE, scenario.replace(parallelism=viewed)
    for stage in (1, 2, 3):
        if parallelism.strategy == "zero" and stage <= parallelism.zero_stage:
            continue
        yield (
            f"ZeRO stage {stage}",
            _GATHERED if stage == 3 else _SHARDS,
            scenario.replace(parallelism=replace(parallelism, strategy="zero", zero_stage=stage)),
        )
    if parallelism.strategy == "zero" and scenario.offload.optimizer == "none":
        offload = replace(scenario.offload, optimizer="cpu")
        yield "optimizer state in the CPU's memory", _ON_CPU, scenario.replace(offload=offload)
    if parallelism.strategy == "ddp":
        sharded = replace(parallelism, strategy="fsdp", fsdp_sharding="full")
        yield "FSDP, weights freed after forward", _GATHERED, scenario.replace(parallelism=sharded)


def _adapter_variants(scenario: Scenario) -> Iterator[_Variant]:
    """Low-rank adapters on every linear layer, beside weights as they are and beside NF4."""
    if scenario.architecture is None or scenario.inference is not None:
        return
    if scenario.lora is None and scenario.weight_dtype not in QUANTISED:
        lora = LoraSpec(rank=_ADAPTER_RANK, targets=("all-linear",))
        change = f"LoRA of rank {_ADAPTER_RANK} on every linear layer"
        yield change, _ADAPTERS, scenario.replace(lora=lora, master_weights=False)
    if scenario.tensors is None and scenario.weight_dtype not in QUANTISED:
        lora = scenario.lora or LoraSpec(rank=_ADAPTER_RANK, targets=("all-linear",))
        yield (
            f"QLoRA of rank {lora.rank}: weights in NF4",
            _ADAPTERS,
            scenario.replace(
                lora=lora, weight_dtype="nf4", double_quantization=True, master_weights=False
            ),
        )
