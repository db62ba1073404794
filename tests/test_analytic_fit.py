"""Whether a prediction fits on a GPU, by how much, and how sure that is."""

from __future__ import annotations

import dataclasses

import pytest
from vramscope.profiler.analytic import BatchShape, DecoderArchitecture, Scenario, predict
from vramscope.profiler.analytic.fit import budget, fit, fits, smallest_that_fits
from vramscope.profiler.analytic.gpus import GPUS, Gpu

LLAMA = DecoderArchitecture(
    family="llama",
    layers=4,
    hidden=512,
    heads=8,
    kv_heads=4,
    intermediate=1408,
    vocabulary=32000,
    positions=4096,
    activation="silu",
    tied=False,
)
PREDICTION = predict(
    Scenario(architecture=LLAMA, batch=BatchShape(micro_batch=4, sequence=1024), gpu="A100 80 GB")
)


def a_gpu(total_bytes: int, name: str = "A100 of any size") -> Gpu:
    return Gpu(name=name, total_bytes=total_bytes, source="this test")


def needed() -> tuple[int, int]:
    found = fit(PREDICTION, a_gpu(10**12))
    assert found.needed_high is not None
    return found.needed_low, found.needed_high


@pytest.mark.parametrize(
    ("beside", "verdict"),
    [("high", "yes"), ("below high", "tight"), ("low", "tight"), ("below low", "no")],
)
def test_the_verdict_turns_where_the_band_ends(beside: str, verdict: str) -> None:
    low, high = needed()
    ends = {"high": high + 2, "low": low + 2}
    total = ends[beside.split()[-1]] - (2**10 if "below" in beside else 0)
    assert fit(PREDICTION, a_gpu(total)).verdict == verdict


def test_needed_is_more_than_the_tensors_by_slack_and_context() -> None:
    found = fit(PREDICTION, a_gpu(10**12))
    assert PREDICTION.peak_low is not None
    assert found.needed_bytes is not None
    assert PREDICTION.peak_low < found.needed_low < found.needed_bytes
    assert found.headroom_bytes == 10**12 - found.needed_bytes


def test_a_budget_is_what_the_verdict_goes_by() -> None:
    gpu = a_gpu(2**33)
    assert PREDICTION.peak_high is not None
    within = budget(gpu)
    assert within.low < within.usual < within.high < gpu.total_bytes
    exactly = dataclasses.replace(PREDICTION, peak_high=within.low, peak_low=within.low)
    one_more = dataclasses.replace(PREDICTION, peak_high=within.low + 1, peak_low=within.low)
    assert fit(exactly, gpu).verdict == "yes"
    assert fit(one_more, gpu).verdict == "tight"


def test_larger_workspaces_of_a_gpu_are_counted() -> None:
    on_a100, on_h100 = (predict(PREDICTION.scenario.replace(gpu=n)) for n in ("A100", "H100"))
    gpu = a_gpu(2**36, "H100 80 GB")
    assert fit(on_a100, gpu).needed_bytes == fit(on_h100, gpu).needed_bytes


def test_an_unknown_peak_is_no_yes_but_may_be_a_no() -> None:
    unknown = predict(Scenario(tensors=PREDICTION.scenario.inventory, activations_unknown="?"))
    assert fit(unknown, a_gpu(10**12)).verdict is None
    assert fit(unknown, a_gpu(10**12)).headroom_bytes is None
    assert fit(unknown, a_gpu(2**26)).verdict == "no"


def test_the_smallest_is_the_first_that_fits_for_sure() -> None:
    found = smallest_that_fits(PREDICTION)
    verdicts = [f.verdict for f in fits(PREDICTION)]
    assert found is not None
    assert verdicts.index("yes") == GPUS.index(found)
    assert smallest_that_fits(PREDICTION, [a_gpu(2**20)]) is None
