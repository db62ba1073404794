"""What would make a scenario smaller: one change at a time, each predicted, each with its price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .estimate import Prediction, predict
from .scenario import Scenario

_FREE = "none"
_MICRO_STEPS = "more micro-steps for the same batch"
_SHARDS = "none to speak of"
_GATHERED = "parameters are gathered for every pass"
_TWICE = "each block's forward is computed twice"
_PRECISION = "precision of the moments"
PRICES = (_FREE, _SHARDS, _MICRO_STEPS, _GATHERED, _TWICE, _PRECISION)
"""What changes cost, in words, the cheapest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change to a scenario and what it would do."""

    change: str
    """In words: ``micro_batch 8 → 4``."""
    price: str
    """What it costs: one of :data:`PRICES`."""
    peak_bytes: int
    """Predicted peak with the change."""
    saved_bytes: int
    """Predicted peak without it, less the one with it."""
    scenario: Scenario
    """With the change."""


def remedies(scenario: Scenario) -> tuple[Remedy, ...]:
    """Changes that lower the predicted peak, the largest saving first.

    Args:
        scenario: As it is. Where its activations cannot be predicted, changes that work on
            activations are left out.
    """
    before = _peak(predict(scenario))
    if before is None:
        return ()
    found = []
    for change, price, other in _variants(scenario):
        try:
            after = _peak(predict(other))
        except ValueError:
            continue
        if after is not None and after < before:
            found.append(
                Remedy(
                    change=change,
                    price=price,
                    peak_bytes=after,
                    saved_bytes=before - after,
                    scenario=other,
                )
            )
    return tuple(sorted(found, key=lambda remedy: -remedy.saved_bytes))


def _peak(prediction: Prediction) -> int | None:
    known = [use.allocated for use in prediction.phases.values() if use.allocated is not None]
    return max(known, default=None)


def _variants(scenario: Scenario) -> Iterator[tuple[str, str, Scenario]]:
    batch = scenario.batch
    if scenario.architecture is not None and batch is not None:
        if batch.micro_batch > 1:
            half = batch.micro_batch // 2
            yield (
                f"micro_batch {batch.micro_batch} → {half}",
                _MICRO_STEPS,
                scenario.replace(batch=replace(batch, micro_batch=half)),
            )
        if scenario.checkpointing == "none":
            yield (
                "gradient checkpointing",
                _TWICE,
                scenario.replace(checkpointing="full"),
            )
        if scenario.attention == "eager":
            yield (
                "attention eager → sdpa",
                _FREE,
                scenario.replace(attention="sdpa"),
            )
    yield from _optimizer_variants(scenario)
    parallelism = scenario.parallelism
    if parallelism.world_size > 1:
        for stage in (1, 2, 3):
            if parallelism.strategy == "zero" and stage <= parallelism.zero_stage:
                continue
            yield (
                f"ZeRO stage {stage}",
                _GATHERED if stage == 3 else _SHARDS,
                scenario.replace(
                    parallelism=replace(parallelism, strategy="zero", zero_stage=stage)
                ),
            )


def _optimizer_variants(scenario: Scenario) -> Iterator[tuple[str, str, Scenario]]:
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
        yield (
            "8-bit optimizer state",
            _PRECISION,
            scenario.replace(optimizers=small),
        )
