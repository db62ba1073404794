"""``predict``: from a scenario to the memory of one device, phase by phase, term by term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramscope.storage.records import (
    MemoryClass,
    MemoryUse,
    Phase,
    PredictionMethod,
    PredictionRecord,
    PredictionTerm,
)

from .coverage import gaps
from .fsdp import fsdp_terms
from .inference_passes import inference_of
from .local_part import local_part
from .model_state import (
    MASTER_WEIGHTS,
    buffer_terms,
    gradient_terms,
    master_terms,
    optimizer_terms,
    parameter_terms,
    step_terms,
    stepped_tensors,
)
from .overheads import Band, reserved_band, workspace_terms
from .passes import PLAYED_SOURCE, passes_of, steps_in_backward
from .scenario import Scenario
from .sharding import DDP_SOURCE
from .terms import ALWAYS, STEP_PHASES, Allocation, Ledger, Term, make_term
from .zero import zero_terms

AFTER_FORWARD = frozenset({Phase.BACKWARD, Phase.OPTIMIZER, Phase.IDLE})


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What one device will hold in a step of steady training (from the second step on)."""

    scenario: Scenario
    phases: Mapping[Phase, MemoryUse]
    """The books at each phase's own peak; ``idle`` is the step's end, gradients still there."""
    peak: MemoryUse
    """The books of the phase that holds most. Phases are never added."""
    peak_phase: Phase | None
    """``None`` where a phase that may be the largest could not be predicted."""
    peak_low: int | None
    peak_high: int | None
    """Band of ``peak.allocated``, in bytes."""
    reserved: Band | None = None
    """What the caching allocator will hold; ``None`` on a CPU, or where a phase is unknown."""
    device_used: int | None = None
    """Always ``None`` here: see ``not_modelled``."""
    terms: tuple[PredictionTerm, ...]
    """Those of the peak first, which add up to it, then those of other phases."""
    not_modelled: tuple[str, ...]
    master_weights: int = 0
    """The part of ``optimizer_state`` that is float32 copies of 16-bit parameters, in bytes."""

    def to_record(self, device: int) -> PredictionRecord:
        """This prediction as it is stored for the device at a position in a writer's list."""
        return PredictionRecord(
            device=device,
            method=PredictionMethod.ANALYTIC,
            peak=self.peak,
            peak_phase=self.peak_phase,
            peak_low=self.peak_low,
            peak_high=self.peak_high,
            device_used=self.device_used,
            phases=dict(self.phases),
            terms=self.terms,
            not_modelled=self.not_modelled,
            scenario=self.scenario.to_mapping(),
        )


def predict(scenario: Scenario) -> Prediction:
    """Predict one device's memory for a scenario.

    Closed formulas over the scenario's tensors: no torch, under 50 ms. An unknown class is
    ``None``, and so is then the ``allocated`` of the phases that it takes part in.
    """
    whole, scenario = scenario, local_part(scenario)
    passes = inference_of(scenario) if scenario.inference else passes_of(scenario)
    on_cuda = scenario.device == "cuda"
    missing = gaps(scenario)
    uncovered = frozenset(c for gap in missing for c in gap.classes)
    every = [
        *_state_terms(scenario, passes.gradients_at_peak),
        *passes.terms,
        *workspace_terms(scenario),
    ]
    terms = [t for t in every if t.memory_class not in uncovered]
    unknown = {
        **_unknown_state(scenario),
        **passes.unknown,
        **dict.fromkeys(uncovered, ALWAYS),
    }
    ledger = Ledger(tuple(terms), unknown, rounded=on_cuda)
    phases = {phase: ledger.use(phase) for phase in STEP_PHASES}
    known = {phase: ledger.known_bytes(phase) for phase in STEP_PHASES}
    fullest = max(STEP_PHASES, key=lambda phase: known[phase])
    complete = all(use.allocated is not None for use in phases.values())
    spread = max(known.values()) - passes.uncertain if complete else max(known.values())
    return Prediction(
        scenario=whole,
        phases=phases,
        peak=phases[fullest],
        peak_phase=fullest if complete else None,
        peak_low=spread,
        peak_high=known[fullest] if complete else None,
        reserved=reserved_band(known[fullest], _growing(scenario, terms))
        if complete and on_cuda
        else None,
        terms=ledger.for_people(fullest),
        not_modelled=(
            *(gap.what for gap in missing),
            *_not_modelled(scenario),
            *passes.not_modelled,
        ),
        master_weights=sum(t.nbytes for t in terms if t.name == MASTER_WEIGHTS),
    )


def _growing(scenario: Scenario, terms: list[Term]) -> int:
    """Bytes of a cache that is copied at every token."""
    if scenario.inference is None or scenario.inference.cache != "dynamic":
        return 0
    return max((t.nbytes for t in terms if t.memory_class is MemoryClass.KV_CACHE), default=0)


