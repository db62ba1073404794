"""What is installed, under which names, and what it needs."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("app", "profiler", "storage")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# Where the name that is imported is not the name that is installed.
DISTRIBUTIONS = {"pynvml": "nvidia-ml-py", "yaml": "pyyaml"}
# Parts of a declared distribution's own, always there with it.
COMES_WITH = {
    "click": "typer",
    "google": "streamlit",
    "packaging": "streamlit",
    "starlette": "streamlit",
    "tornado": "streamlit",
    "uvicorn": "streamlit",
}


def package_files(*, python: bool) -> list[Path]:
    found = [
        file.relative_to(ROOT)
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    ]
    return sorted(file for file in found if (file.suffix in {".py", ".pyi"}) == python)


def test_every_subpackage_is_listed() -> None:
    on_disk = {
        ".".join(["vramscope", *file.parent.parts])
        for file in package_files(python=True)
        if file.name == "__init__.py"
    }

    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == on_disk


def test_every_python_file_lies_in_a_package() -> None:
    strays = [
        str(file)
        for file in package_files(python=True)
        if not (ROOT / file.parent / "__init__.py").exists()
    ]

    assert strays == []


def test_no_file_of_the_app_hides_another_module() -> None:
    # Streamlit puts app/ first on the import path.
    reserved = {"app", "storage", "profiler", *sys.stdlib_module_names}

    assert [f.name for f in (ROOT / "app").iterdir() if f.stem in reserved] == []


def declared(*groups: str) -> set[str]:
    lines = list(PYPROJECT["project"]["dependencies"])
    for group in groups:
        lines += PYPROJECT["project"]["optional-dependencies"][group]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def top_level_imports(file: Path) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"vramscope", "__future__"}


def test_everything_imported_is_declared() -> None:
    extras = set(PYPROJECT["project"]["optional-dependencies"]) - {"dev"}
    known = declared(*extras)
    # Read off a live run only where the user has it: never imported unless it already is.
    known |= {"transformers", "peft", "lightning", "pytorch-lightning"}

    undeclared = {
        f"{file}: {name}"
        for file in package_files(python=True)
        for name in top_level_imports(file)
        if canonicalize_name(DISTRIBUTIONS.get(name, name)) not in known
        and COMES_WITH.get(name) not in known
    }

    assert undeclared == set()


def test_training_needs_no_dashboard() -> None:
    assert declared() & {"streamlit", "pandas", "plotly", "psycopg"} == set()


def requirements() -> dict[str, Requirement]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in wanted}


def test_requirements_are_pinned() -> None:
    loose = [
        str(requirement)
        for requirement in requirements().values()
        if [spec.operator for spec in requirement.specifier] != ["=="]
    ]

    assert loose == []
    assert str(requirements()["torch"]) == "torch==2.13.0"


def test_requirements_satisfy_the_project() -> None:
    pins = requirements()
    lines = list(PYPROJECT["project"]["dependencies"])
    for group in ("dashboard", "postgres", "accelerate"):
        lines += PYPROJECT["project"]["optional-dependencies"][group]

    for line in lines:
        wanted = Requirement(line)
        pin = pins[canonicalize_name(wanted.name)]
        version = next(iter(pin.specifier)).version
        assert wanted.specifier.contains(version), f"{pin} does not satisfy {wanted}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy: a build leaves files behind."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return zipfile.ZipFile(next(target.glob("*.whl")))


def test_the_wheel_holds_every_file(wheel: zipfile.ZipFile) -> None:
    expected = {
        f"vramscope/{file}" for python in (True, False) for file in package_files(python=python)
    }

    held = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}

    assert held == expected


def test_the_wheel_brings_the_license_and_the_command(wheel: zipfile.ZipFile) -> None:
    text = {
        Path(name).name: wheel.read(name).decode()
        for name in wheel.namelist()
        if "dist-info" in name
    }

    assert "Apache License" in text["LICENSE"]
    assert "License-Expression: Apache-2.0" in text["METADATA"]
    assert "vramscope = vramscope.app.cli:main" in text["entry_points.txt"]


TRAIN = """
import torch
import profiler, storage, app
assert (profiler.MINE, storage.MINE, app.MINE) == (1, 2, 3), "the user's own modules were hidden"
{before}
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{around}
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
print("trained with my own", profiler.MINE, storage.MINE, app.MINE)
"""
HOOK = {
    "before": "from vramscope.profiler import MemoryProfiler",
    "around": "with MemoryProfiler(model, optimizer, run_name='mine'):",
}
NO_HOOK = {"before": "", "around": "if True:"}


@pytest.mark.parametrize(
    ("script", "command"),
    [(HOOK, [sys.executable]), (NO_HOOK, [Path(sys.executable).with_name("vramscope"), "run"])],
    ids=["hook", "vramscope run"],
)
def test_a_users_own_modules_of_the_same_names_are_left_alone(
    tmp_path: Path, script: dict[str, str], command: list[str | Path]
) -> None:
    (tmp_path / "profiler.py").write_text("MINE = 1\n")
    for number, name in ((2, "storage"), (3, "app")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = {number}\n")
    (tmp_path / "train.py").write_text(TRAIN.format(**script))
    environment = {**os.environ, "VRAMSCOPE_DB": "runs.db", "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        [*command, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert "trained with my own 1 2 3" in done.stdout
    listed = subprocess.run(
        [Path(sys.executable).with_name("vramscope"), "runs", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0, listed.stderr
    assert '"last_step": 3' in listed.stdout


def test_make_help_names_every_command() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    internal = {"setup-dev"}
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)", makefile, re.MULTILINE)
    assert phony is not None

    shown = subprocess.run(
        ["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    expected = set(phony.group(1).replace("\\", " ").split()) - internal
    assert {line.split()[1] for line in shown.splitlines()} == expected


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nowhere/python3", "is older or cannot be run"),
        ("", "apt-get install python3 python3-venv"),
    ],
    ids=["not there", "none found"],
)
def test_setup_says_what_is_missing(tmp_path: Path, python: str, words: str) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)

    done = subprocess.run(
        ["make", "setup", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode != 0
    assert words in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_setup_says_that_the_venv_module_is_missing(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python-without-venv"
    python.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\n')
    python.chmod(0o755)

    done = subprocess.run(
        ["make", "setup", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode != 0
    assert "apt-get install python3-venv" in done.stderr


def test_the_ci_script_runs_the_readmes_test_command() -> None:
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").rstrip().endswith("\nmake test")
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
