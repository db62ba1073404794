"""DeepSpeed: ``torchrun --nproc-per-node 2 with_deepspeed.py --stage 2 --offload``.

``deepspeed with_deepspeed.py`` starts it as well. The engine is all that the profiler needs.
"""

import argparse

import deepspeed
import deepspeed.ops
import torch
from torch import nn
from vramscope.profiler import MemoryProfiler

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=2, choices=range(4))
parser.add_argument("--offload", action="store_true", help="optimizer state to host memory")
parser.add_argument("--local_rank", help="given by deepspeed's launcher")
options = parser.parse_args()

zero = {"stage": options.stage, "reduce_bucket_size": 100_000}
if options.offload:
    zero["offload_optimizer"] = {"device": "cpu"}
config = {
    "train_micro_batch_size_per_gpu": 32,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": zero,
    "zero_force_ds_cpu_optimizer": False,
}
if not torch.cuda.is_available():  # gloo serves as well as collectives compiled for minutes
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

name = f"with-deepspeed-{options.stage}" + ("-offload" if options.offload else "")
with MemoryProfiler(engine, run_name=name):
    for _ in range(20):
        inputs = torch.randn(32, 64, dtype=torch.bfloat16, device=engine.device)
        loss = (engine(inputs) - inputs).square().mean()
        engine.backward(loss)
        engine.step()

print(f"{name}: rank {engine.global_rank}, loss {loss.item():.3f}")
