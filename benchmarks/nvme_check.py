"""ZeRO-Infinity on two processes: what DeepSpeed writes to files, against what the profiler says.

    make nvme-check

DeepSpeed compiles its asynchronous I/O on the first run, which takes a quarter of an hour and
needs libaio's header (Debian: libaio-dev); so this is no part of the tests. What is expected is
counted here from shapes and from DeepSpeed's swappers; the figures go to results/nvme.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULT = HERE / "results" / "nvme.md"
WIDTH, STEPS = 640, 3
BUCKET = 100_000
ALIGNED_BYTES = 1024
"""DeepSpeed runtime/swap_tensor/constants.py: AIO_ALIGNED_BYTES, with one thread a request."""
BUFFERS = 4
"""`buffer_count` of offload_optimizer by default."""


def main() -> int:
    """Starts both ranks, and writes down what they found."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", __file__, folder]
        environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        status = subprocess.run(command, env=environment).returncode
        if status != 0:
            print("nvme-check: DeepSpeed could not run; it needs libaio-dev", file=sys.stderr)
            return status
        found = [json.loads((Path(folder) / f"rank{r}.json").read_text()) for r in range(2)]
    lines = ["| rank | | counted | held |", "|--:|---|--:|--:|"]
    for rank, figures in enumerate(found):
        for name, (counted, held) in figures.items():
            lines.append(f"| {rank} | {name} | {counted:,} B | {held:,} B |")
    text = "Written by `make nvme-check`: stage 3, bf16, optimizer state on NVMe.\n\n"
    RESULT.write_text(text + "\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    wrong = [n for figures in found for n, (counted, held) in figures.items() if counted != held]
    return 1 if wrong else 0


def train(folder: Path) -> None:
    """One rank."""
    import deepspeed
    import deepspeed.ops
    import torch
    from torch import nn
    from vramscope.profiler import MemoryProfiler
    from vramscope.storage.records import MemoryClass

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    model = model.bfloat16()
    numels = [p.numel() for p in model.parameters()]
    offload = {"device": "nvme", "nvme_path": str(folder), "pin_memory": True}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": offload,
            "reduce_bucket_size": BUCKET,
            "stage3_param_persistence_threshold": 0,
        },
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    rank, world = engine.global_rank, engine.dp_world_size
    with MemoryProfiler(engine, run_name="nvme-check", store=folder / "runs.db") as profiler:
        for _ in range(STEPS):
            inputs = torch.randn(4, WIDTH, dtype=torch.bfloat16)
            engine.backward(engine(inputs).float().square().mean())
            engine.step()
        held = profiler._census.recount()[1][torch.device("cpu")]
    shard = sum(-(-n // world) for n in numels)
    file = -(-4 * shard // ALIGNED_BYTES) * ALIGNED_BYTES
    state = MemoryClass.OPTIMIZER_STATE
    figures: dict[str, tuple[int, int]] = {
        "shards of the weights, device": (2 * shard, held.classes[MemoryClass.PARAMETERS]),
        "reduce bucket, device": (2 * BUCKET, held.classes[MemoryClass.COMMUNICATION]),
        "master weights and two moments, files": (3 * file, held.nvme.get(state, 0)),
        "step counter and swap buffers, host": (BUFFERS * file + 4, held.host.get(state, 0)),
        "gradients, host": (2 * shard, held.host.get(MemoryClass.GRADIENTS, 0)),
        "files on the disk": (_on_disk(folder, rank), sum(held.nvme.values())),
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(figures), encoding="utf-8")


def _on_disk(folder: Path, rank: int) -> Any:
    files = (folder / "zero_stage_3" / "optimizer" / f"rank{rank}").glob("*.swp")
    return sum(file.stat().st_size for file in files)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
    else:
        sys.exit(main())
