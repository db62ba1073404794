"""``fully_shard`` (FSDP2): ``torchrun --nproc-per-node 2 with_fsdp.py``. Every rank records."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from vramscope.profiler import MemoryProfiler

dist.init_process_group()
rank = dist.get_rank()
device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
layers = [nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(2)]
model = nn.Sequential(*layers).to(device)
mesh = dist.init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
for module in (*model, model):
    fully_shard(module, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())

with MemoryProfiler(model, optimizer, run_name="with-fsdp"):
    for _ in range(10):
        inputs = torch.randn(8, 16, 64, device=device)
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

print(f"with-fsdp: rank {rank}, loss {loss.item():.3f}")
dist.destroy_process_group()
