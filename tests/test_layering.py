"""Who may import whom, and how heavy an import is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A folder whose vramscope is a copy of ours, for planting a forbidden import."""
    for folder in ("app", "profiler", "storage"):
        ignored = shutil.ignore_patterns("__pycache__", "*.json", "*.js")
        shutil.copytree(ROOT / folder, tmp_path / "vramscope" / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def broken_contracts(house: Path) -> set[str]:
    """Ask import-linter about the copy; the names of the contracts that do not hold."""
    environment = {**os.environ, "PYTHONPATH": str(house), "COLUMNS": "200"}
    done = subprocess.run(
        [LINT_IMPORTS, "--no-cache"], cwd=house, env=environment, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert any(line.startswith("Contracts: ") for line in lines), done.stdout + done.stderr
    broken = {line.split(" BROKEN")[0] for line in lines if " BROKEN" in line}
    assert (done.returncode != 0) == bool(broken)
    return broken


STORE = "The store knows neither training nor what people look at"
PROFILER = "What runs in a training process imports nothing of what people look at"
ANALYTIC = "The analytic predictor is torch-free"
APP = "The app knows the store and the formulas, never a training process"


def test_the_house_as_it_stands_keeps_every_contract(house: Path) -> None:
    assert broken_contracts(house) == set()


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("storage/planted.py", "import torch", STORE),
        ("storage/planted.py", "def f() -> None:\n    import pandas", STORE),
        ("storage/planted.py", "from vramscope.profiler.config import ProfilerConfig", STORE),
        ("profiler/planted.py", "import streamlit", PROFILER),
        ("profiler/analytic/planted.py", "from torch import nn", ANALYTIC),
        ("app/planted.py", "from vramscope.profiler import MemoryProfiler", APP),
        ("app/planted.py", "from vramscope.profiler.devices import cuda", APP),
        ("app/planted.py", "import torch", APP),
    ],
)
def test_a_forbidden_import_is_found(house: Path, file: str, line: str, contract: str) -> None:
    (house / "vramscope" / file).write_text(line + "\n")

    assert contract in broken_contracts(house)


def test_the_app_may_import_the_analytic_predictor(house: Path) -> None:
    (house / "vramscope/app/planted.py").write_text("import vramscope.profiler.analytic\n")

    assert broken_contracts(house) == set()


HEAVY = ("torch", "sqlalchemy", "alembic", "streamlit", "pandas", "plotly", "numpy", "pynvml")


def loaded_by(statement: str) -> set[str]:
    """Heavy packages that a fresh interpreter holds after one statement."""
    program = f"import sys\n{statement}\nprint(*sorted(set({HEAVY!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import vramscope.profiler", set()),
        ("from vramscope.profiler import ProfilerConfig", set()),
        ("import vramscope.profiler.analytic", set()),
        ("import vramscope.storage.records", set()),
        ("import vramscope.storage.reader", {"sqlalchemy", "alembic"}),
        ("import vramscope.storage.writer", {"sqlalchemy", "alembic"}),
        ("import vramscope.app.cli", {"sqlalchemy", "alembic"}),
        ("import vramscope.app.serve", set()),
    ],
)
def test_an_import_is_light(statement: str, allowed: set[str]) -> None:
    assert loaded_by(statement) <= allowed
