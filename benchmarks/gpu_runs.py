"""Three small training runs whose memory is measured and predicted; one process a run.

``python benchmarks/gpu_runs.py NAME --db URL`` trains one of them with the profiler attached.
``gpu_check.py`` runs all and compares. On a CPU the same runs are made tiny, so that this file is
tested where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.demo.gpt import GPT, GPTConfig


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training run."""

    name: str
    title: str
    optimizer: Literal["adamw", "sgd"]
    steps: int = 20
    micro_batch_size: int = 8
    micro_batches: int = 1
    autocast: bool = False
    pure_bf16: bool = False
    gradient_checkpointing: bool = False


CASES = (
    Case(name="fp32-adamw", title="fp32, AdamW", optimizer="adamw"),
    Case(
        name="autocast-accumulate",
        title="bf16 autocast, AdamW, 4 micro-batches a step",
        optimizer="adamw",
        micro_batches=4,
        autocast=True,
    ),
    Case(
        name="bf16-checkpointing-sgd",
        title="pure bf16, SGD with momentum, full checkpointing",
        optimizer="sgd",
        micro_batch_size=16,
        pure_bf16=True,
        gradient_checkpointing=True,
    ),
)


def model_config(case: Case, device: torch.device) -> GPTConfig:
    """GPT-2's width and depth with a vocabulary of 8,192 on a GPU; two narrow layers on a CPU."""
    if device.type == "cuda":
        return GPTConfig(
            n_layer=12,
            n_head=12,
            n_embd=768,
            vocab_size=8192,
            block_size=1024,
            gradient_checkpointing=case.gradient_checkpointing,
        )
    return GPTConfig(
        n_layer=2, n_embd=64, block_size=32, gradient_checkpointing=case.gradient_checkpointing
    )


def optimizer_of(case: Case, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if case.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=3e-4)
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def train(case: Case, db: str, device: torch.device) -> float:
    """Train, record into ``db``, and return the last loss."""
    torch.manual_seed(0)
    steps = case.steps if device.type == "cuda" else 12
    config = model_config(case, device)
    dtype = torch.bfloat16 if case.pure_bf16 else torch.float32
    model = GPT(config).to(device=device, dtype=dtype)
    optimizer = optimizer_of(case, model.parameters())
    shape = (case.micro_batch_size, config.block_size + 1)
    mean = torch.zeros(())
    watched = MemoryProfiler(
        model, optimizer, run_name=case.name, store=db, config=ProfilerConfig(detail_every=10)
    )
    with watched:
        for _ in range(steps):
            for _ in range(case.micro_batches):
                tokens = torch.randint(config.vocab_size, shape).to(device)
                precision = (
                    torch.autocast(device.type, dtype=torch.bfloat16)
                    if case.autocast
                    else contextlib.nullcontext()
                )
                with precision:
                    _, loss = model(tokens[:, :-1], tokens[:, 1:])
                (loss / case.micro_batches).backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach()
        return float(mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=[case.name for case in CASES])
    parser.add_argument("--db", required=True)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    case = next(case for case in CASES if case.name == options.case)
    loss = train(case, options.db, torch.device(options.device))
    print(f"{case.title}: last loss {loss:.3f}")


if __name__ == "__main__":
    main()
