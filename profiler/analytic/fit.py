"""Whether a prediction fits on a GPU: what is needed there beside the tensors, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .estimate import Prediction
from .gpus import GPUS, Gpu
from .overheads import SLACK, Band, device_band, workspace_terms
from .scenario import Scenario

Verdict = Literal["yes", "tight", "no"]
"""``yes``: fits even where the allocator and the context take most; ``no``: not even where they
take least; ``tight``: it depends on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A prediction on one GPU."""

    gpu: Gpu
    needed_low: int
    """Least that the process needs of the GPU: tensors at the peak and the smallest context."""
    needed_bytes: int | None
    """What it usually needs: tensors, the allocator's slack and the context."""
    needed_high: int | None
    """Most that it needs."""
    verdict: Verdict | None
    """``None`` where the peak is not known and what is known of it does not exclude the GPU."""

    @property
    def headroom_bytes(self) -> int | None:
        """What is usually left free; negative where it is too little."""
        return None if self.needed_bytes is None else self.gpu.total_bytes - self.needed_bytes


def budget(gpu: Gpu) -> Band:
    """What tensors may hold at their peak on a GPU that nobody else uses, in bytes.

    ``low``: with this it fits for sure; ``usual``: as a rule; ``high``: with more it never fits.
    """
    context = device_band(Band(0, 0, 0), gpu.name)
    least, usual, most = SLACK
    return Band(
        int((gpu.total_bytes - context.high) / most),
        int((gpu.total_bytes - context.usual) / usual),
        int((gpu.total_bytes - context.low) / least),
    )


def fit(prediction: Prediction, gpu: Gpu) -> Fit:
    """A prediction for CUDA on one GPU, whichever GPU its scenario names."""
    more = _workspaces(prediction.scenario.replace(gpu=gpu.name)) - _workspaces(prediction.scenario)
    low = (prediction.peak_low or 0) + more
    high = None if prediction.peak_high is None else prediction.peak_high + more
    context = device_band(Band(0, 0, 0), gpu.name)
    least, usual, most = SLACK
    return Fit(
        gpu=gpu,
        needed_low=int(low * least) + context.low,
        needed_bytes=None if high is None else int(high * usual) + context.usual,
        needed_high=None if high is None else int(high * most) + context.high,
        verdict=_verdict(low, high, budget(gpu)),
    )


def fits(prediction: Prediction, gpus: Sequence[Gpu] = GPUS) -> tuple[Fit, ...]:
    """A prediction on each of several GPUs."""
    return tuple(fit(prediction, gpu) for gpu in gpus)


def smallest_that_fits(prediction: Prediction, gpus: Sequence[Gpu] = GPUS) -> Gpu | None:
    """The first of several GPUs on which it fits for sure."""
    return next((f.gpu for f in fits(prediction, gpus) if f.verdict == "yes"), None)


def _workspaces(scenario: Scenario) -> int:
    return sum(term.nbytes for term in workspace_terms(scenario))


def _verdict(low: int, high: int | None, within: Band) -> Verdict | None:
    if low > within.high:
        return "no"
    if high is None:
        return None
    return "yes" if high <= within.low else "tight"
