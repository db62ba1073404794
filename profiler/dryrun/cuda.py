"""What a GPU keeps or chooses differently from a CPU, put in the CPU's place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Inside, fake CPU tensors are saved and stepped over as CUDA tensors are."""
    yield
