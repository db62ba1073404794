"""What the profiler costs a training loop: the same step bare and with the hook, in one run.

    python benchmarks/overhead.py [--repeats 15] [--write]

Bare and hooked blocks of steps alternate in one process, on one thread, so that a noisy machine
hurts both alike; the figures are medians over the blocks. The absolute cost is measured on a
model of 300 parameters whose step does almost nothing, the ratio on a step of about 50 ms.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from vramscope.profiler import MemoryProfiler, ProfilerConfig

RESULT = Path(__file__).parent / "results" / "overhead.md"


class ManyParameters(nn.Module):
    """300 parameters in 150 layers: what a 24-layer transformer has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(150))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Gpt(nn.Module):
    """A 4-layer transformer."""

    def __init__(self, width: int, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


Step = Callable[[], None]


def many_parameters() -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    model = ManyParameters(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(2, 8)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def gpt(width: int, batch: int, sequence: int) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    model = Gpt(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randint(0, 256, (batch, sequence))

    def step() -> None:
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def seconds(step: Step, count: int) -> float:
    """Mean process time of a step: other processes on the machine do not count."""
    begin = time.thread_time()
    for _ in range(count):
        step()
    return (time.thread_time() - begin) / count


def compare(
    build: Callable[[], tuple[nn.Module, torch.optim.Optimizer, Step]],
    config: ProfilerConfig,
    *,
    repeats: int,
    block: int,
    warm: int,
) -> tuple[float, float, float]:
    """Seconds a step of alternating blocks.

    Returns:
        The median bare block, the median of what a hooked block takes more than the bare one
        before it, and half the distance between the quartiles of that: the machine's noise.
    """
    model, optimizer, step = build()
    bare: list[float] = []
    hooked: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        profiler = MemoryProfiler(model, optimizer, store=f"{folder}/runs.db", config=config)
        seconds(step, warm)
        profiler.attach()
        seconds(step, warm)
        assert profiler._hooks is not None
        for _ in range(repeats):
            profiler._hooks.pause()
            bare.append(seconds(step, block))
            profiler._hooks.resume()
            hooked.append(seconds(step, block))
        profiler.close()
    added = [more - less for less, more in zip(bare, hooked, strict=True)]
    low, middle, high = statistics.quantiles(added, n=4)
    return statistics.median(bare), middle, (high - low) / 2


def inside_hooks(
    build: Callable[[], tuple[nn.Module, torch.optim.Optimizer, Step]],
    config: ProfilerConfig,
    *,
    steps: int,
) -> tuple[float, float]:
    """Seconds a step in the hook's own code.

    Returns:
        Of the training thread (median), and of the writer's thread beside it (mean), which
        closes the books and writes the rows.
    """
    model, optimizer, step = build()
    with tempfile.TemporaryDirectory() as folder:
        profiler = MemoryProfiler(model, optimizer, store=f"{folder}/runs.db", config=config)
        profiler.attach()
        hooks, writer = profiler._hooks, profiler._writer
        assert hooks is not None
        assert writer is not None
        assert writer._thread.ident is not None
        tell, spent = hooks._tell, 0.0

        def timed(*args: object, **kwargs: object) -> None:
            nonlocal spent
            begin = time.thread_time()
            tell(*args, **kwargs)  # type: ignore[arg-type]
            spent += time.thread_time() - begin

        for _ in range(5):
            step()
        writer.flush()
        clock = time.pthread_getcpuclockid(writer._thread.ident)
        began = time.clock_gettime(clock)
        hooks._tell = timed  # type: ignore[method-assign]
        each: list[float] = []
        for _ in range(steps):
            spent = 0.0
            step()
            each.append(spent)
        writer.flush()
        beside = (time.clock_gettime(clock) - began) / steps
        profiler.close()
    return statistics.median(each), beside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    always_on = ProfilerConfig(detail_every=0, detail_first=3)
    every_step = ProfilerConfig(detail_every=1)

    def fifty_milliseconds() -> tuple[nn.Module, torch.optim.Optimizer, Step]:
        return gpt(128, 4, 64)

    def detailed() -> tuple[nn.Module, torch.optim.Optimizer, Step]:
        return gpt(512, 4, 256)

    lines = [
        "| step | bare | ratio | the hook adds |",
        "|---|---|---|---|",
    ]
    for name, build, config, block, repeats in (
        ("always on, 300 parameters, almost no work", many_parameters, always_on, 40, 3),
        ("always on, 4-layer GPT, about 50 ms", fifty_milliseconds, always_on, 10, 3),
        ("detail step, 4-layer 512-wide GPT, batch 4x256", detailed, every_step, 1, 1),
    ):
        bare, added, noise = compare(
            build, config, repeats=options.repeats * repeats, block=block, warm=5
        )
        lines.append(
            f"| {name} | {bare * 1e3:.2f} ms | {(bare + added) / bare:.4f} "
            f"| {added * 1e6:.0f} ± {noise * 1e6:.0f} µs |"
        )
        print(lines[-1], flush=True)
    own, beside = inside_hooks(many_parameters, always_on, steps=400)
    lines += [
        "",
        f"Inside the hook's own code, always on, 300 parameters: {own * 1e6:.0f} µs a step "
        f"(median of 400 steps); the writer's thread works {beside * 1e6:.0f} µs a step beside it.",
    ]
    print(lines[-1], flush=True)
    machine = f"{platform.machine()}, torch {torch.__version__}, one thread"
    about = (
        "Medians of the differences between neighbouring blocks, ± half of what lies between their"
    )
    table = "\n".join(lines) + f"\n\n{about} quartiles, in CPU time of the thread; {machine}.\n"
    print("\n" + table)
    if options.write:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
