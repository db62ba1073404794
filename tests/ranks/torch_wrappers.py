"""One rank of small trainings under torch's own wrappers; writes what it counted as JSON.

    torchrun --nproc-per-node 2 torch_wrappers.py FOLDER

Every case says what its wrapper must hold by a count of its own, from shapes and from torch's
documentation of the wrapper; a counting allocator under torch says how many bytes there are.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from vramscope.profiler import MemoryProfiler
from vramscope.storage.reader import RunReader

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
WIDTH, HIDDEN, VOCABULARY, BATCH, LENGTH = 8, 26, 51, 4, 6
STEPS = 5

SETTLE_S = 0.05
"""Gloo's threads keep what they have sent a little longer than the call lasts."""


class Block(nn.Module):
    """Widths that no world size divides."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(torch.nn.functional.gelu(self.up(self.norm(hidden))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def adam(numels: int, tensors: int) -> int:
    """Two float32 moments, and torch's step counter of 4 bytes a tensor."""
    return 8 * numels + 4 * tensors


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)


class Case:
    """What is trained, and what it must hold at the end of a step, in bytes by class."""

    def __init__(self, model: nn.Module, expected: dict[str, int], **optimizer: Any) -> None:
        self.model = model
        self.expected = {"communication": 0, "buffers": 0, **expected}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **optimizer)
        self.micro_steps = 1
        self.kept: Any = None

    def step(self, tokens: torch.Tensor) -> None:
        for micro in range(self.micro_steps):
            last = micro == self.micro_steps - 1
            quiet = nullcontext() if last else self.model.no_sync()
            with quiet:
                logits = self.model(tokens)
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
                loss.backward()
        self.kept = logits, loss  # as in a loop, whose names outlive the step
        time.sleep(SETTLE_S)
        self.optimizer.step()


def _ddp(**options: Any) -> Case:
    inner = Model()
    size, count = numel(inner), len(list(inner.parameters()))
    expected = {"parameters": 4 * size, "gradients": 4 * size}
    expected |= {"optimizer_state": adam(size, count), "communication": 4 * size}
    if options.get("gradient_as_bucket_view"):
        expected["communication"] = 0  # the gradients are the buckets
    return Case(DistributedDataParallel(inner, bucket_cap_mb=0.002, **options), expected)


def _ddp_no_sync() -> Case:
    case = _ddp()
    case.micro_steps = 3
    return case


def _ddp_bucket_view_no_sync() -> Case:
    case = _ddp(gradient_as_bucket_view=True)
    case.micro_steps = 3
    return case


def _fsdp1(**options: Any) -> Case:
    """Every wrapped module's parameters lie in one flat shard, padded to the world size.

    With ``use_orig_params`` each starts at a multiple of 16 bytes, and has its part of the state.
    """
    inner, world, rank = Model(), dist.get_world_size(), dist.get_rank()
    inside = {id(p) for block in inner.blocks for p in block.parameters()}
    outer = [p for p in inner.parameters() if id(p) not in inside]
    own = options.get("use_orig_params", False)
    shard = elements = tensors = 0
    for parameters in [outer, *(list(block.parameters()) for block in inner.blocks)]:
        places, end = [], 0
        for parameter in parameters:
            begin = 4 * ceil_div(end, 4) if own else end
            end = begin + parameter.numel()
            places.append((begin, end))
        part = ceil_div(end, world)
        shard += part
        cut = [min(e, part * rank + part) - max(b, part * rank) for b, e in places]
        elements += sum(n for n in cut if n > 0) if own else part
        tensors += sum(n > 0 for n in cut) if own else 1
    expected = {"parameters": 4 * shard, "gradients": 4 * shard}
    expected["optimizer_state"] = adam(elements, tensors)
    model = FullyShardedDataParallel(
        inner,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        **options,
    )
    return Case(model, expected)


@functools.cache
def _mesh() -> DeviceMesh:
    """All ranks in a row."""
    return init_device_mesh("cpu", (dist.get_world_size(),))


def _fsdp2(**options: Any) -> Case:
    """Every parameter's first dimension is cut in equal chunks; optimizer state is not padded."""
    model, world, rank = Model(), dist.get_world_size(), dist.get_rank()
    padded = own = count = 0
    for parameter in model.parameters():
        rows, rest = parameter.shape[0], parameter[0].numel()
        chunk = ceil_div(rows, world)
        padded += chunk * rest
        own += max(0, min(chunk, rows - chunk * rank)) * rest
        count += 1
    for module in (*model.blocks, model):
        fully_shard(module, mesh=_mesh(), **options)
    expected = {"parameters": 4 * padded, "gradients": 4 * padded}
    expected["optimizer_state"] = adam(own, count)
    return Case(model, expected)


