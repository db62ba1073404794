"""A dry run of plain torch models: what it tells, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import nn
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.dryrun import dry_run
from vramscope.storage.reader import RunReader
from vramscope.storage.records import MemoryClass, PeakGroup, Phase, RunStatus, TimelinePoint

WIDTH, BATCH = 64, 32


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, foreach=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(BATCH, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_nothing_is_allocated() -> None:
    def large() -> nn.Module:
        return nn.Linear(1 << 20, 1 << 20, bias=False)  # 4 TiB

    def one(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.randn(1, 1 << 20)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    told = dry_run(large, one, build_optimizer=adam)
    assert told.step.end.parameters == 4 << 40
    assert told.step.end.gradients == 4 << 40
    assert told.step.peak.temporaries is not None
    assert told.step.peak.temporaries >= 4 << 40


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_record_of_a_measured_run_is_there(device: str) -> None:
    told = dry_run(build, step, build_optimizer=adam, device=device)  # type: ignore[arg-type]
    assert told.step.step == 2
    assert told.step.detail
    assert [p.phase for p in told.phases][:2] == [Phase.FORWARD, Phase.BACKWARD]
    assert {m.module for m in told.modules} == {"1", "3"}
    assert sum(m.activations for m in told.modules) == 2 * BATCH * WIDTH * 4
    instants = [r for r in told.records if isinstance(r, TimelinePoint)]
    assert max(i.use.allocated or 0 for i in instants) == told.step.peak.allocated
    groups = [r for r in told.records if isinstance(r, PeakGroup)]
    assert MemoryClass.PARAMETERS in {g.memory_class for g in groups}
    assert told.step.peak.unattributed == 0


def test_it_is_the_measured_run(store_path: Path) -> None:
    told = dry_run(build, step, build_optimizer=adam, device="cpu")
    model = build()
    optimizer = adam(model.parameters())
    config = ProfilerConfig(detail_first=2, predict=False)
    with MemoryProfiler(model, optimizer, store=store_path, config=config) as profiler:
        for _ in range(2):
            step(model, optimizer)
    with RunReader(store_path) as reader:
        run = profiler.run_id or ""
        *_, measured = reader.iter_steps(run, reader.devices(run)[0].id or 0)
    assert told.step.end == measured.end
    assert told.step.peak_phase is measured.peak_phase
    gap = (measured.peak.allocated or 0) - (told.step.peak.allocated or 0)
    assert 0 <= gap <= 100  # numbers that a CPU wraps in tensors of their own


def test_blocks_are_rounded_as_on_a_gpu() -> None:
    exact = dry_run(build, step, build_optimizer=adam, device="cpu").step.end
    rounded = dry_run(build, step, build_optimizer=adam, device="cuda").step.end
    assert exact.parameters == 2 * (WIDTH * WIDTH + WIDTH) * 4
    assert rounded.parameters == 2 * (WIDTH * WIDTH * 4 + 512)


def test_it_is_kept_as_a_run(store_path: Path) -> None:
    told = dry_run(build, step, build_optimizer=adam)
    run = told.save(store_path, name="how it would be")
    with RunReader(store_path) as reader:
        info = reader.run(run)
        (device,) = reader.devices(run)
        (kept,) = reader.iter_steps(run, device.id or 0)
    assert (info.name, info.status, device.kind) == (
        "how it would be",
        RunStatus.COMPLETED,
        "cuda",
    )
    assert kept.peak == told.step.peak


def test_without_an_optimizer_it_is_inference() -> None:
    def infer(model: nn.Module) -> None:
        with torch.no_grad():
            model(torch.randn(BATCH, WIDTH))

    told = dry_run(build, infer, device="cpu")
    assert told.step.peak.gradients == 0
    assert told.step.peak.activations == 0
    # The input, and of the layers in turn what goes in and what comes out.
    assert told.step.peak.temporaries == 3 * BATCH * WIDTH * 4


def test_numbers_are_answered_where_a_loop_asks_for_them() -> None:
    asked: list[float] = []

    def curious(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        mask = torch.ones(4, 8, dtype=torch.long)
        mask[1:, 6:] = 0
        asked.append(mask.sum().item())
        asked.append(len(mask.nonzero()))
        asked.append(float((mask == 1).all()))
        loss = model(torch.randn(BATCH, WIDTH)).sum()
        asked.append(loss.item())
        loss.backward()
        optimizer.step()

    dry_run(build, curious, build_optimizer=adam, steps=1)
    assert asked == [26, 26, 0.0, 1.0]


def test_hooks_and_modes_are_gone_after_an_error() -> None:
    def broken(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.randn(BATCH, WIDTH)).sum().backward()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        dry_run(build, broken, build_optimizer=adam)
    assert float(torch.ones(2).sum()) == 2.0
    real = torch.ones(2, requires_grad=True)
    real.sum().backward()
    assert real.grad is not None


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match="device must be one of cpu, cuda; got 'tpu'"):
        dry_run(build, step, device="tpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        dry_run(build, step, steps=0)
    with pytest.raises(ValueError, match="has not stepped the optimizer"):
        dry_run(build, lambda model, optimizer: None, build_optimizer=adam)
    with pytest.raises(TypeError, match=r"must return a torch.nn.Module, got int"):
        dry_run(lambda: 1, step)  # type: ignore[type-var]
