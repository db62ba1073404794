"""DistributedDataParallel: ``torchrun --nproc-per-node 2 with_ddp.py``. Every rank records."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from vramscope.profiler import MemoryProfiler

dist.init_process_group()
rank = dist.get_rank()
device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).to(device)
model = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters())

with MemoryProfiler(model, optimizer, run_name="with-ddp"):
    for _ in range(10):
        inputs = torch.randn(32, 64, device=device)
        labels = torch.randint(10, (32,), device=device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

print(f"with-ddp: rank {rank}, loss {loss.item():.3f}")
dist.destroy_process_group()
