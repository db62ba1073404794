"""Measured against predicted, on this machine's GPU: ``make gpu-check``.

Runs the CUDA tests and three small training runs, and writes measured and predicted bytes by class
to benchmarks/results/, in under six minutes. Without a GPU it says so and exits 0.

On a machine with a GPU but no network (Python 3.12 and a CUDA build of torch 2.7 or newer there):

    make wheels                                 # where there is network: fills wheels/
    # copy the clone with wheels/ to the machine with the GPU, and there:
    python3 benchmarks/gpu_check.py --install   # installs into build/gpu-site, nothing else

Everything that is installed goes to build/gpu-site; the machine's own Python stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "gpu-site"
CASE_NAMES = ("fp32-adamw", "autocast-accumulate", "bf16-checkpointing-sgd")
TEST_LIMIT_S = 180
CASE_LIMIT_S = {"cuda": 50, "cpu": 300}


def install(wheels: Path) -> None:
    """Put what this Python lacks, and the project itself, into build/gpu-site, without network."""
    shutil.rmtree(SITE, ignore_errors=True)
    SITE.mkdir(parents=True)
    missing = [str(wheel) for wheel in sorted(wheels.glob("*.whl")) if _lacks(wheel.name)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--target", str(SITE)]
    environment = with_site()
    if missing:
        subprocess.run([*pip, *missing], check=True, env=environment)
    # Built from a copy, since a build leaves files behind that a later build would take along.
    with tempfile.TemporaryDirectory() as copy:
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        for name in ("app", "profiler", "storage"):
            shutil.copytree(ROOT / name, Path(copy, name))
        subprocess.run([*pip, "--no-build-isolation", copy], check=True, env=environment)
    print(f"Installed the project and {len(missing)} packages that were missing into {SITE}")


# Packages that other machines' images hold in versions too old for us.
NEWER_THAN = {"setuptools": (77,), "sqlalchemy": (2, 0, 30), "alembic": (1, 13), "pytest": (8, 2)}


def _lacks(wheel: str) -> bool:
    name = re.sub(r"[-_.]+", "-", wheel.split("-")[0]).lower()
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return True
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    return numbers < NEWER_THAN.get(name, ())


def with_site() -> dict[str, str]:
    """The environment in which a child finds what ``install`` brought."""
    path = [str(SITE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def has_cuda() -> bool:
    """Whether torch, asked in a process of its own, sees a GPU."""
    probe = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL).returncode == 0


def run_tests(environment: dict[str, str]) -> dict[str, object]:
    """Run the tests marked ``cuda``; their exit status and its last line."""
    # Only these files: other tests import what this machine need not have.
    files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").glob("test_cuda*.py"))
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-p", "no:cacheprovider", *files]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=TEST_LIMIT_S, text=True, capture_output=True
        )
        output, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        output, status = f"{error.stdout or b''!r}\nstopped after {TEST_LIMIT_S} s", -1
    print(output)
    lines = [line for line in output.strip().splitlines() if line.strip()]
    return {
        "exit_status": status,
        "summary": lines[-1].strip("= ") if lines else "",
        "seconds": round(time.monotonic() - started, 1),
    }


def run_cases(environment: dict[str, str], db: str, device: str) -> list[str]:
    """Train every case in a process of its own; what went wrong, one line a failure."""
    failures = []
    for name in CASE_NAMES:
        command = [sys.executable, str(ROOT / "benchmarks" / "gpu_runs.py"), name]
        command += ["--db", db, "--device", device]
        try:
            status = subprocess.run(
                command, env=environment, timeout=CASE_LIMIT_S[device]
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
        if status != 0:
            failures.append(f"{name} ended with status {status}")
    return failures


def say_without_gpu() -> None:
    print("gpu-check: torch sees no CUDA device here, so there is nothing to check.")
    print("On a machine with a GPU and network:  make gpu-check")
    print("On one with a GPU and no network:")
    print("    make wheels                                 # here: fills wheels/")
    print("    # copy this clone with wheels/ over, then there, with a Python 3.12 that has torch:")
    print("    python3 benchmarks/gpu_check.py --install")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true", help="first install from the wheels")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="where they are")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu tries the script out, tiny"
    )
    parser.add_argument("--skip-tests", action="store_true", help="only the training runs")
    options = parser.parse_args()

    if options.device == "cuda" and not has_cuda():
        say_without_gpu()
        return 0
    environment = dict(os.environ)
    if options.install:
        install(options.wheels)
        environment = with_site()
    started = time.monotonic()
    tests = None if options.skip_tests else run_tests(environment)

    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "gpu-check.db")
        failures = run_cases(environment, f"sqlite:///{store}", options.device)
        command = [sys.executable, str(ROOT / "benchmarks" / "gpu_report.py"), str(store)]
        command += [str(options.output), json.dumps({"tests": tests, "failures": failures})]
        status = subprocess.run(command, env=environment).returncode
    print(f"gpu-check took {time.monotonic() - started:.0f} s")
    tests_failed = tests is not None and tests["exit_status"] != 0
    return 1 if failures or status or tests_failed else 0


if __name__ == "__main__":
    sys.exit(main())
