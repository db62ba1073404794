"""What fits in a budget, and the changes that make a scenario fit."""

from __future__ import annotations

import pytest
from vramscope.profiler.analytic import (
    BatchShape,
    DecoderArchitecture,
    Parallelism,
    Scenario,
    predict,
)
from vramscope.profiler.analytic.gpus import GPUS
from vramscope.profiler.analytic.inference import InferenceSpec
from vramscope.profiler.analytic.remedies import PRICES, remedies
from vramscope.profiler.analytic.solve import Growing, largest, needed_bytes, way_to_fit

GPT = DecoderArchitecture(
    family="gpt2",
    layers=4,
    hidden=256,
    heads=4,
    intermediate=1024,
    vocabulary=1000,
    positions=4096,
    activation="gelu_new",
    attention_bias=True,
    output_bias=True,
    mlp_bias=True,
    norm_bias=True,
)
SCENARIO = Scenario(architecture=GPT, batch=BatchShape(micro_batch=4, sequence=128))


def with_batch(micro_batch: int, sequence: int) -> Scenario:
    return SCENARIO.replace(batch=BatchShape(micro_batch=micro_batch, sequence=sequence))


def peak(scenario: Scenario) -> int:
    needed = needed_bytes(scenario)
    assert needed is not None
    return needed


@pytest.mark.parametrize("samples", [1, 2, 3, 7, 64, 100])
def test_the_largest_batch_is_the_last_that_fits(samples: int) -> None:
    exactly = peak(with_batch(samples, 128))
    assert largest(SCENARIO, "micro_batch", exactly) == samples
    assert largest(SCENARIO, "micro_batch", peak(with_batch(samples + 1, 128)) - 1) == samples


@pytest.mark.parametrize("tokens", [1, 64, 1000])
def test_the_largest_sequence_is_the_last_that_fits(tokens: int) -> None:
    fits, too_little = peak(with_batch(4, tokens)), peak(with_batch(4, tokens + 32)) - 1
    assert (largest(SCENARIO, "sequence", fits) or 0) >= tokens
    assert (largest(SCENARIO, "sequence", too_little) or 0) < tokens + 32


@pytest.mark.parametrize("growing", ["micro_batch", "sequence"])
def test_nothing_fits_in_less_than_the_model(growing: Growing) -> None:
    assert largest(SCENARIO, growing, 1000) == 0


def test_what_cannot_be_predicted_has_no_largest() -> None:
    unknown = Scenario(tensors=SCENARIO.inventory, activations_unknown="not looked at")
    assert largest(unknown, "micro_batch", 10**12) is None
    assert way_to_fit(unknown, 10**12) is None


def test_a_scenario_that_fits_needs_no_change() -> None:
    way = way_to_fit(SCENARIO, peak(SCENARIO))
    assert way is not None
    assert way.fits
    assert way.steps == ()


def test_of_several_changes_that_are_enough_the_cheapest_is_taken() -> None:
    large = with_batch(64, 512)
    way = way_to_fit(large, peak(large) * 9 // 10)
    assert way is not None
    (step,) = way.steps
    assert way.fits
    assert step.peak_bytes == way.peak_bytes == peak(step.scenario)
    assert PRICES.index(step.price) <= PRICES.index("each block's forward is computed twice")


def test_several_changes_are_made_where_one_is_not_enough() -> None:
    large = with_batch(64, 512)
    way = way_to_fit(large, peak(large) // 8)
    assert way is not None
    assert way.fits
    assert len(way.steps) > 1
    saved = sum(step.saved_bytes for step in way.steps)
    assert saved == peak(large) - way.peak_bytes


def test_what_no_change_makes_fit_says_how_near_it_comes() -> None:
    way = way_to_fit(SCENARIO, 1000)
    assert way is not None
    assert not way.fits
    assert way.peak_bytes < peak(SCENARIO)


def test_gpus_are_sorted_and_say_where_their_capacity_is_from() -> None:
    assert [g.total_bytes for g in GPUS] == sorted(g.total_bytes for g in GPUS)
    for gpu in GPUS:
        nominal = int(gpu.name.split()[-2]) * 2**30
        assert 0.85 * nominal < gpu.total_bytes < nominal
        assert "github.com/" in gpu.source


def test_a_peak_is_that_of_the_prediction() -> None:
    assert peak(SCENARIO) == predict(SCENARIO).peak_high


def test_a_smaller_micro_batch_keeps_the_batch() -> None:
    for samples in (2, 7, 12):
        found = remedies(with_batch(samples, 512))
        smaller = next(r.scenario for r in found if r.change.startswith("micro_batch"))
        assert smaller.batch is not None
        assert smaller.batch.micro_batch * smaller.accumulation == samples


def test_learned_positions_end_where_their_table_ends() -> None:
    assert largest(SCENARIO, "sequence", 10**15) == GPT.positions


def test_adapters_are_offered_only_where_asked_for() -> None:
    assert not any("LoRA" in r.change for r in remedies(SCENARIO))
    offered = [r for r in remedies(SCENARIO, train_less=True) if "LoRA" in r.change]
    assert offered
    assert all(r.price == PRICES[-1] for r in offered)


def test_every_price_is_on_the_list_and_every_change_saves() -> None:
    many = with_batch(64, 512).replace(
        attention="eager", parallelism=Parallelism(strategy="ddp", world_size=4)
    )
    found = remedies(many, train_less=True)
    assert len({r.price for r in found}) >= 6
    for remedy in found:
        assert remedy.price in PRICES
        assert remedy.saved_bytes > 0
        assert peak(remedy.scenario) == remedy.peak_bytes


def test_generating_is_made_smaller_by_other_changes() -> None:
    generating = SCENARIO.replace(inference=InferenceSpec(new_tokens=16))
    changes = [r.change for r in remedies(generating)]
    assert any(c.startswith("micro_batch") for c in changes)
    assert not any("optimizer" in c or "checkpointing" in c for c in changes)


def test_state_of_zero_may_leave_the_device() -> None:
    zero = with_batch(4, 512).replace(
        parallelism=Parallelism(strategy="zero", zero_stage=2, world_size=4), master_weights=True
    )
    found = next(r for r in remedies(zero) if "CPU" in r.change)
    assert found.scenario.offload.optimizer == "cpu"
    assert peak(found.scenario) == found.peak_bytes < peak(zero)
