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
    "fsdp1",
    "fsdp1 original parameters",
    "fsdp2",
    "fsdp2 kept gathered",
    "fsdp2 bf16",
    "tensor parallel",
    "pipeline",
)
Ranks = list[dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def ranks(run_ranks: Callable[..., Ranks]) -> Ranks:
    return run_ranks("torch_wrappers.py", 2)


def test_every_case_was_run(ranks: Ranks) -> None:
    assert [tuple(rank) for rank in ranks] == [CASES, CASES]


@pytest.mark.parametrize("case", CASES)
def test_what_is_held_is_what_the_wrapper_keeps(ranks: Ranks, case: str) -> None:
    for rank in ranks:
        for step in rank[case]:
            recorded = {name: step["recorded"][name] for name in step["expected"]}
            assert recorded == step["expected"]


@pytest.mark.parametrize("case", CASES)
def test_the_books_close_on_every_rank(ranks: Ranks, case: str) -> None:
    for rank in ranks:
        assert [step["recorded"]["allocated"] for step in rank[case]] == [
            step["alive"] for step in rank[case]
        ]
        assert {step["recorded"]["unattributed"] for step in rank[case]} == {0}


@pytest.mark.parametrize(
    ("case", "micro_steps"), [("ddp", 1), ("ddp no_sync", 3), ("fsdp2", 1), ("pipeline", 2)]
)
def test_backward_passes_are_counted(ranks: Ranks, case: str, micro_steps: int) -> None:
    for rank in ranks:
        assert {step["micro_steps"] for step in rank[case]} == {micro_steps}
