"""Hugging Face Accelerate: one tracker. ``accelerate launch with_accelerate.py [--zero 2]``."""

import argparse

import torch
from accelerate import Accelerator, DeepSpeedPlugin, InitProcessGroupKwargs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from vramscope.profiler.frameworks.accelerate import MemoryTracker

parser = argparse.ArgumentParser()
parser.add_argument("--zero", type=int, help="stage of DeepSpeed's ZeRO; DDP without it")
stage = parser.parse_args().zero
given = {"cpu": stage is None and not torch.cuda.is_available()}
if stage is not None:
    given["deepspeed_plugin"] = DeepSpeedPlugin(zero_stage=stage, gradient_accumulation_steps=2)
if stage is not None and not torch.cuda.is_available():
    import deepspeed.ops

    # gloo serves as well as collectives compiled for minutes
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    given["kwargs_handlers"] = [InitProcessGroupKwargs(backend="gloo")]

tracker = MemoryTracker(run_name="with-accelerate" + ("" if stage is None else f"-zero-{stage}"))
accelerator = Accelerator(gradient_accumulation_steps=2, log_with=tracker, **given)
accelerator.init_trackers("examples")
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(640, 64), torch.randint(10, (640,)))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16))

for inputs, labels in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

accelerator.end_training()
print(f"{tracker.tracker.run_id}: loss {loss.item():.3f}")
