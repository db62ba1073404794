"""FSDP2 on eight ranks that are not there, through torch's fake process group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.dryrun import dry_run
from vramscope.storage.reader import RunReader

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")

RANKS, WIDTH, LAYERS, STEPS = 8, 64, 4, 3
WEIGHTS = LAYERS * WIDTH * WIDTH * 4


@pytest.fixture
def mesh() -> Iterator[Any]:
    distributed.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=RANKS)
    try:
        yield init_device_mesh("cpu", (RANKS,))
    finally:
        distributed.destroy_process_group()


def build() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, foreach=False)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(16, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_ranks_share_is_what_is_measured(mesh: Any, store_path: Path) -> None:
    def shard(model: nn.Module) -> None:
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    told = dry_run(build, step, build_optimizer=adam, prepare=shard, device="cpu", steps=STEPS).step
    assert told.end.parameters == WEIGHTS // RANKS
    assert told.end.gradients == WEIGHTS // RANKS
    assert told.peak.communication

    model = build()
    shard(model)
    optimizer = adam(model.parameters())
    config = ProfilerConfig(detail_first=STEPS, predict=False)
    with MemoryProfiler(model, optimizer, store=store_path, config=config) as profiler:
        for _ in range(STEPS):
            step(model, optimizer)
    with RunReader(store_path) as reader:
        run = profiler.run_id or ""
        *_, measured = reader.iter_steps(run, reader.devices(run)[0].id or 0)
    for name in ("parameters", "gradients", "optimizer_state", "buffers", "communication"):
        assert getattr(told.end, name) == getattr(measured.end, name), name
    assert told.peak_phase is measured.peak_phase
    assert told.peak.allocated == pytest.approx(measured.peak.allocated, rel=0.01)
