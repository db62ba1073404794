"""Which predicted books stand beside a measured peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vramscope.app.overview import predicted_beside
from vramscope.storage.records import (
    MemoryUse,
    Phase,
    PredictionMethod,
    PredictionRecord,
    StepRecord,
)

STATE = MemoryUse(parameters=10, activations=0, allocated=10)
UNKNOWN_ACTIVATIONS = MemoryUse(parameters=10)
PREDICTION = PredictionRecord(
    device=0,
    method=PredictionMethod.ANALYTIC,
    peak=STATE,
    phases={Phase.OPTIMIZER: STATE, Phase.BACKWARD: UNKNOWN_ACTIVATIONS},
)


def test_a_whole_prediction_says_its_own_peak(make_step: Callable[..., StepRecord]) -> None:
    whole = replace(PREDICTION, peak_phase=Phase.OPTIMIZER)
    step = replace(make_step(1), peak_phase=Phase.BACKWARD)
    assert predicted_beside(whole, step) is STATE


def test_one_with_gaps_is_held_against_the_phase_of_the_measured_peak(
    make_step: Callable[..., StepRecord],
) -> None:
    step = replace(make_step(1), peak_phase=Phase.BACKWARD)
    assert predicted_beside(PREDICTION, step).activations is None
    assert predicted_beside(PREDICTION, replace(step, peak_phase=Phase.OPTIMIZER)) is STATE


def test_without_a_step_or_its_phase_there_is_only_the_peak(
    make_step: Callable[..., StepRecord],
) -> None:
    assert predicted_beside(PREDICTION, None) is STATE
    assert predicted_beside(PREDICTION, replace(make_step(1), peak_phase=Phase.FORWARD)) is STATE
