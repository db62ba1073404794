"""Four micro-batches a step under fp16 autocast with a GradScaler, and an evaluation between steps.

Steps are counted by the optimizer, so four backward passes are one step; a step that the scaler
skips (inf or NaN in the gradients) is recorded as skipped; the evaluation is no training step.
"""

import torch
from torch import nn
from vramscope.profiler import MemoryProfiler

ACCUMULATE = 4
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler(device)

with MemoryProfiler(model, optimizer, run_name="accumulate-autocast") as profiler:
    for step in range(1, 21):
        for _ in range(ACCUMULATE):
            inputs = torch.randn(32, 64, device=device)
            labels = torch.randint(10, (32,), device=device)
            with torch.autocast(device, dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(inputs), labels)
            scaler.scale(loss / ACCUMULATE).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            profiler.note(f"evaluated after step {step}")
            model.eval()
            with torch.no_grad():
                model(torch.randn(128, 64, device=device))
            model.train()

print(f"accumulate-autocast: loss {loss.item():.3f}")
