"""Who this process is in a run: rank, world, host, and a run id that all ranks agree on."""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import secrets
import socket
import sys
from pathlib import Path

import torch

_launches_runs = itertools.count()


def host_name() -> str:
    """This machine's name."""
    return socket.gethostname()


def rank_and_world() -> tuple[int, int]:
    """Rank and number of processes, as torch.distributed or the launcher says."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return _integer("RANK", 0), max(1, _integer("WORLD_SIZE", 1))


def run_id(world_size: int) -> str:
    """Twelve hexadecimal digits, the same on every rank of one launch.

    ``VRAMSCOPE_RUN_ID`` wins. Ranks of one launch share the launcher's address and, on one
    host, its process; a launch over several hosts needs the launcher's own run id to differ
    from launch to launch (``torchrun --rdzv-id``). A launch's second run has an id of its own, as
    long as every rank begins both.
    """
    given = os.environ.get("VRAMSCOPE_RUN_ID")
    if given:
        return given
    if world_size <= 1:
        return secrets.token_hex(6)
    parts = [
        os.environ.get(name, "")
        for name in (
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
        )
    ]
    if _integer("LOCAL_WORLD_SIZE", world_size) == world_size:
        parts += [str(os.getppid()), _started(os.getppid())]
    parts.append(str(next(_launches_runs)))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def default_run_name() -> str:
    """The script's name without its ending, or ``python`` in an interactive session."""
    script = Path(sys.argv[0] or "python")
    if script.name == "__main__.py":
        return script.parent.name
    return script.stem if script.stem not in ("", "-c") else "python"


def environment() -> dict[str, str | int | float | bool | None]:
    """What the run ran on: versions, host, command line."""
    return {
        "host": host_name(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "command": " ".join(sys.argv),
        "directory": str(Path.cwd()),
    }


def _integer(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return default


def _started(pid: int) -> str:
    """When a process began, in clock ticks since boot: process numbers are used again."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
