"""An unchanged script with the hook: it sees itself as ever, and records the same classes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from vramscope.storage.reader import RunReader
from vramscope.storage.records import RunStatus, StepRecord

LOOP = """
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
assert "torch" not in sys.modules
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
optimizer = torch.optim.AdamW(model.parameters())
criterion = nn.MSELoss()
{attach}
for _ in range(4):
    x = torch.randn(16, 64)
    loss = criterion(model(x), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
{detach}
"""


def run(folder: Path, *arguments: str, launcher: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable]
    if launcher:
        command += ["-m", "vramscope.profiler.launch", "--db", str(folder / "runs.db")]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def script(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(text)
    return name


def steps_of(store: Path) -> list[StepRecord]:
    with RunReader(store) as reader:
        info = reader.runs().rows[0].info
        return list(reader.iter_steps(info.id, reader.devices(info.id)[0].id))  # type: ignore[arg-type]


def test_an_unchanged_script_records_what_the_explicit_hook_records(tmp_path: Path) -> None:
    plain = script(tmp_path, LOOP.format(attach="", detach=""))
    assert run(tmp_path, plain).returncode == 0
    hooked = script(
        tmp_path,
        LOOP.format(
            attach="from vramscope.profiler import MemoryProfiler\n"
            "profiler = MemoryProfiler(model, optimizer, store='hook.db').attach()",
            detach="profiler.close()",
        ),
        "hooked.py",
    )
    result = run(tmp_path, hooked, launcher=False)
    assert result.returncode == 0, result.stderr
    unchanged, explicit = steps_of(tmp_path / "runs.db"), steps_of(tmp_path / "hook.db")
    assert len(unchanged) == 4
    assert [(s.end, s.peak, s.peak_phase) for s in unchanged] == [
        (s.end, s.peak, s.peak_phase) for s in explicit
    ]


@pytest.mark.parametrize(
    ("ending", "code", "status", "said"),
    [
        ("", 0, RunStatus.COMPLETED, None),
        ("raise ValueError('boom')", 1, RunStatus.FAILED, "ValueError: boom"),
        ("sys.exit(3)", 3, RunStatus.FAILED, "The program exited with 3."),
        ("sys.exit(0)", 0, RunStatus.COMPLETED, None),
        ("raise KeyboardInterrupt", 130, RunStatus.INTERRUPTED, "Interrupted from the keyboard."),
        (
            "raise torch.OutOfMemoryError('no more')",
            1,
            RunStatus.OUT_OF_MEMORY,
            "OutOfMemoryError: no more",
        ),
    ],
)
def test_a_script_ends_as_it_would_without_us(
    tmp_path: Path, ending: str, code: int, status: RunStatus, said: str | None
) -> None:
    name = script(tmp_path, LOOP.format(attach="", detach=ending))
    result = run(tmp_path, name)
    assert result.returncode == code
    with RunReader(tmp_path / "runs.db") as reader:
        (row,) = reader.runs().rows
    assert (row.info.status, row.info.status_message) == (status, said)
    assert row.info.name == "train"
    if ending.startswith("raise"):
        assert f'File "{name}", line' in result.stderr
        assert "runpy" not in result.stderr
        assert "launch.py" not in result.stderr


def test_a_script_sees_itself_as_ever(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7")
    name = script(
        tmp_path,
        "import sys, beside\nprint(__name__, sys.argv, beside.VALUE, 'torch' in sys.modules)",
    )
    result = run(tmp_path, name, "--lr", "3")
    assert result.stdout.strip() == f"__main__ ['{name}', '--lr', '3'] 7 False"
    assert "nothing was recorded" in result.stderr
    assert not (tmp_path / "runs.db").exists()


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "Interrupted from the keyboard."),
        (signal.SIGTERM, -signal.SIGTERM, "Terminated (SIGTERM)."),
    ],
)
def test_a_signal_in_the_middle_of_a_step(
    tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
    endless = LOOP.replace("range(4)", "__import__('itertools').count()")
    name = script(
        tmp_path,
        endless.format(attach="", detach="").replace("x = ", "print('step', flush=True); x = "),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "vramscope.profiler.launch", "--db", "runs.db", name],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    for _ in range(6):
        assert process.stdout.readline() == "step\n"
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == code
    with RunReader(tmp_path / "runs.db") as reader:
        (row,) = reader.runs().rows
    assert (row.info.status, row.info.status_message) == (RunStatus.INTERRUPTED, said)
    assert len(steps_of(tmp_path / "runs.db")) >= 5


def test_a_script_with_a_profiler_of_its_own_is_recorded_once(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        LOOP.format(
            attach="from vramscope.profiler import MemoryProfiler\n"
            "profiler = MemoryProfiler(model, optimizer, store='runs.db').attach()",
            detach="profiler.close()",
        ),
    )
    result = run(tmp_path, name)
    assert result.returncode == 0, result.stderr
    with RunReader(tmp_path / "runs.db") as reader:
        assert reader.runs().total == 1
    assert len(steps_of(tmp_path / "runs.db")) == 4


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, "trian.py")
    assert result.returncode == 2
    assert "there is no script 'trian.py'" in result.stderr


def test_ranks_of_one_launch_are_one_run(tmp_path: Path) -> None:
    name = script(tmp_path, LOOP.format(attach="", detach=""))
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29123",
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-m", "vramscope.profiler.launch", "--db", "runs.db", name],
                cwd=tmp_path,
                env=environment,
                stderr=subprocess.PIPE,
            )
        )
    assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    for process in ranks:
        assert process.stderr is not None
        process.stderr.close()
    with RunReader(tmp_path / "runs.db") as reader:
        (row,) = reader.runs().rows
        devices = reader.devices(row.info.id)
        assert [d.rank for d in devices] == [0, 1]
        assert row.info.world_size == 2
        assert row.info.status is RunStatus.COMPLETED
        for device in devices:
            assert reader.last_step(row.info.id, device.id).step == 4  # type: ignore[arg-type, union-attr]
