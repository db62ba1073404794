"""The hook on an ordinary PyTorch loop: two lines around it, none inside."""

import torch
from torch import nn
from vramscope.profiler import MemoryProfiler

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())

with MemoryProfiler(model, optimizer, run_name="plain-loop"):
    for _ in range(30):
        inputs = torch.randn(32, 64, device=device)
        labels = torch.randint(10, (32,), device=device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

print(f"plain-loop: loss {loss.item():.3f}; now `vramscope show plain-loop`, or `vramscope ui`")
