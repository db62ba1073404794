"""Truth about memory on the CPU: a counting allocator under torch, exact to the byte.

    with counting() as memory:
        ...
        memory.current            # bytes alive now, of what was allocated since it was installed
        peak = memory.peak()      # highest since it was installed, or since the mark was reset
        memory.reset()

It is compiled on first use (a few seconds, kept under ``build/``) with nothing but ``g++`` and the
headers that come with torch. It counts everything in the process that torch's CPU allocator hands
out: parameters, inputs, temporaries, and workspaces inside kernels that never become tensors.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

SOURCE = Path(__file__).with_suffix(".cpp")
CACHE = Path(__file__).resolve().parent.parent / "build" / "counting_allocator"


class CannotCount(RuntimeError):
    """The counting allocator cannot be built or installed here; the message says why."""


class CountingAllocator:
    """What the compiled counter knows. There is one a process; :func:`counting` hands it out."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name in ("current", "peak", "allocations"):
            getattr(library, f"counting_{name}").restype = ctypes.c_int64
        self._library = library
        self._marks: int = library.counting_marks()
        self._used = 1

    @property
    def current(self) -> int:
        """Bytes alive now."""
        return int(self._library.counting_current())

    @property
    def allocations(self) -> int:
        """How many blocks were handed out so far."""
        return int(self._library.counting_allocations())

    def peak(self, mark: int = 0) -> int:
        """Highest :attr:`current` since the mark was reset."""
        return int(self._library.counting_peak(mark))

    def reset(self, mark: int = 0) -> None:
        """Begins a new interval for the peak of this mark; other marks go on."""
        self._library.counting_reset(mark)

    def new_mark(self) -> int:
        """A further peak, to be read and reset independently of the others."""
        if self._used == self._marks:
            raise CannotCount(f"all {self._marks} marks of the counting allocator are in use")
        self._used += 1
        mark = self._used - 1
        self.reset(mark)
        return mark


@contextmanager
def counting() -> Iterator[CountingAllocator]:
    """Counts what torch allocates on the CPU inside the block.

    Raises:
        CannotCount: There is no ``g++``, it failed, or torch's allocator cannot be wrapped.
    """
    library = ctypes.CDLL(str(build()))
    if library.counting_install() != 0:
        raise CannotCount("another CPU allocator is installed that cannot be wrapped")
    memory = CountingAllocator(library)
    memory.reset()
    try:
        yield memory
    finally:
        library.counting_remove()


def build(cache: Path = CACHE) -> Path:
    """Compiles the counter if that was not done for this torch and source; returns the library.

    Raises:
        CannotCount: There is no ``g++``, or it failed.
    """
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = cache / f"counting_allocator-{key}.so"
    if library.exists():
        return library
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise CannotCount("no C++ compiler: install g++, or name one with CXX")
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = cache / f"{library.stem}.{os.getpid()}.tmp"
    command = [
        compiler, "-shared", "-fPIC", "-O2", "-std=c++20",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{path}" for path in include_paths()),
        str(SOURCE), "-o", str(unfinished),
        *(f"-L{path}" for path in library_paths()), "-lc10",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotCount(f"{compiler} could not compile {SOURCE.name}:\n{done.stderr[-2000:]}")
    unfinished.replace(library)  # at once, so that a test beside this one sees all or nothing
    return library
