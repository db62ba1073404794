"""One rank of small trainings under DeepSpeed on the CPU; writes what it counted as JSON.

    torchrun --nproc-per-node 2 deepspeed_stages.py FOLDER

What every stage must hold is written down here anew, from DeepSpeed's sources; a counting
allocator under torch says how many bytes there are.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
from torch import nn
from vramscope.profiler import MemoryProfiler
from vramscope.storage.reader import RunReader

# Collectives of its own for CPUs would be compiled for minutes: gloo serves as well.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
WIDTH, HIDDEN, VOCABULARY, BATCH, LENGTH = 8, 26, 51, 4, 6
BUCKET = 700
"""Elements of a reduce bucket: some parameters fit, and together they do not."""
THRESHOLD = 30
"""Up to so many elements stage 3 keeps parameters whole."""
SETTLE_S = 0.05
"""Gloo's threads keep what they have sent a little longer than the call lasts."""
STEPS = 4
"""Three followed in detail, and one between detail steps."""


class Model(nn.Module):
    """Widths that no world size divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        hidden = hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))
        return self.head(hidden)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One configuration of DeepSpeed."""

    stage: int
    bf16: bool = False
    accumulation: int = 1
    offload: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def item(self) -> int:
        """Bytes of a weight."""
        return 2 if self.bf16 else 4

    def configuration(self) -> dict[str, Any]:
        zero: dict[str, Any] = {
            "stage": self.stage,
            "reduce_bucket_size": BUCKET,
            "overlap_comm": False,
            "stage3_param_persistence_threshold": THRESHOLD,
            **self.extra,
        }
        if self.offload:
            zero["offload_optimizer"] = {"device": "cpu"}
        return {
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": self.accumulation,
            "zero_optimization": zero,
            "bf16": {"enabled": self.bf16},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        }


SETUPS = {
    **{f"stage {s}": Setup(stage=s) for s in range(4)},
    **{f"stage {s} bf16": Setup(stage=s, bf16=True) for s in range(4)},
    **{f"stage {s} bf16 accumulated": Setup(stage=s, bf16=True, accumulation=2) for s in (1, 2, 3)},
    **{f"stage {s} offloaded": Setup(stage=s, bf16=True, offload=True) for s in (2, 3)},
}


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)


def expected(setup: Setup, numels: list[int]) -> dict[str, dict[str, int]]:
    """What one rank holds after backward and after the step, in bytes by class.

    ``host`` is what lies in the host's memory for it, all classes together.
    """
    world, rank, item = dist.get_world_size(), dist.get_rank(), setup.item
    whole, count = sum(numels), len(numels)
    if setup.stage == 0:
        master = 4 * whole if setup.bf16 else 0
        state = master + 8 * whole + 4 * count
        held = {"parameters": item * whole, "optimizer_state": state}
        return {
            "backward": {**held, "gradients": item * whole},
            "step": {**held, "gradients": 0, "communication": 0},
        }
    if setup.stage == 3:
        shard = sum(ceil_div(n, world) for n in numels)
        kept = sum(world * ceil_div(n, world) for n in numels if n <= THRESHOLD)
        held = {
            "parameters": item * (shard + kept),
            "gradients": item * shard,
            "optimizer_state": 12 * shard + 4,
            "communication": item * BUCKET,
        }
        if not setup.offload:
            return {"backward": held, "step": held}
        held |= {"gradients": 0, "optimizer_state": 0, "host": 16 * shard + item * shard + 4}
        return {"backward": held, "step": held}
    padded = ceil_div(whole, 2 * world) * 2 * world
    part = padded // world
    place = reduced = 0
    for n in numels:
        if place < part * (rank + 1) and place + n > part * rank:
            reduced += n
        place += n
    reduced += max(0, min(part, part * (rank + 1) - whole))  # the last ranks' padding
    held = {"parameters": item * padded, "optimizer_state": 12 * part + 4, "communication": 0}
    if not setup.offload:
        return {
            "backward": {**held, "gradients": item * reduced},
            "step": {**held, "gradients": 0},
        }
    largest = max(numels)
    held |= {"optimizer_state": 0, "gradients": 0, "communication": item * largest}
    host = 16 * part + 4 + item * part + item * largest
    return {"backward": {**held, "host": host}, "step": {**held, "host": host}}


def run(name: str, store: Path, memory: Any) -> dict[str, Any]:
    """Trains a case; says of every step what was recorded, what it holds, and all there is."""
    setup = SETUPS[name]
    torch.manual_seed(0)
    gc.collect()
    before = memory.current
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    model = Model().to(torch.bfloat16 if setup.bf16 else torch.float32)
    numels = [p.numel() for p in model.parameters()]
    client = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, optimizer=client, config=setup.configuration()
    )
    del model, client
    alive, after_backward = [], []
    os.environ["VRAMSCOPE_RUN_ID"] = name.replace(" ", "-")
    with MemoryProfiler(engine, optimizer, run_name=name, store=store) as profiler:
        for _ in range(STEPS):
            for _ in range(setup.accumulation):
                logits = engine(tokens)
                loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
                engine.backward(loss)
                if engine.is_gradient_accumulation_boundary():
                    after_backward.append(_census(profiler, engine.device))
                time.sleep(SETTLE_S)
                engine.step()
            alive.append(memory.current - before)
    with RunReader(store) as reader:
        device = next(d for d in reader.devices(profiler.run_id) if d.rank == dist.get_rank())
        steps = list(reader.iter_steps(profiler.run_id, device.id))
        predicted = [p for p in reader.predictions(profiler.run_id) if p.device == device.id][-1]
        phases = [p.phase.value for p in reader.phases(profiler.run_id, device.id, 3)]
    return {
        "expected": expected(setup, numels),
        "phases": phases,
        "scenario": predicted.scenario,
        "predicted": {p.value: dict(use.items()) for p, use in predicted.phases.items()},
        "setup": {**asdict(setup), "bucket": BUCKET, "threshold": THRESHOLD},
        "steps": [
            {
                "recorded": {**dict(step.end.items()), "host": step.host_pinned},
                "backward": after_backward[step.step - 1],
                "alive": alive[step.step - 1],
                "micro_steps": step.micro_steps,
            }
            for step in steps
        ],
    }


def _census(profiler: MemoryProfiler, device: Any) -> dict[str, int]:
    """The census between backward and step, which no record shows."""
    held = profiler._census.recount()[1][torch.device(device)]
    return {**{str(c): n for c, n in held.classes.items()}, "host": sum(held.host.values())}


@contextmanager
def counted() -> Iterator[Any]:
    """The counting allocator of the benchmarks."""
    sys.path.append(str(BENCHMARKS))
    with importlib.import_module("counting_allocator").counting() as memory:
        yield memory


def main() -> None:
    folder = Path(sys.argv[1])
    names = sys.argv[2:] or list(SETUPS)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with counted() as memory:
        deepspeed.init_distributed(dist_backend="gloo")
        gc.freeze()
        for name in names:
            found[name] = run(name, folder / "runs.db", memory)
        rank = dist.get_rank()
        (folder / f"rank{rank}.json").write_text(json.dumps(found), encoding="utf-8")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
