"""Ranks of one launch agree on their run, launch by launch and run by run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = "from vramscope.profiler.identity import run_id; print(run_id(2), run_id(2), sep='\\n')"


def ids(**environment: str) -> list[str]:
    """The ids that a rank's first and second run get."""
    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "here", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return asked.stdout.split()


def test_two_ranks_of_a_launch_agree_on_both_of_its_runs() -> None:
    first, second = ids(RANK="0", MASTER_PORT="1")
    assert first != second
    assert ids(RANK="1", MASTER_PORT="1") == [first, second]


def test_another_launch_has_other_runs() -> None:
    assert not set(ids(MASTER_PORT="1")) & set(ids(MASTER_PORT="2"))


@pytest.mark.parametrize("world", [1, 2])
def test_the_environment_may_say_the_run(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from vramscope.profiler.identity import run_id

    monkeypatch.setenv("VRAMSCOPE_RUN_ID", "chosen")
    assert run_id(world) == "chosen"
