"""gpu-check tried out on a CPU: the training runs, the comparison, and what it says there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu_check.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def gpu_check(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: make gpu-check")
def test_without_a_gpu_it_says_how_to_run_it_and_succeeds(tmp_path: Path) -> None:
    done = gpu_check("--output", tmp_path)

    assert done.returncode == 0, done.stderr
    assert "no CUDA device" in done.stdout
    assert "benchmarks/gpu_check.py --install" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_runs_are_measured_and_predicted(tmp_path: Path) -> None:
    done = gpu_check("--device", "cpu", "--skip-tests", "--output", tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert document["failures"] == []
    runs = {run["name"]: run for run in document["runs"]}
    assert list(runs) == ["fp32-adamw", "autocast-accumulate", "bf16-checkpointing-sgd"]
    for run in runs.values():
        assert run["status"] == "completed"
        assert run["steps"] == 12
        assert run["unattributed_at_step_ends_max"] == 0
        predicted = run["predictions"][0]["peak"]
        for name in ("parameters", "optimizer_state"):
            assert predicted[name] == run["measured"]["peak"][name] > 0
    table = next(tmp_path.glob("*.md")).read_text()
    assert table.count("| `activations` |") == 3


def test_the_wheels_are_the_runtimes_and_never_torch() -> None:
    program = "import fetch_wheels; print(*fetch_wheels.required('3.12'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        check=True,
    )

    names = set(done.stdout.split())
    assert {"sqlalchemy", "alembic", "typer", "rich", "pyyaml", "nvidia-ml-py", "pytest"} <= names
    assert {name for name in names if "torch" in name or "cuda" in name} == set()
