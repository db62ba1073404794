"""Train the demo's two runs: ``python -m vramscope.profiler.demo --db sqlite:///vramscope.db``."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import torch

from .gpt import GPT
from .training import DemoRun, demo_runs, run_all

EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the process's exit status: 0, or 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    # A core is left to the dashboard and the browser: with torch on all of them, its threads wait
    # for one another and everything crawls.
    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) - 1)))
    device = _device(options.device)
    runs = demo_runs(device, steps=options.steps, second_steps=options.second_steps)
    try:
        losses = run_all(runs, device, watch=_watcher(options), report=_say)
    except KeyboardInterrupt:
        _say("Stopped; what was recorded stays.")
        return EXIT_INTERRUPTED
    if options.losses is not None:
        options.losses.write_text("".join(f"{loss.hex()}\n" for loss in losses), encoding="utf-8")
    return 0


Watch = Callable[[DemoRun, GPT, torch.optim.Optimizer], contextlib.AbstractContextManager[object]]


def _watcher(options: argparse.Namespace) -> Watch:
    def watch(
        run: DemoRun, model: GPT, optimizer: torch.optim.Optimizer
    ) -> contextlib.AbstractContextManager[object]:
        if not options.profiler:
            return contextlib.nullcontext()
        from vramscope.profiler import MemoryProfiler, ProfilerConfig

        return MemoryProfiler(
            model,
            optimizer,
            run_name=run.name,
            store=options.db,
            config=ProfilerConfig(detail_every=options.detail_every),
        )

    return watch


def _device(choice: str) -> torch.device:
    if choice == "auto":
        choice = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(choice)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    # A demo that is told to stop ends as with Ctrl-C: its runs are closed and say what happened.
    raise KeyboardInterrupt


def _say(line: str) -> None:
    print(line, flush=True)


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vramscope.profiler.demo",
        description="Train a small GPT twice, with other settings the second time, and record it.",
    )
    parser.add_argument("--db", help="store: a path or a database URL ($VRAMSCOPE_DB)")
    parser.add_argument("--steps", type=_count, default=300, help="steps of the first run")
    parser.add_argument(
        "--second-steps", type=_count, default=100, help="of the second; 0 for none"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 … or auto")
    parser.add_argument("--detail-every", type=int, default=50, help="steps between detail steps")
    parser.add_argument(
        "--no-profiler", dest="profiler", action="store_false", help="train bare, record nothing"
    )
    parser.add_argument("--losses", type=Path, help="write every loss to this file, as hex floats")
    return parser


if __name__ == "__main__":
    sys.exit(main())
