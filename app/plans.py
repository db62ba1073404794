"""All that a plan says of a scenario: pure, for the Plan page and for ``vramscope plan``."""

from __future__ import annotations

from dataclasses import dataclass

from vramscope.profiler.analytic import Prediction, Scenario, predict
from vramscope.profiler.analytic.fit import Fit, Verdict, budget, fit, fits, smallest_that_fits
from vramscope.profiler.analytic.gpus import GPUS, Gpu
from vramscope.profiler.analytic.remedies import Remedy, remedies
from vramscope.profiler.analytic.solve import Growing, WayToFit, largest, way_to_fit

VERDICT_WORDS: dict[Verdict | None, str] = {
    "yes": "fits",
    "tight": "tight",
    "no": "does not fit",
    None: "not known",
}

RULE = (
    "Needed is the peak that is predicted, what the caching allocator holds beside it (usually "
    "4 %, at most 15 %), and CUDA's context. Fits: even if both take most. Does not fit: not even "
    "if both take least. Tight: it depends on them."
)
"""How a verdict comes about, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """How large something may become on a GPU; ``None`` where it is not known."""

    surely: int | None
    """The largest that fits for sure."""
    at_most: int | None
    """The largest that is not excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that saves memory, and where it would then fit."""

    remedy: Remedy
    fits_from: Gpu | None
    """The smallest GPU of the list on which it then fits for sure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A scenario, what it needs, and what could be changed, on one GPU."""

    prediction: Prediction
    gpu: Gpu
    """The GPU in focus."""
    fit: Fit
    fits: tuple[Fit, ...]
    """On every GPU of the list."""
    micro_batch: Largest
    sequence: Largest
    changes: tuple[Change, ...]
    way: WayToFit | None
    """Changes that make it fit for sure on the GPU in focus; ``None`` where the peak is unknown."""

    @property
    def scenario(self) -> Scenario:
        """What is planned."""
        return self.prediction.scenario

    @property
    def fits_from(self) -> Gpu | None:
        """The smallest GPU of the list on which it fits for sure."""
        return next((f.gpu for f in self.fits if f.verdict == "yes"), None)


def checked(scenario: Scenario) -> Scenario:
    """The scenario, if it is one that can be planned.

    Raises:
        ValueError: It is for a CPU, or asks for what does not exist.
    """
    if scenario.device != "cuda":
        raise ValueError(f"device={scenario.device!r}: a plan is for GPUs; it must be 'cuda'")
    predict(scenario)
    return scenario


def plan_of(scenario: Scenario, gpu: Gpu | None = None) -> Plan:
    """Plan a scenario.

    Args:
        scenario: For CUDA.
        gpu: The GPU in focus; ``None`` for the smallest on which it fits, else the largest.

    Raises:
        ValueError: The scenario asks for what does not exist.
    """
    prediction = predict(scenario)
    gpu = gpu or smallest_that_fits(prediction) or GPUS[-1]
    there = scenario.replace(gpu=gpu.name)
    within = budget(gpu)
    return Plan(
        prediction=prediction,
        gpu=gpu,
        fit=fit(prediction, gpu),
        fits=fits(prediction),
        micro_batch=_largest(there, "micro_batch", within.low, within.high),
        sequence=_largest(there, "sequence", within.low, within.high),
        changes=tuple(
            Change(remedy=remedy, fits_from=smallest_that_fits(remedy.prediction))
            for remedy in remedies(scenario, train_less=True)
        ),
        way=way_to_fit(scenario, within.low),
    )


def _largest(scenario: Scenario, growing: Growing, surely: int, at_most: int) -> Largest:
    return Largest(
        surely=largest(scenario, growing, surely), at_most=largest(scenario, growing, at_most)
    )
