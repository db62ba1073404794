"""How true the measurements are: the profiler's books against a counting CPU allocator.

    python benchmarks/measuring.py [--only WORDS] [--write]

Models and loops of combinations.py are trained for a few steps under the profiler. Beside it the
loop itself asks a counting allocator compiled for this purpose (counting_allocator.py) what is
allocated, at the end of every step and at its peak: everything that torch allocated in the process
since before the model was made, inputs and kernels' workspaces included. Nothing of the profiler's
takes part in that count.

Two questions are asked. Do the classes add up to what was allocated (what is left over is
unattributed)? And are the activations those that autograd saves, counted by a second method: hooks
on saved tensors, which see every tensor that an operator keeps for backward?
"""

from __future__ import annotations

import argparse
import functools
import gc
import platform
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from combinations import COMBINATIONS, Batch, Combination, Training, title
from counting_allocator import CannotCount, CountingAllocator, counting
from torch import nn
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.devices.cpu import CpuSource
from vramscope.profiler.devices.source import AllocatorReading
from vramscope.storage.reader import RunReader
from vramscope.storage.records import PhaseRecord, StepRecord

RESULT = Path(__file__).parent / "results" / "measuring.md"
DETAIL_STEPS = 3
STEPS = 5
ENDS, PEAKS, UNATTRIBUTED = 0.001, 0.01, 0.02
"""What is promised: relative errors of the classes' sum, and the share without a class."""


@dataclass(frozen=True)
class Truth:
    """What the allocator said of one step, in bytes above what was there before the model."""

    end: int
    peak: int


@dataclass(frozen=True)
class Figures:
    """One combination, measured.

    Attributes:
        truths: By step, from the allocator.
        steps: By step, from the profiler.
        phases: Of the detail steps, from the profiler.
        activations: Kept for backward at the first step, by the profiler.
        saved: The same by hooks on saved tensors.
    """

    truths: list[Truth]
    steps: list[StepRecord]
    phases: list[PhaseRecord]
    activations: int
    saved: int

    @property
    def end_error(self) -> float:
        """Worst relative error of the classes' sum at the end of a step."""
        return max(off(s.end.attributed, t.end) for s, t in self._pairs())

    @property
    def peak_error(self) -> float:
        """Worst relative error of the classes' sum at the peak of a detail step."""
        return max(off(s.peak.attributed, t.peak) for s, t in self._pairs() if s.detail)

    @property
    def carried_error(self) -> float:
        """Worst relative error of the classes' sum at the peak of a step between."""
        return max(off(s.peak.attributed, t.peak) for s, t in self._pairs() if not s.detail)

    @property
    def books_error(self) -> float:
        """Worst relative error of classes and unattributed together, everywhere."""
        return max(
            max(off(s.end.allocated or 0, t.end), off(s.peak.allocated or 0, t.peak))
            for s, t in self._pairs()
        )

    @property
    def unattributed(self) -> float:
        """Worst share without a class: at step ends, at step peaks, at each phase's peak."""
        uses = [u for s in self.steps for u in (s.end, s.peak)] + [p.peak for p in self.phases]
        return max(abs(u.unattributed or 0) / (u.allocated or 1) for u in uses)

    def _pairs(self) -> Iterator[tuple[StepRecord, Truth]]:
        return iter(zip(self.steps, self.truths, strict=True))

    def faults(self) -> list[str]:
        """Which promises are not kept, in words."""
        found = []
        for name, value, most in (
            ("step ends", self.end_error, ENDS),
            ("peaks of detail steps", self.peak_error, PEAKS),
            ("peaks of steps between", self.carried_error, PEAKS),
            ("allocated", self.books_error, ENDS),
            ("unattributed", self.unattributed, UNATTRIBUTED),
        ):
            if value > most:
                found.append(f"{name}: {value:.4%}, promised at most {most:.1%}")
        if self.activations != self.saved:
            found.append(f"activations: {self.activations} B, autograd saves {self.saved} B")
        return found


