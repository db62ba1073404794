"""DDP, FSDP, tensor and pipeline parallel on two processes: every byte, at every step's end.

What is expected is counted in ``ranks/torch_wrappers.py``; a counting allocator under torch says
how many bytes there are in all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch.distributed.pipelining", reason="this torch has no pipelining")

CASES = (
    "ddp",
    "ddp bucket view",
    "ddp no_sync",
    "ddp bucket view no_sync",
    "ddp unused parameters",
    "fsdp1",
    "fsdp1 original parameters",
    "fsdp2",
    "fsdp2 kept gathered",
    "fsdp2 bf16",
    "fsdp2 offloaded",
    "tensor parallel",
    "pipeline",
)
DDP = {"strategy": "ddp", "world_size": 2}
FSDP = {"strategy": "fsdp", "world_size": 2}
PARALLELISM = {
    "ddp": DDP,
    "ddp bucket view": {**DDP, "bucket_view": True},
    "fsdp1": {**FSDP, "fsdp_version": 1},
    "fsdp1 original parameters": {**FSDP, "fsdp_version": 1},
    "fsdp2": FSDP,
    "fsdp2 kept gathered": {**FSDP, "fsdp_sharding": "gradients"},
}
"""As configured; what a scenario leaves out is at its default."""
STATE = ("parameters", "gradients", "optimizer_state")
PREDICTED = {
    **dict.fromkeys((*(c for c in CASES if "ddp" in c), "tensor parallel", "pipeline"), STATE),
    # The last ranks' optimizer state, which is not padded, is predicted as the first one's.
    **dict.fromkeys(("fsdp2", "fsdp2 kept gathered", "fsdp2 bf16"), STATE[:2]),
}
Ranks = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks(run_ranks: Callable[..., Ranks]) -> Ranks:
    return run_ranks("torch_wrappers.py", 2)


def test_every_case_was_run(ranks: Ranks) -> None:
    assert [tuple(rank) for rank in ranks] == [CASES, CASES]


@pytest.mark.parametrize("case", CASES)
def test_what_is_held_is_what_the_wrapper_keeps(ranks: Ranks, case: str) -> None:
    for rank in ranks:
        expected = rank[case]["expected"]
        for step in rank[case]["steps"]:
            assert {name: step["recorded"][name] or 0 for name in expected} == expected


@pytest.mark.parametrize("case", CASES)
def test_the_books_close_on_every_rank(ranks: Ranks, case: str) -> None:
    for rank in ranks:
        steps = rank[case]["steps"]
        for recorded in (step["recorded"] for step in steps):
            recorded["everywhere"] = recorded["allocated"] + (recorded["host"] or 0)
        assert [s["recorded"]["everywhere"] for s in steps] == [s["alive"] for s in steps]
        assert {step["recorded"]["unattributed"] for step in steps} == {0}


@pytest.mark.parametrize(
    ("case", "micro_steps"), [("ddp", 1), ("ddp no_sync", 3), ("fsdp2", 1), ("pipeline", 2)]
)
def test_backward_passes_are_counted(ranks: Ranks, case: str, micro_steps: int) -> None:
    for rank in ranks:
        assert {step["micro_steps"] for step in rank[case]["steps"]} == {micro_steps}
        assert rank[case]["scenario"].get("accumulation", 1) == micro_steps


@pytest.mark.parametrize("case", PARALLELISM)
def test_the_scenario_is_what_was_configured(ranks: Ranks, case: str) -> None:
    for place, rank in enumerate(ranks):
        expected = {**PARALLELISM[case], **({"rank": place} if place else {})}
        assert rank[case]["scenario"]["parallelism"] == expected


def test_offloading_is_read_off_the_wrapper(ranks: Ranks) -> None:
    offload = ranks[0]["fsdp2 offloaded"]["scenario"]["offload"]
    assert offload == {"optimizer": "cpu", "parameters": "cpu"}


def test_mixed_precision_is_read_off_the_wrapper(ranks: Ranks) -> None:
    assert ranks[0]["fsdp2 bf16"]["scenario"]["autocast"] == "bfloat16"


@pytest.mark.parametrize("case", ["fsdp1", "fsdp2", "tensor parallel", "pipeline"])
def test_degrees_and_sizes_are_settings(ranks: Ranks, case: str) -> None:
    settings = ranks[0][case]["settings"]
    assert settings["tensor_parallel"] == (2 if case == "tensor parallel" else 1)
    assert settings["pipeline_parallel"] == (2 if case == "pipeline" else 1)
    assert settings["parameters"] == ranks[0]["ddp"]["settings"]["parameters"] or case == "pipeline"


@pytest.mark.parametrize("case", PREDICTED)
def test_what_is_held_was_predicted_to_the_byte(ranks: Ranks, case: str) -> None:
    for rank in ranks:
        predicted = rank[case]["predicted"]["idle"]
        held = rank[case]["steps"][-1]["recorded"]
        assert [predicted[name] for name in PREDICTED[case]] == [
            held[name] for name in PREDICTED[case]
        ]
