"""Two pipeline stages: ``torchrun --nproc-per-node 2 with_pipeline.py``."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from vramscope.profiler import MemoryProfiler

dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
model = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).to(device)
stage = PipelineStage(model, rank, world, torch.device(device))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.AdamW(model.parameters())

with MemoryProfiler(model, optimizer, run_name="with-pipeline"):
    for _ in range(10):
        inputs, losses = torch.randn(8, 16, 64, device=device), []
        if rank == 0:
            schedule.step(inputs)
        elif rank == world - 1:
            schedule.step(target=inputs, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()

print(f"with-pipeline: rank {rank}, {len(losses)} losses a step")
dist.destroy_process_group()