def off(value: int, truth: int) -> float:
    """Relative error."""
    return abs(value - truth) / truth


class CountedSource(CpuSource):
    """The CPU with an allocator that answers, as a GPU's does."""

    def __init__(self, memory: CountingAllocator, mark: int, baseline: int) -> None:
        self._memory, self._mark, self._baseline = memory, mark, baseline

    def read(self) -> AllocatorReading:
        reading = AllocatorReading(
            allocated=self._memory.current - self._baseline,
            peak_allocated=self._memory.peak(self._mark) - self._baseline,
        )
        self._memory.reset(self._mark)
        return reading


def measure(combination: Combination, memory: CountingAllocator, marks: tuple[int, int]) -> Figures:
    """Trains a combination under the profiler and asks the allocator beside it.

    Args:
        combination: Model and loop.
        memory: The counting allocator, installed.
        marks: Two of its marks: for the loop, and for the profiler's device.
    """
    gc.collect()
    ours, theirs = marks
    baseline = memory.current
    training = combination.build()
    torch.manual_seed(1)
    first = training.batch()
    torch.manual_seed(2)
    saved = saved_by_hooks(training, first)
    del first
    with tempfile.TemporaryDirectory() as folder:
        profiler = MemoryProfiler(
            training.model,
            training.optimizer,
            store=f"{folder}/runs.db",
            config=ProfilerConfig(detail_first=DETAIL_STEPS, detail_every=0),
            sources=lambda _: CountedSource(memory, theirs, baseline),
        )
        with profiler:
            truths = _train(training, memory, ours, baseline)
        with RunReader(f"{folder}/runs.db") as reader:
            run = profiler.run_id or ""
            device = reader.devices(run)[0].id or 0
            steps = list(reader.iter_steps(run, device))
            phases = [p for s in range(1, DETAIL_STEPS + 1) for p in reader.phases(run, device, s)]
            activations = sum(m.activations for m in reader.modules(run, device, 1))
    return Figures(truths, steps, phases, activations, saved)


def _train(training: Training, memory: CountingAllocator, mark: int, baseline: int) -> list[Truth]:
    truths = []
    for step in range(STEPS):
        torch.manual_seed(1)
        batches = [training.batch() for _ in range(training.micro_steps)]
        if step == 0:
            torch.manual_seed(2)
        memory.reset(mark)
        for batch in batches:
            loss = training.loss(batch)
            loss.backward()
        training.optimizer.step()
        truths.append(Truth(memory.current - baseline, memory.peak(mark) - baseline))
        training.optimizer.zero_grad()
    return truths


# ---- the second method for activations


@dataclass
class _Kept:
    """Storages that something keeps, each once, as long as it keeps them."""

    weights: list[torch.Tensor]
    others: set[int]
    storages: dict[int, weakref.ref[torch.UntypedStorage]] = field(default_factory=dict)

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        before = self.storages.get(storage._cdata)
        known = storage._cdata in self.others or (before is not None and before() is not None)
        if not known and not self._is_weight_copy(tensor):
            self.storages[storage._cdata] = weakref.ref(storage)

    @torch.no_grad()
    def _is_weight_copy(self, tensor: torch.Tensor) -> bool:
        """Whether the bytes are those of a weight, cast to another type."""
        storage = tensor.untyped_storage()
        flat = torch.empty(0, dtype=tensor.dtype).set_(storage)
        return any(
            weight.dtype != flat.dtype
            and weight.numel() == flat.numel()
            and torch.equal(weight.detach().to(flat.dtype).flatten(), flat)
            for weight in self.weights
        )

    @property
    def bytes(self) -> int:
        """Of what is alive: a branch that leads to no loss is dropped with what it saved."""
        found = [reference() for reference in self.storages.values()]
        return sum(storage.nbytes() for storage in found if storage is not None)


