"""The README and the docs: what they show runs, what they name exists."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from vramscope.storage.records import MEMORY_LINES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(
    r"^(?P<mark><!-- not run: [^\n]+ -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    runs: bool


BLOCKS = [Block(m["language"], m["text"], m["mark"] is None) for m in BLOCK.finditer(README)]


def test_blocks_are_found() -> None:
    assert [block.language for block in BLOCKS if block.runs] == ["python", "sh", "python"]
    assert README.count("```") == 2 * len(BLOCKS)


def test_what_the_readme_shows_runs(tmp_path: Path) -> None:
    """All blocks in their order in one folder, as a reader would."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = {key: value for key, value in os.environ.items() if key != "VRAMSCOPE_DB"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment["OMP_NUM_THREADS"] = "1"

    for number, block in enumerate(block for block in BLOCKS if block.runs):
        script = tmp_path / f"block_{number}.{block.language}"
        script.write_text(block.text)
        command = [sys.executable, "-W", "error"] if block.language == "python" else ["bash", "-ex"]
        done = subprocess.run(
            [*command, script], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"

    assert (tmp_path / "my-run.html").stat().st_size > 1000
    assert (tmp_path / "vramscope.db").exists()
    assert (tmp_path / "runs.db").exists()


def test_every_line_of_the_books_is_explained() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))

    assert explained == {*MEMORY_LINES, "device_used"}


def test_the_figures_and_pictures_are_those_on_disk() -> None:
    spec = importlib.util.spec_from_file_location("fill_readme", ROOT / "docs" / "fill_readme.py")
    assert spec is not None
    assert spec.loader is not None
    fill_readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fill_readme)

    assert fill_readme.filled(README) == README, "run docs/fill_readme.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    local = [target.split("#")[0] for target in linked if not target.startswith(("http", "#"))]

    missing = [target for target in local if target and not (page.parent / target).exists()]

    assert missing == []


def test_every_example_runs() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "VRAMSCOPE_DB"}
    environment["OMP_NUM_THREADS"] = "1"

    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "run_all.py"],
        env=environment,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("status 0") == len(list((ROOT / "examples").glob("*.py"))) - 1
    assert "RuntimeWarning: vramscope" not in done.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda f: f.name)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60
