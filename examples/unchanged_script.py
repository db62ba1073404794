"""A script that knows nothing of vramscope: ``vramscope run unchanged_script.py --steps 30``."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
steps = parser.parse_args().steps

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.TransformerEncoderLayer(d_model=64, nhead=4, batch_first=True, device=device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(steps):
    inputs = torch.randn(8, 16, 64, device=device)
    loss = (model(inputs) - inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"unchanged-script: loss {loss.item():.3f}")