def _fsdp2_offloaded() -> Case:
    """Shards, their gradients and their state lie in the host's memory, unpinned here."""
    case = _fsdp2(offload_policy=CPUOffloadPolicy(pin_memory=False))
    host = sum(case.expected[name] for name in ("parameters", "gradients", "optimizer_state"))
    case.expected |= {"parameters": 0, "gradients": 0, "optimizer_state": 0, "host": host}
    return case


def _tensor_parallel() -> Case:
    """Columns of ``up`` and rows of ``down`` are cut; everything else is whole on every rank."""
    model, world = Model(), dist.get_world_size()
    whole = numel(model)
    cut = sum(b.up.weight.numel() + b.up.bias.numel() + b.down.weight.numel() for b in model.blocks)
    size = whole - cut + cut // world
    count = len(list(model.parameters()))
    for block in model.blocks:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, _mesh(), plan)
    expected = {"parameters": 4 * size, "gradients": 4 * size}
    expected["optimizer_state"] = adam(size, count)
    return Case(model, expected, foreach=False)


class Stage(nn.Module):
    """One half of the model."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first
        self.outer = nn.Embedding(VOCABULARY, WIDTH) if first else nn.Linear(WIDTH, VOCABULARY)
        self.block = Block()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.block(self.outer(value)) if self.first else self.outer(self.block(value))


class Pipeline(Case):
    """Two stages, two micro-batches: each receives into a buffer for every micro-batch."""

    def __init__(self) -> None:
        first = dist.get_rank() == 0
        model = Stage(first)
        size, count = numel(model), len(list(model.parameters()))
        expected = {"parameters": 4 * size, "gradients": 4 * size}
        expected["optimizer_state"] = adam(size, count)
        received = 4 * BATCH * LENGTH * WIDTH
        expected["communication"] = received
        super().__init__(model, expected)
        stage = PipelineStage(model, dist.get_rank(), 2, torch.device("cpu"))
        self.schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=_token_loss)

    def step(self, tokens: torch.Tensor) -> None:
        if dist.get_rank() == 0:
            self.schedule.step(tokens)
        else:
            self.schedule.step(target=tokens)
        time.sleep(SETTLE_S)
        self.optimizer.step()


def _token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


CASES: dict[str, Callable[[], Case]] = {
    "ddp": _ddp,
    "ddp bucket view": lambda: _ddp(gradient_as_bucket_view=True),
    "ddp no_sync": _ddp_no_sync,
    "ddp bucket view no_sync": _ddp_bucket_view_no_sync,
    "ddp unused parameters": lambda: _ddp(find_unused_parameters=True),
    "fsdp1": _fsdp1,
    "fsdp1 original parameters": lambda: _fsdp1(use_orig_params=True),
    "fsdp2": _fsdp2,
    "fsdp2 kept gathered": lambda: _fsdp2(reshard_after_forward=False),
    "fsdp2 bf16": lambda: _fsdp2(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    "fsdp2 offloaded": _fsdp2_offloaded,
    "tensor parallel": _tensor_parallel,
    "pipeline": Pipeline,
}


def run(name: str, store: Path, memory: Any) -> dict[str, Any]:
    """Trains a case; says of every step what was recorded, what it holds, and all there is."""
    torch.manual_seed(0)
    gc.collect()
    before = memory.current
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    case = CASES[name]()
    alive = []
    os.environ["VRAMSCOPE_RUN_ID"] = name.replace(" ", "-")
    with MemoryProfiler(case.model, case.optimizer, run_name=name, store=store) as profiler:
        for _ in range(STEPS):
            case.step(tokens)
            alive.append(memory.current - before)
            case.optimizer.zero_grad()
    run_id = profiler.run_id
    del case.model, case.optimizer
    with RunReader(store) as reader:
        device = next(d for d in reader.devices(run_id) if d.rank == dist.get_rank())
        steps = list(reader.iter_steps(run_id, device.id))
        predicted = [p for p in reader.predictions(run_id) if p.device == device.id][-1]
        settings = reader.run(run_id).settings
    return {
        "expected": case.expected,
        "steps": [
            {
                "recorded": {**dict(step.end.items()), "host": step.host_pinned},
                "alive": alive[step.step - 1],
                "micro_steps": step.micro_steps,
            }
            for step in steps
        ],
        "scenario": predicted.scenario,
        "settings": dict(settings),
        "predicted": {p.value: dict(use.items()) for p, use in predicted.phases.items()},
    }


@contextmanager
def counted() -> Iterator[Any]:
    """The counting allocator of the benchmarks."""
    sys.path.append(str(BENCHMARKS))
    with importlib.import_module("counting_allocator").counting() as memory:
        yield memory


def main() -> None:
    folder = Path(sys.argv[1])
    names = sys.argv[2:] or list(CASES)
    torch.set_num_threads(1)
    found = {}
    with counted() as memory:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        _mesh()
        gc.freeze()
        for name in names:
            found[name] = run(name, folder / "runs.db", memory)
        dist.destroy_process_group()
    (folder / f"rank{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
