"""What it costs to see a step's memory: vramscope and other tools on one model, in one run.

    python benchmarks/peers.py [--rounds 9] [--write]

Blocks of steps of the same 4-layer, 512-wide GPT alternate in one process, on one thread: bare and
under each tool in a new order every round, so that a noisy machine hurts all alike. What a tool
adds is the median over the rounds of its block less the bare blocks of the same round; how far that
can be trusted (two standard errors, from the median deviation) stands beside it, and the comparison
takes the worse end for vramscope and the better one for the others. Setting a tool up and taking it
off is not counted; what it does from a block's first step to its finished result is.
Tools that cannot run here are named with the reason. pytorch_memlab is used if it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import math
import platform
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.demo.gpt import GPT, GPTConfig
from vramscope.profiler.devices.cpu import CpuSource

RESULT = Path(__file__).parent / "results" / "peers.md"
BLOCK = 2
BATCH, TOKENS = 4, 64
EVERY = ProfilerConfig().detail_every
PROMISED = 3.0
"""How many times cheaper than any other tool that splits memory by class."""

Step = Callable[[], None]


@dataclass(frozen=True)
class Subject:
    """The model that all tools watch, and its step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Step


def subject() -> Subject:
    """A 4-layer, 512-wide GPT with AdamW."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(n_layer=4, n_head=8, n_embd=512, block_size=TOKENS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randint(0, 256, (BATCH, TOKENS))

    def step() -> None:
        _, loss = model(x, x)
        assert loss is not None
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Subject(model, optimizer, step)


class Seconds:
    """CPU time of what runs inside the block: of this thread, and of the whole process."""

    thread = process = 0.0

    def __enter__(self) -> Seconds:
        self._began = time.thread_time(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.thread = time.thread_time() - self._began[0]
        self.process = time.process_time() - self._began[1]


Watch = Callable[[Subject], Seconds]
"""Runs a block of steps under a tool; the time that steps and tool took."""


@dataclass
class Tool:
    """A way to run the steps.

    Attributes:
        name: In the table.
        watch: Runs a block.
        splits: What it says of memory, in words.
        by_class: Whether it tells classes (parameters, gradients, activations …) apart.
        times: Of the blocks so far.
    """

    name: str
    watch: Watch
    splits: str
    by_class: bool = False
    times: list[Seconds] = field(default_factory=list)

    def a_step(self) -> float:
        """Median seconds a step, of the training thread."""
        return statistics.median(t.thread for t in self.times) / BLOCK

    def added(self, first: Tool, *, process: bool = False) -> Cost:
        """What it adds to a step: of the training thread, or of all threads."""
        kind = "process" if process else "thread"
        per_round = len(first.times) // len(self.times)
        differences = []
        for number, block in enumerate(self.times):
            beside = first.times[number * per_round : (number + 1) * per_round]
            base = statistics.mean(getattr(b, kind) for b in beside)
            differences.append((getattr(block, kind) - base) / BLOCK)
        middle = statistics.median(differences)
        deviation = statistics.median(abs(d - middle) for d in differences)
        return Cost(middle, 2 * 1.4826 * deviation / math.sqrt(len(differences)))


@dataclass(frozen=True)
class Cost:
    """Seconds a step, and how far they can be trusted."""

    seconds: float
    error: float

    @property
    def most(self) -> float:
        return max(0.0, self.seconds) + self.error

    @property
    def least(self) -> float:
        return max(0.0, self.seconds - self.error)

    def __str__(self) -> str:
        return f"{self.seconds * 1e3:+.2f} ± {self.error * 1e3:.2f} ms"


def run(steps: Step) -> None:
    for _ in range(BLOCK):
        steps()


def bare(watched: Subject) -> Seconds:
    with Seconds() as seconds:
        run(watched.step)
    return seconds


def vramscope(config: ProfilerConfig) -> Watch:
    """The hook, with the first steps (always in detail) before the clock starts."""

    def watch(watched: Subject) -> Seconds:
        with (
            tempfile.TemporaryDirectory() as folder,
            MemoryProfiler(
                watched.model, watched.optimizer, store=f"{folder}/runs.db", config=config
            ),
        ):
            for _ in range(max(1, config.detail_first)):
                watched.step()
            with Seconds() as seconds:
                run(watched.step)
        return seconds

    return watch


def torch_profiler(*, classes: bool) -> Watch:
    """torch.profiler over a block; with ``classes`` its timeline by category is made as well."""

    def watch(watched: Subject) -> Seconds:
        with Seconds() as seconds:
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU],
                profile_memory=True,
                record_shapes=classes,
                with_stack=classes,
            ) as profile:
                run(watched.step)
            if classes:
                assert profile._memory_profile().timeline
            else:
                profile.key_averages()
        return seconds

    return watch


def mem_tracker(watched: Subject) -> Seconds:
    tracker = MemTracker()
    tracker.track_external(watched.model, watched.optimizer)

    def step() -> None:
        watched.step()
        assert tracker.get_tracker_snapshot("peak")
        tracker.reset_mod_stats()

    with tracker, Seconds() as seconds:
        run(step)
    return seconds


def memlab(watched: Subject) -> Seconds:
    """Its reporter, once a step; its line profiler needs CUDA."""
    from pytorch_memlab import MemReporter

    def step() -> None:
        watched.step()
        with contextlib.redirect_stdout(io.StringIO()):
            reporter = MemReporter(watched.model)
            reporter.add_optimizer(watched.optimizer)
            reporter.report()

    with Seconds() as seconds:
        run(step)
    return seconds


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    torch.cuda.memory._record_memory_history()
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def memory_history(watched: Subject) -> Seconds:
    with _recording(), Seconds() as seconds:
        run(watched.step)
    return seconds


def tools() -> tuple[list[Tool], list[str]]:
    """The tools that run here, and a sentence on each that does not."""
    always_on = ProfilerConfig(detail_every=0)
    every_step = ProfilerConfig(detail_every=1)
    found = [
        Tool("bare", bare, "–"),
        Tool("vramscope, between detail steps", vramscope(always_on), "nine classes", True),
        Tool(
            "vramscope, a detail step",
            vramscope(every_step),
            "nine classes; by phase, module, dtype, tensors at the peak, timeline",
            True,
        ),
        Tool(
            "torch.profiler, profile_memory",
            torch_profiler(classes=False),
            "by operator, no classes",
        ),
        Tool(
            "torch.profiler, memory timeline",
            torch_profiler(classes=True),
            "seven categories over time",
            True,
        ),
        Tool("torch MemTracker", mem_tracker, "six classes; by module", True),
    ]
    missing = []
    try:
        importlib.import_module("pytorch_memlab")
    except ImportError as error:
        missing.append(f"pytorch_memlab: {error} (`pip install pytorch-memlab`).")
    else:
        splits = "by tensor's name at one instant; what autograd saves is not seen"
        found.append(Tool("pytorch_memlab MemReporter, once a step", memlab, splits))
        if not torch.cuda.is_available():
            missing.append("pytorch_memlab's line profiler: needs CUDA.")
    if torch.cuda.is_available():
        splits = "by stack trace, no classes; allocations on CUDA only"
        found.append(Tool("torch.cuda.memory._record_memory_history", memory_history, splits))
    else:
        missing.append("torch.cuda.memory._record_memory_history: needs CUDA.")
    return found, missing


def table(found: list[Tool]) -> list[str]:
    """One line a tool."""
    first = found[0]
    lines = [
        "| tool | a step | against bare | added | added, all threads | splits memory |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for tool in found:
        costs = f"| {tool.added(first)} | {tool.added(first, process=True)} |"
        lines.append(
            f"| {tool.name} | {tool.a_step() * 1e3:.1f} ms | {tool.a_step() / first.a_step():.3f} "
            f"{costs if tool is not first else '| | |'} {tool.splits} |"
        )
    return lines


def verdict(found: list[Tool]) -> list[str]:
    """The promise, in figures: cheaper than every other tool that splits memory by class."""
    first, between, detail = found[:3]
    others = [t for t in found[3:] if t.by_class]
    lines = []
    for process in (False, True):
        rival = min(others, key=lambda t: t.added(first, process=process).least)
        theirs = rival.added(first, process=process).least
        followed = detail.added(first, process=process).most
        average = (between.added(first, process=process).most * (EVERY - 1) + followed) / EVERY
        lines.append(
            f"{'All threads' if process else 'The training thread'}: vramscope adds at most "
            f"{average * 1e3:.2f} ms a step on average with one step in {EVERY} followed in detail "
            f"(the default), and at most {followed * 1e3:.2f} ms to a step followed in detail. The "
            f"cheapest other tool that splits memory by class, {rival.name}, adds at least "
            f"{theirs * 1e3:.2f} ms to each step that it watches: at least "
            f"{theirs / average:.0f} times vramscope's average, and at least "
            f"{theirs / followed:.1f} times a detail step (promised: {PROMISED:g} times)."
        )
    return lines


def machine() -> str:
    """What it ran on, in words."""
    name = CpuSource().describe(0, "").name or platform.machine()
    return f"{name}, torch {torch.__version__}, one thread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    watched = subject()
    run(watched.step)
    found, missing = tools()
    for tool in found:
        tool.watch(watched)  # whatever is done only once: imports, libraries, caches
    order = [*found, found[0]]  # bare twice
    chance = random.Random(0)
    for number in range(options.rounds):
        chance.shuffle(order)
        for tool in order:
            tool.times.append(tool.watch(watched))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    shape = f"4-layer 512-wide GPT, batch {BATCH}×{TOKENS}, AdamW, fp32"
    method = (
        f"{shape}. Medians of {options.rounds} interleaved blocks of {BLOCK} steps, CPU time of "
        "the training thread; *added, all threads* counts background threads, such as a writer, "
        "too."
    )
    text = "\n".join(
        [*table(found), "", method, "", *(f"{line}\n" for line in verdict(found))]
        + (["Not compared here:", "", *(f"- {line}" for line in missing), ""] if missing else [])
        + [f"{machine()}.", ""]
    )
    print(text)
    if options.write:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
