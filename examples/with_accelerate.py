"""Hugging Face Accelerate: attach to what ``prepare`` returned."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from vramscope.profiler import MemoryProfiler

accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(640, 64), torch.randint(10, (640,)))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16))

with MemoryProfiler(model, optimizer, run_name="with-accelerate"):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

accelerator.print(f"with-accelerate: loss {loss.item():.3f}")
