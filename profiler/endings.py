"""How a run ends, recognised by the type of the error.

Only torch's CPU allocator has no type of its own for running out: it is known by its fixed words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from vramscope.storage.records import RunStatus

_OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
# As c10/core/impl/alloc_cpu.cpp writes them, in a plain RuntimeError.
_ON_CPU = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): "
    r"you tried to allocate (\d+) bytes"
)

# As c10/cuda/CUDACachingAllocator.cpp of torch 2.7 to 2.14 writes them.
_SIZE = re.compile(r"Tried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)\b")
_CARD = re.compile(r"\bGPU (\d{1,3}) has a total capacity\b")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def ending_of(error: BaseException | None) -> tuple[RunStatus, str | None]:
    """How a run ended, and a sentence on why, from the exception that ended it."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return RunStatus.COMPLETED, None
    if isinstance(error, KeyboardInterrupt):
        return RunStatus.INTERRUPTED, "Interrupted from the keyboard."
    if isinstance(error, SystemExit):
        return RunStatus.FAILED, f"The program exited with {error.code!r}."
    text = f"{type(error).__name__}: {error}".strip()
    if out_of_memory_behind(error) is not None:
        return RunStatus.OUT_OF_MEMORY, text
    return RunStatus.FAILED, text


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether this very error says that there is no memory left."""
    if isinstance(error, _OUT_OF_MEMORY):
        return True
    return type(error) is RuntimeError and _ON_CPU.search(str(error)) is not None


def out_of_memory_behind(error: BaseException | None) -> BaseException | None:
    """The running out of memory that an error is, or was raised because of."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if is_out_of_memory(error):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


@dataclass(frozen=True, slots=True)
class Request:
    """The allocation that there was no memory for, as far as the error's text tells it."""

    bytes: int | None = None
    """To three digits or so on a GPU: torch rounds it for reading."""
    device: torch.device | None = None


def request_of(error: BaseException) -> Request:
    """Reads off an out-of-memory error of torch's allocator what was asked for, and where."""
    text = str(error)
    on_cpu = _ON_CPU.search(text) if type(error) is RuntimeError else None
    if on_cpu is not None:
        return Request(int(on_cpu[1]), torch.device("cpu"))
    if not isinstance(error, torch.OutOfMemoryError):
        return Request()
    size, card = _SIZE.search(text), _CARD.search(text)
    return Request(
        None if size is None else round(float(size[1]) * _UNITS[size[2]]),
        None if card is None else torch.device("cuda", int(card[1])),
    )


def dump_snapshot(folder: str, run_id: str, rank: int) -> str | None:
    """Saves torch's own allocator snapshot, if a history was being recorded.

    Returns:
        The file's path, or ``None`` where there was no history to save.
    """
    memory = torch.cuda.memory
    if not torch.cuda.is_initialized():
        return None
    if not any(memory._snapshot()["device_traces"]):
        return None
    path = Path(folder) / f"{run_id}-rank{rank}.pickle"
    path.parent.mkdir(parents=True, exist_ok=True)
    memory._dump_snapshot(str(path))
    return str(path)
