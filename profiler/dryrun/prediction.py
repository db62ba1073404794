"""A dry run as a prediction: phases, peak and terms, as the formulas give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vramscope.storage.records import (
    MemoryClass,
    MemoryUse,
    PeakGroup,
    Phase,
    PredictionMethod,
    PredictionRecord,
    PredictionTerm,
)

from .result import DryRun

SOURCE = "dry run: tensors alive at the step's peak"
_WORK = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
NOT_MODELLED = (
    "workspaces: cuDNN's scratch memory, and what kernels allocate inside (cuBLAS' is in)",
    "reserved: what the caching allocator keeps free",
    "block slack: a block above 1 MiB may keep up to 1 MiB that was not asked for",
    "device_used: CUDA context, loaded kernels and libraries lie outside the allocator",
)
"""What a dry run for CUDA leaves out."""


def prediction_of(told: DryRun, scenario: Mapping[str, object]) -> PredictionRecord:
    """What the dry run says one device will hold.

    Args:
        told: The dry run.
        scenario: What was run, as a plain mapping.
    """
    step = told.step
    phases = {
        phase: told.phase(phase) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    }
    return PredictionRecord(
        device=0,
        method=PredictionMethod.DRY_RUN,
        peak=step.peak,
        peak_phase=step.peak_phase,
        peak_low=step.peak.allocated,
        peak_high=step.peak.allocated,
        phases={**{p: use for p, use in phases.items() if use is not None}, Phase.IDLE: step.end},
        terms=tuple(_terms(told, step.peak)),
        not_modelled=NOT_MODELLED if told.device == "cuda" else (),
        scenario=dict(scenario),
    )


def _terms(told: DryRun, peak: MemoryUse) -> Iterator[PredictionTerm]:
    """The largest groups of equal tensors, and of each class the rest: they sum to the peak."""
    groups = [r for r in told.records if isinstance(r, PeakGroup)]
    for memory_class in MemoryClass:
        rest = peak.of(memory_class) or 0
        for group in groups:
            if group.memory_class is memory_class:
                rest -= group.bytes
                yield PredictionTerm(
                    name=f"{group.shape or 'single'} {group.dtype}",
                    memory_class=memory_class,
                    bytes=group.bytes,
                    formula=f"{group.count:,} of {group.bytes // group.count:,} B",
                    source=SOURCE,
                )
        if rest:
            yield PredictionTerm(
                name="other tensors",
                memory_class=memory_class,
                bytes=rest,
                formula="Σ bytes of this class that no line above has",
                source=SOURCE,
            )
