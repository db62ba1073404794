"""What an out-of-memory error tells: read where it says so, left unknown where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.endings import Request, out_of_memory_behind, request_of
from vramscope.storage.reader import RunReader
from vramscope.storage.records import EventKind, Phase, RunStatus

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


def test_the_cpu_allocator_is_known_by_its_words(store_path: Path) -> None:
    """It has no error type of its own; here it really runs out."""

    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.empty(10**13)

    model = nn.Sequential(nn.Linear(4, 4), Asks())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        with MemoryProfiler(model, optimizer, store=store_path):
            model(torch.ones(2, 4)).sum().backward()

    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        train()
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info
        (event,) = [e for e in reader.events(run.id) if e.kind is EventKind.OOM]
    assert run.status is RunStatus.OUT_OF_MEMORY
    assert event.bytes == 4 * 10**13
    assert event.phase is Phase.FORWARD


def test_the_error_behind_another_is_asked() -> None:
    inner = torch.OutOfMemoryError(SAID.format(size="2.00 GiB", card=0))
    outer = RuntimeError("training failed")
    outer.__cause__ = inner
    found = out_of_memory_behind(outer)
    assert found is not None
    assert request_of(found).bytes == 2 * 2**30


@pytest.mark.parametrize(("card", "known"), [(3, True), (4, False)])
def test_the_event_says_how_much_was_asked_for_and_where(
    store_path: Path, card: int, known: bool
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = ProfilerConfig(predict=False)

    def train() -> None:
        with MemoryProfiler(model, optimizer, store=store_path, config=config) as profiler:
            model(torch.ones(1, 4)).sum().backward()
            profiler._devices[torch.device("cuda", 3)] = 0  # as if the model lay there
            raise torch.OutOfMemoryError(SAID.format(size="1.50 GiB", card=card))

    with pytest.raises(torch.OutOfMemoryError):
        train()
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info
        (event,) = reader.events(run.id)
        (device,) = reader.devices(run.id)
    assert event.kind is EventKind.OOM
    assert event.bytes == 3 * 2**29
    assert event.device == (device.id if known else None)
    assert run.environment["nvidia_driver"] is None  # a CPU has none
