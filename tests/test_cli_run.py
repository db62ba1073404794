"""``vramscope run``: what reaches the script, and what comes back from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-c", "from vramscope.app.cli import main; main()", "run"]


def start(*arguments: object, folder: Path, **options: Any) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "VRAMSCOPE_DB"}
    return subprocess.Popen(
        [*COMMAND, *(str(argument) for argument in arguments)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("before", [("--name", "n"), ("--",)])
def test_all_that_follows_the_script_is_its_own(before: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import json, os, sys\n"
        "print(json.dumps([sys.argv, __name__, os.environ['VRAMSCOPE_DB']]))\n"
    )
    arguments = [
        "--lr",
        "3",
        "--help",
        "--name",
        "x",
        "--db",
        "y",
        "--",
        "--json",
        "-o",
        "train.py",
    ]
    process = start(*before, "train.py", *arguments, folder=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    argv, name, store = json.loads(out)
    assert argv == ["train.py", *arguments]
    assert name == "__main__"
    assert store == f"sqlite:///{tmp_path / 'vramscope.db'}"


def test_the_exit_code_is_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.exit(77)")
    process = start("train.py", folder=tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == 77


def test_the_traceback_is_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise RuntimeError('my own fault')")
    process = start("train.py", folder=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "RuntimeError: my own fault" in err
    assert "vramscope/app" not in err


def test_signals_reach_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "open('ready', 'w').close()\n"
        "time.sleep(60)\n"
    )
    process = start("train.py", folder=tmp_path)
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 9


@pytest.mark.parametrize(("script", "word"), [("none.py", "is not there"), (".", "is a folder")])
def test_a_script_that_is_not_there(
    script: str,
    word: str,
    vramscope: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = vramscope("run", script)
    assert shown.code == 14
    assert word in shown.err
    assert os.listdir(tmp_path) == []


def test_a_store_that_cannot_be_made_is_refused_before_the_script(
    vramscope: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w').close()")
    shown = vramscope("run", "--db", tmp_path / "no" / "x.db", tmp_path / "train.py")
    assert shown.code == 9
    assert "there is no folder" in shown.err
    assert not (tmp_path / "ran").exists()


def test_a_password_is_not_among_the_arguments(
    vramscope: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    seen: dict[str, Any] = {}

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        seen.update(arguments=arguments, url=environment["VRAMSCOPE_DB"])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr("vramscope.app.cli.run.check_recordable", lambda url: None)
    url = "postgresql://ada:secret@host/db"
    assert vramscope("run", "--db", url, "--name", "n", tmp_path / "train.py", "-x").code == 0
    assert "secret" not in " ".join(seen["arguments"])
    assert "secret" in seen["url"]
    expected = ["-m", "vramscope.profiler.launch", "--name", "n", "--detail-every", "50"]
    expected += [str(tmp_path / "train.py"), "-x"]
    assert seen["arguments"][1:] == expected


@pytest.mark.slow
def test_an_unchanged_loop_is_recorded(vramscope: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(64, 64)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(4):\n"
        "    model(torch.randn(8, 64)).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    process = start("--name", "tiny", "train.py", folder=tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    store = tmp_path / "vramscope.db"
    document = json.loads(vramscope("show", "tiny", "--db", store, "--json").out)
    assert document["run"]["status"] == "completed"
    last = document["devices"][0]["last_step"]
    assert last["step"] == 4
    assert last["end"]["parameters"] == 4 * (64 * 64 + 64)
