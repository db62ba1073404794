"""The demo's training loop: an ordinary one, whose body knows nothing of the profiler."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from .corpus import Corpus
from .gpt import GPT, GPTConfig

REPORT_EVERY = 20
EVALUATE_EVERY = 100


@dataclass(frozen=True, kw_only=True)
class DemoRun:
    """One training run of the demo."""

    name: str
    model: GPTConfig
    steps: int
    micro_batch_size: int
    """Sequences in one forward and backward."""
    micro_batches: int
    """Micro-batches whose gradients are added up before the optimizer steps."""
    optimizer: Literal["adamw", "sgd"]
    learning_rate: float
    seed: int = 1234


def demo_runs(device: torch.device, *, steps: int, second_steps: int) -> tuple[DemoRun, DemoRun]:
    """The demo's two runs: the same model and tokens a step, with other settings the second time.

    On a CPU a step takes about 0.15 s on one core; on a GPU the model has GPT-2's width and depth
    (85 million parameters), which fits a card of 6 GB.
    """
    if device.type == "cuda":
        model = GPTConfig(n_layer=12, n_head=12, n_embd=768, block_size=512)
        micro_batch_size, learning_rate = 8, 3e-4
    else:
        model = GPTConfig(n_layer=4, n_head=4, n_embd=192, block_size=64)
        micro_batch_size, learning_rate = 4, 1e-3
    first = DemoRun(
        name="demo-adamw",
        model=model,
        steps=steps,
        micro_batch_size=micro_batch_size,
        micro_batches=2,
        optimizer="adamw",
        learning_rate=learning_rate,
    )
    second = DemoRun(
        name="demo-sgd-momentum",
        model=model,
        steps=second_steps,
        micro_batch_size=micro_batch_size // 2,
        micro_batches=4,
        optimizer="sgd",
        learning_rate=0.05,
    )
    return first, second


def build(run: DemoRun, device: torch.device) -> tuple[GPT, torch.optim.Optimizer]:
    """The run's model on its device, always with the same weights, and its optimizer."""
    torch.manual_seed(run.seed)
    model = GPT(run.model).to(device)
    if run.optimizer == "adamw":
        return model, torch.optim.AdamW(model.parameters(), lr=run.learning_rate)
    return model, torch.optim.SGD(model.parameters(), lr=run.learning_rate, momentum=0.9)


def train(
    run: DemoRun,
    model: GPT,
    optimizer: torch.optim.Optimizer,
    *,
    report: Callable[[str], None] = print,
) -> list[float]:
    """Train and return every micro-batch's loss, in order."""
    corpus = Corpus.bundled(seed=run.seed)
    device = next(model.parameters()).device
    losses: list[float] = []
    started = time.perf_counter()
    for step in range(1, run.steps + 1):
        for _ in range(run.micro_batches):
            inputs, targets = corpus.batch(run.micro_batch_size, run.model.block_size)
            _, loss = model(inputs.to(device), targets.to(device))
            (loss / run.micro_batches).backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if step == 1 or step % REPORT_EVERY == 0 or step == run.steps:
            mean = sum(losses[-run.micro_batches :]) / run.micro_batches
            seconds = time.perf_counter() - started
            report(f"{run.name}  step {step:4d}/{run.steps}  loss {mean:.3f}  {seconds:6.1f} s")
        if step % EVALUATE_EVERY == 0:
            held_out = evaluate(model, corpus)
            report(f"{run.name}  step {step:4d}/{run.steps}  held-out loss {held_out:.3f}")
    return losses


@torch.no_grad()
def evaluate(model: GPT, corpus: Corpus) -> float:
    """Loss on the part of the text that is never trained on."""
    device = next(model.parameters()).device
    model.eval()
    try:
        inputs, targets = corpus.validation_batch(model.config.block_size)
        _, loss = model(inputs.to(device), targets.to(device))
        return float(loss)
    finally:
        model.train()


def run_all(
    runs: Sequence[DemoRun],
    device: torch.device,
    *,
    watch: Callable[
        [DemoRun, GPT, torch.optim.Optimizer], contextlib.AbstractContextManager[object]
    ],
    report: Callable[[str], None] = print,
) -> list[float]:
    """Train one run after the other, each watched by the context manager that ``watch`` makes.

    Returns:
        The losses of all runs, in order.
    """
    losses: list[float] = []
    for run in runs:
        if run.steps == 0:
            continue
        model, optimizer = build(run, device)
        with watch(run, model, optimizer):
            losses += train(run, model, optimizer, report=report)
    return losses
