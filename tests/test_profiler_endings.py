"""What an out-of-memory error tells: read where it says so, left unknown where it does not."""

from __future__ import annotations

import pytest
import torch
from vramscope.profiler.endings import Request, out_of_memory_behind, request_of

SAID = (
    "CUDA out of memory. Tried to allocate {size}. GPU {card} has a total capacity of 79.15 GiB of "
    "which 1.06 GiB is free. Process 12 has 78.08 GiB memory in use. Of the allocated memory "
    "70.00 GiB is allocated by PyTorch, and 7.50 GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("size", "bytes_"),
    [
        ("2.00 GiB", 2 * 2**30),
        ("1.50 GiB", 3 * 2**29),
        ("20.00 MiB", 20 * 2**20),
        ("768.50 KiB", 786_944),
        ("512 bytes", 512),
        ("a lot", None),
    ],
)
def test_what_was_asked_for_is_read_off_the_error(size: str, bytes_: int | None) -> None:
    error = torch.OutOfMemoryError(SAID.format(size=size, card=3))
    assert request_of(error) == Request(bytes_, torch.device("cuda", 3))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(),
        torch.OutOfMemoryError("HIP: no memory on GPU x; Tried to allocate -3 GiB"),
        MemoryError("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"),
        RuntimeError("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"),
    ],
    ids=["no text", "another text", "not torch's", "another error"],
)
def test_what_it_does_not_say_is_unknown(error: BaseException) -> None:
    assert request_of(error) == Request()


def test_the_error_behind_another_is_asked() -> None:
    inner = torch.OutOfMemoryError(SAID.format(size="2.00 GiB", card=0))
    outer = RuntimeError("training failed")
    outer.__cause__ = inner
    found = out_of_memory_behind(outer)
    assert found is not None
    assert request_of(found).bytes == 2 * 2**30
