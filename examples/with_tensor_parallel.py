"""Tensor parallel (DTensor): ``torchrun --nproc-per-node 2 with_tensor_parallel.py``."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from vramscope.profiler import MemoryProfiler

dist.init_process_group()
rank = dist.get_rank()
device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
mesh = dist.init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
torch.manual_seed(0)  # the same data and weights on every rank
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

with MemoryProfiler(model, optimizer, run_name="with-tensor-parallel"):
    for _ in range(10):
        inputs = torch.randn(32, 64, device=device)
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

print(f"with-tensor-parallel: rank {rank}, loss {loss.item():.3f}")
dist.destroy_process_group()
