"""The dry run against the measured run of the same loop, on the CPU: what dryrun.py compares."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from combinations import OPTIMIZERS, Combination, Training
from torch import nn
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.dryrun import DryRun, dry_run
from vramscope.storage.reader import RunReader
from vramscope.storage.records import StepRecord

STEPS = 2
EXACT = ("parameters", "gradients", "optimizer_state", "buffers")
ACTIVATIONS, PEAK = 0.005, 0.01
"""What is promised: relative errors of the dry run's activations and peak."""


@dataclass(frozen=True)
class Comparison:
    """One combination, measured and run dry; both are of the same step."""

    measured: StepRecord
    dry: StepRecord
    measured_activations: int
    dry_activations: int
    seconds: float

    @property
    def peak_error(self) -> float:
        """Relative, signed: above 0 the dry run says more."""
        return _off(self.dry.peak.allocated, self.measured.peak.allocated)

    @property
    def activations_error(self) -> float:
        """Of what the step's first backward needs."""
        return _off(self.dry_activations, self.measured_activations)

    def faults(self) -> list[str]:
        """Which promises are not kept, in words."""
        found = []
        for name in EXACT:
            dry, measured = getattr(self.dry.end, name), getattr(self.measured.end, name)
            if dry != measured:
                found.append(f"{name}: {dry} B, measured {measured} B")
        if abs(self.activations_error) > ACTIVATIONS:
            found.append(f"activations: {self.activations_error:+.3%}")
        if abs(self.peak_error) > PEAK:
            found.append(f"peak: {self.peak_error:+.3%}")
        if self.dry.peak_phase is not self.measured.peak_phase:
            found.append(f"peak in {self.dry.peak_phase}, measured in {self.measured.peak_phase}")
        return found


def _off(value: int | None, truth: int | None) -> float:
    return ((value or 0) - (truth or 0)) / (truth or 1)


def compare(combination: Combination) -> Comparison:
    """Trains a combination under the profiler, and runs it dry."""
    measured, measured_activations = _measure(combination)
    began = time.process_time()
    dry = run_dry(combination)
    return Comparison(
        measured=measured,
        dry=dry.step,
        measured_activations=measured_activations,
        dry_activations=sum(m.activations for m in dry.modules),
        seconds=time.process_time() - began,
    )


def run_dry(combination: Combination) -> DryRun:
    """The combination's own loop, without memory, as a CPU would run it."""
    built: list[Training] = []

    def build() -> nn.Module:
        built.append(combination.build())
        return built[0].model

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return OPTIMIZERS[combination.optimizer](iter(parameters))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        _train(built[0], optimizer)

    return dry_run(build, step, build_optimizer=optimizer, device="cpu", steps=STEPS)


def _measure(combination: Combination) -> tuple[StepRecord, int]:
    training = combination.build()
    config: Any = ProfilerConfig(detail_first=STEPS, detail_every=0, predict=False)
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/runs.db"
        profiler = MemoryProfiler(training.model, training.optimizer, store=store, config=config)
        with profiler:
            for _ in range(STEPS):
                _train(training, training.optimizer)
        with RunReader(store) as reader:
            run = profiler.run_id or ""
            device = reader.devices(run)[0].id or 0
            *_, step = reader.iter_steps(run, device)
            return step, sum(m.activations for m in reader.modules(run, device, STEPS))


def _train(training: Training, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(1)
    for batch in [training.batch() for _ in range(training.micro_steps)]:
        loss = training.loss(batch)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
