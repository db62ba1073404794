"""DeepSpeed's stages on the CPU, on two and four processes: every byte, after backward and step.

What is expected is counted in ``ranks/deepspeed_stages.py``; a counting allocator under torch
says how many bytes there are in all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")

TWO = (
    *(f"stage {stage}" for stage in range(4)),
    *(f"stage {stage} bf16" for stage in range(4)),
    *(f"stage {stage} bf16 accumulated" for stage in (1, 2, 3)),
    *(f"stage {stage} offloaded" for stage in (2, 3)),
)
PLAIN = TWO[:8]
FOUR = ("stage 1", "stage 2 bf16", "stage 3", "stage 3 bf16")
CASES = [*((2, case) for case in TWO), *((4, case) for case in FOUR)]
Ranks = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks(run_ranks: Callable[..., Ranks]) -> dict[int, Ranks]:
    return {
        2: run_ranks("deepspeed_stages.py", 2),
        4: run_ranks("deepspeed_stages.py", 4, *FOUR),
    }


@pytest.fixture
def found(ranks: dict[int, Ranks], request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    world, case = request.param
    return [rank[case] for rank in ranks[world]]


def test_every_configuration_was_run(ranks: dict[int, Ranks]) -> None:
    assert {tuple(rank) for rank in ranks[2]} == {TWO}
    assert {tuple(rank) for rank in ranks[4]} == {FOUR}


@pytest.mark.parametrize("found", CASES, indirect=True, ids=str)
def test_what_is_held_at_a_steps_end_is_what_the_stage_keeps(found: list[dict[str, Any]]) -> None:
    for rank in found:
        for step in rank["steps"]:
            expected = rank["expected"]["step"]
            assert {name: step["recorded"][name] or 0 for name in expected} == expected


@pytest.mark.parametrize("found", CASES, indirect=True, ids=str)
def test_gradients_after_backward_are_what_the_stage_keeps(found: list[dict[str, Any]]) -> None:
    for rank in found:
        # Optimizer state, and small parameters whole at stage 3, come with the first step.
        for step in rank["steps"][1:]:
            expected = rank["expected"]["backward"]
            assert {name: step["backward"].get(name, 0) for name in expected} == expected


@pytest.mark.parametrize("found", CASES, indirect=True, ids=str)
def test_the_books_close_with_host_memory_beside_them(found: list[dict[str, Any]]) -> None:
    for rank in found:
        for step in rank["steps"]:
            recorded = step["recorded"]
            assert recorded["allocated"] + (recorded["host"] or 0) == step["alive"]
            assert recorded["unattributed"] == 0


@pytest.mark.parametrize("found", CASES, indirect=True, ids=str)
def test_phases_and_micro_steps_are_found_under_the_engine(found: list[dict[str, Any]]) -> None:
    for rank in found:
        micro_steps = {step["micro_steps"] for step in rank["steps"]}
        assert micro_steps == {rank["setup"]["accumulation"]}
        worked = [phase for phase, _ in itertools.groupby(rank["phases"]) if phase != "idle"]
        assert worked == ["forward", "backward"] * rank["setup"]["accumulation"] + ["optimizer"]


@pytest.mark.parametrize("found", CASES, indirect=True, ids=str)
def test_the_scenario_is_what_was_configured(found: list[dict[str, Any]]) -> None:
    for place, rank in enumerate(found):
        setup, scenario = rank["setup"], rank["scenario"]
        assert scenario["parallelism"] == {
            "strategy": "zero",
            "world_size": len(found),
            **({"rank": place} if place else {}),
            **({"zero_stage": setup["stage"]} if setup["stage"] else {}),
            "reduce_bucket_elements": setup["bucket"],
            "persistence_threshold": setup["threshold"],
        }
        assert scenario.get("accumulation", 1) == setup["accumulation"]
        offload = scenario.get("offload", {})
        assert offload.get("optimizer", "none") == ("cpu" if setup["offload"] else "none")


@pytest.mark.parametrize("found", [c for c in CASES if "off" not in c[1]], indirect=True, ids=str)
def test_weights_and_state_were_predicted(found: list[dict[str, Any]]) -> None:
    for rank in found:
        predicted, held = rank["predicted"]["idle"], rank["expected"]["step"]
        # Torch's step counter: 4 bytes for each flat tensor.
        assert held["optimizer_state"] - predicted["optimizer_state"] in (0, 4)
        if len(found) == 2:
            assert predicted["parameters"] == held["parameters"]


@pytest.mark.parametrize("found", [(2, c) for c in PLAIN], indirect=True, ids=str)
def test_gradients_of_the_first_rank_were_predicted(found: list[dict[str, Any]]) -> None:
    expected = found[0]["expected"]["backward"]["gradients"]
    assert found[0]["predicted"]["backward"]["gradients"] == expected
