"""Fill wheels/ with what gpu-check needs on a machine that has torch but no network.

Run on a machine with network and this project's .venv. Takes the versions installed here, for
the Python and the platform of the other machine; torch and its CUDA libraries are never fetched.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
EXPECTED_THERE = {"torch"}
FOR_TESTS_AND_BUILD = ["pytest", "setuptools>=77"]
MANYLINUX = [5, 12, 17, 24, 26, 27, 28, 31, 34]


def required(python: str) -> dict[str, str]:
    """Name and installed version of everything that the project and its tests need there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    found: dict[str, str] = {}
    waiting = [Requirement(line) for line in [*project["dependencies"], *FOR_TESTS_AND_BUILD]]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or name in EXPECTED_THERE:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
            continue
        found[name] = distribution.version
        waiting += _needs(distribution, requirement.extras, environment)
    return dict(sorted(found.items()))


def _needs(
    distribution: metadata.Distribution, extras: set[str], environment: dict[str, str]
) -> Iterator[Requirement]:
    for line in distribution.requires or []:
        requirement = Requirement(line)
        marker = requirement.marker
        wanted = [{**environment, "extra": extra} for extra in ["", *extras]]
        if marker is None or any(marker.evaluate(each) for each in wanted):
            requirement.marker = None
            yield requirement


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", default="3.12", help="Python of the other machine (3.12)")
    parser.add_argument("--machine", default="x86_64", help="its processor (x86_64)")
    parser.add_argument("--to", type=Path, default=ROOT / "wheels", help="folder to fill (wheels/)")
    options = parser.parse_args()
    pins = [
        f"{name}=={version}" if version else name
        for name, version in required(options.python).items()
    ]
    platforms = [f"--platform=manylinux_2_{minor}_{options.machine}" for minor in MANYLINUX]
    platforms += [f"--platform=manylinux{year}_{options.machine}" for year in (1, 2010, 2014)]
    options.to.mkdir(exist_ok=True)
    for old in options.to.glob("*.whl"):
        old.unlink()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    command += ["--implementation=cp", f"--python-version={options.python}", *platforms]
    subprocess.run([*command, f"--dest={options.to}", *pins], check=True)
    kept = sorted(options.to.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in kept) / 1e6
    print(f"{len(kept)} wheels, {size:.1f} MB, in {options.to}")
    for wheel in kept:
        print(f"  {wheel.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
