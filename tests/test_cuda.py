"""What only a CUDA device can show; ``make gpu-check`` runs these on one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.demo.gpt import GPT, GPTConfig
from vramscope.storage.reader import RunReader
from vramscope.storage.records import StepRecord

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

EVERY_STEP = ProfilerConfig(detail_every=1)


def train(
    store: Path, config: ProfilerConfig, steps: int = 4, autocast: bool = False
) -> tuple[list[StepRecord], list[int], list[float]]:
    """Trains a small GPT; returns its records, allocated bytes at step ends, and losses."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(n_layer=4, n_embd=512, n_head=8, block_size=256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    allocated, losses = [], []
    with MemoryProfiler(model, optimizer, store=store, config=config) as profiler:
        for _ in range(steps):
            x = torch.randint(0, 256, (4, 256), device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = model(x, x)[1]
            loss.backward()
            optimizer.step()
            allocated.append(torch.cuda.memory_allocated())
            losses.append(loss.item())
            optimizer.zero_grad()
        run_id = profiler.run_id
    with RunReader(store) as reader:
        assert run_id is not None
        (device,) = reader.devices(run_id)
        assert device.kind == "cuda"
        assert device.uuid
        return list(reader.iter_steps(run_id, device.id)), allocated, losses  # type: ignore[arg-type]


@pytest.mark.parametrize("autocast", [False, True])
def test_the_books_close_at_step_ends_and_at_peaks(store_path: Path, autocast: bool) -> None:
    steps, allocated, _ = train(store_path, EVERY_STEP, autocast=autocast)
    assert [s.end.allocated for s in steps] == allocated
    for step in steps[1:]:
        assert abs(step.end.unattributed or 0) <= 0.001 * (step.end.allocated or 0)
        assert abs(step.peak.unattributed or 0) <= 0.02 * (step.peak.allocated or 0)
        assert (step.peak.reserved or 0) >= (step.peak.allocated or 0)
        assert (step.device_used or 0) >= (step.peak.reserved or 0)


def test_between_detail_steps_the_peak_is_the_allocators(store_path: Path) -> None:
    steps, _, _ = train(store_path, ProfilerConfig(detail_first=3, detail_every=0), steps=8)
    assert {s.peak.allocated for s in steps[4:]} == {steps[3].peak.allocated}
    assert all(s.carried for s in steps[4:])


def test_the_users_peak_counter_still_answers(store_path: Path) -> None:
    torch.cuda.reset_peak_memory_stats()
    steps, _, _ = train(store_path, EVERY_STEP)
    assert torch.cuda.max_memory_allocated() >= max(s.peak.allocated or 0 for s in steps)


def test_the_hook_changes_no_loss(store_path: Path) -> None:
    _, _, first = train(store_path, EVERY_STEP, steps=10)
    _, _, second = train(store_path, ProfilerConfig(detail_first=0, detail_every=0), steps=10)
    assert first == second


def test_what_the_driver_counts_holds_what_the_allocator_does(store_path: Path) -> None:
    first, *_ = train(store_path, EVERY_STEP, steps=1)[0]
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info
        (device,) = reader.devices(run.id)
    if first.device_used is None:
        pytest.skip("the driver does not say what is in use on this device")
    assert run.environment["nvidia_driver"]
    assert device.unified is False
    assert (device.driver_total_bytes or 0) >= first.device_used
    parts = (
        first.end.reserved,
        first.outside_allocator,
        first.other_processes,
        first.driver_reserved,
    )
    assert sum(part or 0 for part in parts) <= first.device_used + 64 * 2**20
