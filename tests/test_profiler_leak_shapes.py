"""A leak names the tensors that it is made of, and none that have nothing to do with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from vramscope.profiler import MemoryProfiler, growth_events
from vramscope.profiler.growth_events import Growth, Subject
from vramscope.profiler.leak_shapes import Leftover, grown, leftovers, with_shapes
from vramscope.profiler.replay import DetailLog, TensorGroup
from vramscope.profiler.tracker import LogEntry, TrackedStorage
from vramscope.storage.reader import RunReader
from vramscope.storage.records import EventKind, MemoryClass

KIB = 1024


def group(
    count: int,
    *shape: int,
    memory_class: MemoryClass = MemoryClass.ACTIVATIONS,
    dtype: torch.dtype = torch.float32,
) -> TensorGroup:
    numbers = torch.Size(shape).numel()
    return TensorGroup(memory_class, shape, dtype, count, count * numbers * dtype.itemsize)


def left(*groups: TensorGroup) -> list[Leftover]:
    return [Leftover(g) for g in groups]


def leak(slope: int, memory_class: MemoryClass | None = MemoryClass.ACTIVATIONS) -> Growth:
    return growth_events.leak(
        Subject(memory_class), slope=slope, grown=8 * slope, first_step=1, step=9, full_at_step=None
    )


def test_what_there_is_more_of_has_the_difference() -> None:
    before = [group(4, 64, 256), group(1, 64, 10), group(9, 3)]
    after = [group(5, 64, 256), group(3, 64, 10), group(2, 3), group(1, 7, dtype=torch.float16)]
    assert grown(before, after) == (
        group(1, 64, 256),
        group(2, 64, 10),
        group(1, 7, dtype=torch.float16),
    )
    assert grown(after, after) == ()


def test_the_same_shape_of_another_class_or_dtype_is_another_group() -> None:
    before = [group(1, 8)]
    others = (
        group(1, 8, memory_class=MemoryClass.TEMPORARIES),
        group(1, 8, dtype=torch.bfloat16),
    )
    assert set(grown(before, [*before, *others])) == set(others)


def test_a_leak_names_its_tensors() -> None:
    named = with_shapes(leak(192 * KIB), left(group(3, 64, 256)))
    assert named.message == (
        "activations grow by 192 KiB a step since step 1 (1.5 MiB so far); "
        "each step leaves 3 tensors of 64×256 float32"
    )


def test_two_shapes_are_named_and_no_more() -> None:
    groups = [group(2, 64, 256), group(1, 64, 128), group(1, 64, 2)]
    message = with_shapes(leak(160 * KIB), left(*groups)).message
    assert message.endswith("2 tensors of 64×256 float32 and 1 tensor of 64×128 float32")


@pytest.mark.parametrize(
    ("growth", "groups"),
    [
        (leak(192 * KIB), []),
        (leak(192 * KIB), [group(1)]),
        (leak(192 * KIB), [group(3, 64, 256, memory_class=MemoryClass.TEMPORARIES)]),
        (leak(192 * KIB, None), [group(3, 64, 256, memory_class=MemoryClass.GRADIENTS)]),
        (
            growth_events.jump(Subject(MemoryClass.ACTIVATIONS), step=2, before=0, after=KIB),
            [group(3, 64, 256)],
        ),
    ],
    ids=["nothing grew", "too little", "another class", "a class that is counted", "no leak"],
)
def test_tensors_that_do_not_make_up_the_leak_are_not_named(
    growth: Growth, groups: list[TensorGroup]
) -> None:
    assert with_shapes(growth, left(*groups)) is growth


def test_memory_without_a_class_is_named_by_what_no_census_counts() -> None:
    groups = [
        group(9, 64, 256, memory_class=MemoryClass.GRADIENTS),
        group(1, memory_class=MemoryClass.TEMPORARIES, dtype=torch.float64),
    ]
    assert with_shapes(leak(8, None), left(*groups)).message.endswith(
        "each step leaves 1 tensor of one number float64"
    )


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (("head",), "1 tensor of 64×256 float32 (made in module head)"),
        (("h.0", "h.1"), "1 tensor of 64×256 float32 (made in module h.0, h.1)"),
        (("h.0", "h.1", "h.2"), "1 tensor of 64×256 float32 (made in module h.0, h.1, …)"),
    ],
)
def test_the_modules_that_made_them_are_named(modules: tuple[str, ...], said: str) -> None:
    named = with_shapes(leak(64 * KIB), [Leftover(group(1, 64, 256), modules)])
    assert named.message.endswith(f"; each step leaves {said}")


def test_modules_are_those_of_tensors_that_stay() -> None:
    """Of three tensors of a shape the first dies, and the last was made outside any module."""
    device = torch.device("cpu")
    storages = [TrackedStorage(n, 32, (8,), torch.float32, device) for n in range(3)]
    for sequence, storage in enumerate(storages):
        storage.memory_class = MemoryClass.ACTIVATIONS
        storage.sequence = sequence
    entries = [LogEntry(s, 1, 0) for s in storages] + [LogEntry(storages[0], -1, 1)]
    names = ("dead", "kept", "").__getitem__
    found = leftovers([group(2, 8), group(1, 9)], DetailLog([], entries, []), device, names)
    assert found == (Leftover(group(2, 8), ("kept",)), Leftover(group(1, 9)))


def test_a_real_leak_names_its_tensors(store_path: Path) -> None:
    """Outputs that are kept, of the second of two layers; the first one's come and go."""
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 48))
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    with MemoryProfiler(model, optimizer, store=store_path):
        for _ in range(20):
            output = model(torch.randn(64, 32))
            kept.append(output.detach())
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    with RunReader(store_path) as reader:
        events = reader.events(reader.runs().rows[0].info.id)
    leaks = [e.message for e in events if e.kind is EventKind.LEAK]
    assert leaks
    said = "; each step leaves 1 tensor of 64×48 float32 (made in module 2)"
    assert all(m.endswith(said) for m in leaks)
