"""Faults that people met in tools like this one, where no other file of loops has the kind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.storage.reader import RunReader
from vramscope.storage.records import MemoryUse, Phase, PredictionRecord, StepRecord

EVERY_STEP = ProfilerConfig(detail_every=1, predict=False)


def read(path: Path) -> tuple[list[StepRecord], list[MemoryUse], tuple[PredictionRecord, ...]]:
    """Steps, the last step's backward peaks, and predictions of the run's first device."""
    with RunReader(path) as reader:
        run = reader.runs().rows[0].info.id
        device = reader.devices(run)[0].id
        assert device is not None
        steps = list(reader.iter_steps(run, device))
        phases = reader.phases(run, device, steps[-1].step)
        backward = [p.peak for p in phases if p.phase is Phase.BACKWARD]
        return steps, backward, reader.predictions(run)


# --- Nothing is kept alive ---


def live_bytes() -> int:
    """Bytes of every storage that a living tensor of this process holds."""
    storages = {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes()
        for t in gc.get_objects()
        if issubclass(type(t), torch.Tensor)
    }
    return sum(storages.values())


def live_bytes_after_each_step(store: Path | None) -> list[int]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    profiler = None if store is None else MemoryProfiler(model, optimizer, store=store).attach()
    live = []
    gc.collect()
    before = live_bytes()
    for _ in range(6):
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        live.append(live_bytes() - before)
        optimizer.zero_grad()
    if profiler is not None:
        profiler.close()
    return live


def test_a_profiled_loop_holds_the_bytes_that_it_holds_alone(store_path: Path) -> None:
    alone = live_bytes_after_each_step(None)
    assert alone[0] > 0
    assert live_bytes_after_each_step(store_path) == alone


# --- The peak's module ---


class Widens(nn.Module):
    """Its largest tensor comes of its first operator, of its last, or of one without a node."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.where == "first":
            return x.repeat(1, 64).sum(dim=1, keepdim=True)
        if self.where == "last":
            return x.exp().repeat(1, 64)
        with torch.no_grad():
            mask = torch.ones(x.shape[0], 64 * x.shape[1]).sum(dim=1, keepdim=True)
        return x * mask


@pytest.mark.parametrize("where", ["first", "last", "without a node"])
def test_the_peaks_module_is_the_one_whose_operator_made_it(store_path: Path, where: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("before", nn.Linear(64, 64))
    model.add_module("wide", Widens(where))
    model.add_module("after", nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        model(torch.randn(256, 64))[:, :1].sum().backward()
        optimizer.step()
    ((step,), _, _) = read(store_path)
    assert step.peak_module == "wide"


# --- DDP's communication hooks ---


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of one, over gloo."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_gradients_sent_in_16_bits_take_half_a_bucket_more_for_a_moment(
    store_path: Path, tmp_path: Path
) -> None:
    def train(path: Path, *, compress: bool) -> tuple[StepRecord, MemoryUse]:
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
        model = DistributedDataParallel(layers, gradient_as_bucket_view=True, bucket_cap_mb=25)
        if compress:
            model.register_comm_hook(None, fp16_compress_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with MemoryProfiler(model, optimizer, store=path, config=EVERY_STEP):
            for _ in range(3):
                model(torch.ones(2, 512)).sum().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        steps, (backward,), _ = read(path)
        return steps[-1], backward

    plain_step, plain = train(store_path, compress=False)
    step, packed = train(tmp_path / "packed.db", compress=True)
    whole = 4 * (512 * 512 + 512) * 4
    assert plain_step.end.gradients == step.end.gradients == whole
    assert plain.gradients == packed.gradients == whole
    more = (packed.temporaries or 0) - (plain.temporaries or 0)
    assert 0.99 * whole // 2 <= more <= whole // 2


# --- Checkpointing that is asked for and does not happen ---


def test_checkpointing_that_saves_nothing_is_seen_beside_the_prediction(
    store_path: Path, tmp_path: Path
) -> None:
    """transformers checkpoints in training mode only: a model left in evaluation mode keeps all."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def train(path: Path, *, asked: bool, training: bool) -> tuple[int, int]:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            use_cache=False,
        )
        model = LlamaForCausalLM(config).train(training)
        if asked:
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.randint(0, 64, (4, 64))
        followed = ProfilerConfig(detail_every=1)
        with MemoryProfiler(model, optimizer, store=path, config=followed):
            for _ in range(2):
                model(input_ids=tokens, labels=tokens).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        steps, _, (prediction,) = read(path)
        measured, predicted = steps[-1].peak.allocated, prediction.peak.allocated
        assert measured is not None
        assert predicted is not None
        return measured, predicted

    plain, plain_predicted = train(store_path, asked=False, training=True)
    saving, saving_predicted = train(tmp_path / "saving.db", asked=True, training=True)
    wrong, wrong_predicted = train(tmp_path / "wrong.db", asked=True, training=False)
    assert plain == pytest.approx(plain_predicted, rel=0.05)
    assert saving == pytest.approx(saving_predicted, rel=0.05)
    assert wrong_predicted == saving_predicted < 0.8 * plain_predicted
    assert wrong == pytest.approx(plain, rel=0.01)