def saved_by_hooks(training: Training, batch: Batch) -> int:
    """Bytes that autograd is asked to save in one forward, without weights, buffers and inputs.

    The 16-bit copies of weights that autocast makes are not activations: they are a class of their
    own. Inside a checkpointed segment hooks see nothing, since nothing is saved; what the segment
    is given is what it keeps.
    """
    model = training.model
    others = [*model.parameters(), *model.buffers(), *batch.values()]
    kept = _Kept(list(model.parameters()), {t.untyped_storage()._cdata for t in others})

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.add(tensor)
        return tensor.detach()

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with checkpoints_seen(model, kept), hooks:
        loss = training.loss(batch)
        size = kept.bytes
    del loss
    return size


@contextmanager
def checkpoints_seen(model: nn.Module, kept: _Kept) -> Iterator[None]:
    """Counts what checkpointed segments are given."""

    def seeing(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
        def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            given = [args, kwargs]
            if isinstance(function, functools.partial):
                given += [function.args, function.keywords]
            for tensor in tensors_of(given):
                kept.add(tensor)
            return checkpoint(function, *args, **kwargs)

        return called

    name = "_gradient_checkpointing_func"
    owners = [m for m in model.modules() if name in vars(m)]
    before = [vars(m)[name] for m in owners]
    for owner, checkpoint in zip(owners, before, strict=True):
        setattr(owner, name, seeing(checkpoint))
    try:
        yield
    finally:
        for owner, checkpoint in zip(owners, before, strict=True):
            setattr(owner, name, checkpoint)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in nested lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


# ---- the table


def row(name: str, figures: Figures) -> str:
    """One combination as a line of the table."""
    peak = max(t.peak for t in figures.truths)
    same = "equal" if figures.saved == figures.activations else "DIFFERENT"
    return (
        f"| {name} | {peak / 2**20:.1f} MiB | {figures.end_error:.4%} | {figures.peak_error:.4%} "
        f"| {figures.carried_error:.4%} | {figures.unattributed:.4%} "
        f"| {figures.activations:,} B | {figures.saved:,} B | {same} |"
    )


HEADER = (
    "| model and loop | highest peak | step ends | peaks | peaks between detail steps "
    "| unattributed | activations | saved by autograd | |\n|---|--:|--:|--:|--:|--:|--:|--:|---|"
)


def machine() -> str:
    """What it ran on, in words."""
    name = CpuSource().describe(0, "").name or platform.machine()
    import transformers

    return f"{name}, torch {torch.__version__}, transformers {transformers.__version__}, one thread"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="combinations whose name has these words")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines, missed = [HEADER], []
    print(HEADER, flush=True)
    try:
        with counting() as memory:
            marks = memory.new_mark(), memory.new_mark()
            for combination in COMBINATIONS:
                name = title(combination)
                if any(word not in name for word in options.only.split()):
                    continue
                figures = measure(combination, memory, marks)
                lines.append(row(name, figures))
                missed += [f"- {name}: {fault}" for fault in figures.faults()]
                print(lines[-1], flush=True)
    except CannotCount as error:
        sys.exit(f"measuring: {error}")
    print("\n".join(["", *missed]) if missed else "\nEvery promise is kept.")
    if options.write:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(document(lines, missed), encoding="utf-8")
    return 1 if missed else 0


def document(lines: list[str], missed: list[str]) -> str:
    """The result file."""
    note = (
        f"{STEPS} steps each, the first {DETAIL_STEPS} in detail. Step ends and peaks: worst "
        "relative difference between the sum of the classes and the bytes that a counting "
        f"allocator handed out (promised: {ENDS:.1%} and {PEAKS:.0%}). Unattributed: the worst "
        f"share without a class, at any step end or phase peak (promised: {UNATTRIBUTED:.0%}). "
        "Activations: what the first step's backward needed by the profiler's count, and by hooks "
        "on saved tensors."
    )
    missing = "\n\nNot kept:\n\n" + "\n".join(missed) if missed else "\n\nEvery promise is kept."
    return "\n".join(lines) + f"\n\n{note}{missing}\n\n{machine()}.\n"


if __name__ == "__main__":
    sys.exit(main())