def _state_terms(scenario: Scenario, gradients_at_peak: int | None) -> list[Term]:
    """Parameters, gradients, optimizer state, buffers and buckets."""
    buffers = buffer_terms(scenario.inventory)
    if scenario.inference is not None:
        return [*parameter_terms(scenario.inventory), *buffers]
    if scenario.parallelism.strategy == "zero" and scenario.parallelism.zero_stage:
        return [*zero_terms(scenario), *buffers]
    if scenario.parallelism.strategy == "fsdp":
        return [*fsdp_terms(scenario), *buffers]
    tensors = stepped_tensors(scenario)
    stepping = [
        *optimizer_terms(scenario, tensors),
        *master_terms(scenario),
        *step_terms(scenario, tensors),
    ]
    return [
        *parameter_terms(scenario.inventory),
        *buffers,
        *_gradients(scenario, gradients_at_peak),
        *(stepping if scenario.offload.optimizer == "none" else ()),
        *_ddp_terms(scenario),
    ]


def _gradients(scenario: Scenario, at_peak: int | None) -> list[Term]:
    """Gradients by phase; at backward's peak only those made so far."""
    if steps_in_backward(scenario):
        return [_one_gradient(scenario)]
    phases = _gradient_phases(scenario)
    if at_peak is None:
        return gradient_terms(scenario, phases)
    so_far = Term(
        "gradients made so far",
        MemoryClass.GRADIENTS,
        at_peak,
        f"{at_peak:,} B at the fullest instant of backward",
        PLAYED_SOURCE,
        frozenset({Phase.BACKWARD}),
    )
    return [*gradient_terms(scenario, phases - {Phase.BACKWARD}), so_far]


def _one_gradient(scenario: Scenario) -> Term:
    """The largest parameter's gradient: each is dropped before the next is made."""
    trained = [t for t, _ in scenario.inventory.counted() if t.trainable]
    largest = max((t.nbytes for t in trained), default=0)
    return make_term(
        "gradient of the largest parameter",
        MemoryClass.GRADIENTS,
        [Allocation(largest)],
        f"{largest:,} B: each gradient is used and dropped where it is made",
        "LOMO, arXiv 2306.09782, section 3.1",
        frozenset({Phase.BACKWARD}),
    )


def _gradient_phases(scenario: Scenario) -> frozenset[Phase]:
    """Gradients live from the first backward to ``zero_grad``, so in later forwards too.

    DDP's bucket views outlive ``zero_grad``.
    """
    views = scenario.parallelism.strategy == "ddp" and scenario.parallelism.bucket_view
    return ALWAYS if scenario.accumulation > 1 or views else AFTER_FORWARD


def _ddp_terms(scenario: Scenario) -> list[Term]:
    parallelism = scenario.parallelism
    if parallelism.strategy != "ddp" or parallelism.bucket_view:
        return []
    trainable = [(t, n) for t, n in scenario.inventory.counted() if t.trainable]
    nbytes = sum(t.nbytes * n for t, n in trainable)
    return [
        make_term(
            "gradient buckets",
            MemoryClass.COMMUNICATION,
            [Allocation(nbytes)],
            f"{nbytes:,} B: as large as the gradients, from construction on",
            DDP_SOURCE,
        )
    ]


def _unknown_state(scenario: Scenario) -> dict[MemoryClass, frozenset[Phase]]:
    """Optimizer state is unknown when any group's optimizer is."""
    used = {t.optimizer for t, _ in scenario.inventory.counted() if t.trainable}
    others = [o for i, o in enumerate(scenario.optimizers) if o.name == "other" and i in used]
    return {MemoryClass.OPTIMIZER_STATE: ALWAYS} if others else {}


def _not_modelled(scenario: Scenario) -> tuple[str, ...]:
    """What the stack holds beside the terms, by name and in words."""
    notes = [
        f"optimizer_state: {o.class_name or 'this optimizer'} is not known to the formulas"
        for o in scenario.optimizers
        if o.name == "other"
    ]
    if scenario.device == "cuda":
        notes += [
            "reserved: what the caching allocator keeps free depends on the order of requests "
            "(its segments are 2 MiB, 20 MiB, or multiples of 2 MiB); a band is given, no terms",
            "block slack: beside what fresh segments leave, a block that is used again may keep up "
            "to 1 MiB that was not asked for",
            "device_used: CUDA context, loaded kernels and libraries lie outside the allocator",
            "workspaces: cuDNN's and attention kernels' scratch memory",
        ]
    if any(o.name in ("adam8bit", "adamw8bit") for o in scenario.optimizers):
        if scenario.device == "cpu":
            notes.append("temporaries: bitsandbytes' fallback for CPUs makes copies of its own")
        if any(o.paged for o in scenario.optimizers):
            notes.append("paged: 8-bit state in managed memory is outside the allocator")
    if scenario.parallelism.world_size > 1:
        notes.append("communication: NCCL's own buffers and channels")
    return tuple(notes)
