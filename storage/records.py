"""What a run leaves behind: frozen records and the closed sets that they use.

All sizes are integers in bytes, durations are seconds, instants are nanoseconds since the
Unix epoch (``*_ns``) or timezone-aware datetimes (``*_at``). Unknown is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum


class MemoryClass(StrEnum):
    """What a byte on a device is held for. Every class has a column, a colour and a sentence."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    AUTOCAST_CACHE = "autocast_cache"
    BUFFERS = "buffers"
    COMMUNICATION = "communication"
    KV_CACHE = "kv_cache"
    TEMPORARIES = "temporaries"


class Phase(StrEnum):
    """Where in a step an instant lies. Peaks of phases are never added."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    IDLE = "idle"
    EVAL = "eval"


class RunStatus(StrEnum):
    """How a run stands. ``STALE`` is never stored: a reader derives it from a silent writer."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    OUT_OF_MEMORY = "out_of_memory"
    STALE = "stale"


class EventKind(StrEnum):
    """What happened beside the steps."""

    OOM = "oom"
    LEAK = "leak"
    SPIKE = "spike"
    JUMP = "jump"
    NOTE = "note"
    WARNING = "warning"


class PredictionMethod(StrEnum):
    """Which predictor made a prediction."""

    ANALYTIC = "analytic"
    DRY_RUN = "dry_run"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The books of one device at one instant, in bytes.

    ``allocated = Σ classes + unattributed`` and ``reserved = allocated + cached``.
    """

    parameters: int | None = None
    gradients: int | None = None
    optimizer_state: int | None = None
    activations: int | None = None
    autocast_cache: int | None = None
    buffers: int | None = None
    communication: int | None = None
    kv_cache: int | None = None
    temporaries: int | None = None
    unattributed: int | None = None
    allocated: int | None = None
    reserved: int | None = None

    def of(self, memory_class: MemoryClass) -> int | None:
        """Bytes of one class."""
        value: int | None = getattr(self, memory_class.value)
        return value

    def items(self) -> Iterator[tuple[str, int | None]]:
        """Every line of the books by its name, in the order of the export contract."""
        for name in MEMORY_LINES:
            yield name, getattr(self, name)

    @property
    def attributed(self) -> int:
        """Sum of the known classes, in bytes."""
        return sum(getattr(self, c.value) or 0 for c in MemoryClass)

    @property
    def cached(self) -> int | None:
        """Free inside the allocator (fragmentation included): reserved − allocated."""
        if self.reserved is None or self.allocated is None:
            return None
        return self.reserved - self.allocated


MEMORY_LINES: tuple[str, ...] = tuple(f.name for f in fields(MemoryUse))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """One training run: who, when, with which settings."""

    id: str
    """Rank-independent identity, 12 lower-case hexadecimal digits unless the user chose one."""
    name: str
    status: RunStatus = RunStatus.RUNNING
    status_message: str | None = None
    """Why the run ended as it did, for a person to read."""
    started_at: datetime
    ended_at: datetime | None = None
    heartbeat_at: datetime | None = None
    """When a writer of this run last wrote; a reader calls a silent running run stale."""
    world_size: int = 1
    settings: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    """What the run was trained with (model, optimizer, dtype, stage, batch …), flat."""
    environment: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    """Versions, host and command line, flat."""
    lost_records: int = 0
    """Records that a writer could not keep (a full disk, a locked database)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device as one rank sees it."""

    id: int | None = None
    """Number in the store; ``None`` until stored."""
    rank: int = 0
    host: str
    kind: str
    """``cuda`` or ``cpu``."""
    index: int = 0
    """Index in the process's own numbering (``cuda:index``)."""
    uuid: str | None = None
    name: str | None = None
    total_bytes: int | None = None
    """What programs may have of it, as CUDA says."""
    driver_total_bytes: int | None = None
    """All that it has, as the driver (NVML) says: what the driver keeps for itself included."""
    unified: bool | None = None
    """Its memory is the host's (Jetson, GB10), so the driver's view has no figures for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step on one device: the books at its peak and at its end.

    ``end`` is the instant after the optimizer has stepped, before gradients are cleared.
    """

    device: int
    """Position in the writer's device list when written; ``DeviceInfo.id`` when read."""
    step: int
    started_ns: int
    duration_s: float
    micro_steps: int
    """Backward passes since the optimizer's last step (gradient accumulation)."""
    skipped: bool = False
    """A GradScaler found inf or NaN and did not let the optimizer step."""
    detail: bool = False
    """Every allocation of this step was followed; otherwise see ``carried``."""
    complete: bool = True
    """False for the last step of a run that ended inside it (out of memory, an error)."""
    carried: bool = False
    """Some peak figures are carried over from the last detail step, not seen at this one."""
    end: MemoryUse
    peak: MemoryUse
    peak_phase: Phase | None = None
    peak_module: str | None = None
    """Path of the module that made the allocation of the peak; of detail steps."""
    master_weights: int | None = None
    """The part of ``end.optimizer_state`` that is fp32 copies of 16-bit parameters."""
    requested: int | None = None
    """Bytes asked for at the peak, before the allocator rounded them up."""
    device_used: int | None = None
    """Driver's view (NVML) of all that is in use on the device, other processes included."""
    process_used: int | None = None
    """Driver's view of what this process uses on the device."""
    outside_allocator: int | None = None
    """What this process uses beside torch's allocator: CUDA's context, kernels, libraries."""
    other_processes: int | None = None
    """Driver's view of what all other processes use on the device, together."""
    driver_reserved: int | None = None
    """The part of ``device_used`` that driver and firmware keep for themselves."""
    host_pinned: int | None = None
    """Host memory of this process that holds the device's model state; never device bytes."""
    paged: int | None = None
    """Managed memory (paged optimizers): outside the allocator's view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRecord:
    """One phase inside one detail step on one device, with the books at the phase's own peak."""

    device: int
    step: int
    sequence: int
    """Position inside the step, from 0."""
    phase: Phase
    duration_s: float
    peak: MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRecord:
    """What one module held for backward, in one dtype, at the first backward of a detail step."""

    device: int
    step: int
    module: str
    """Dotted path in the root module; ``""`` is the root itself, outside any child."""
    dtype: str = ""
    """Of the tensors held, as torch names it without its prefix (``bfloat16``)."""
    activations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """One instant inside one detail step on one device: forward building up, backward down."""

    device: int
    step: int
    sequence: int
    """Position inside the step, from 0; instants between are not kept, the highest always is."""
    offset_s: float
    """Seconds since the step began."""
    phase: Phase
    use: MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakGroup:
    """Tensors of one class, shape and dtype that were alive at a detail step's peak."""

    device: int
    step: int
    position: int
    """From 0, the largest group first."""
    memory_class: MemoryClass
    shape: str
    """As ``4×128×256``; empty for a single number."""
    dtype: str
    count: int
    bytes: int
    """Of all of them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at an instant: out of memory, a note, a warning."""

    kind: EventKind
    at_ns: int
    message: str
    device: int | None = None
    step: int | None = None
    phase: Phase | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTerm:
    """One summand of a prediction, with the formula filled in."""

    name: str
    memory_class: MemoryClass | None
    """Exported as ``class``; ``None`` for what lies outside the allocator (context, cache)."""
    bytes: int
    formula: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRecord:
    """What a predictor says one device will hold."""

    device: int
    method: PredictionMethod
    peak: MemoryUse
    peak_phase: Phase | None = None
    peak_low: int | None = None
    peak_high: int | None = None
    """Band of ``peak.allocated`` where the software stack decides."""
    device_used: int | None = None
    phases: Mapping[Phase, MemoryUse] = field(default_factory=dict)
    """The books at each phase's own peak; ``idle`` is the end of a step."""
    terms: tuple[PredictionTerm, ...] = ()
    not_modelled: tuple[str, ...] = ()
    scenario: Mapping[str, object] = field(default_factory=dict)
    """The scenario predicted, as a plain nested mapping."""


Record = (
    StepRecord | PhaseRecord | ModuleRecord | TimelinePoint | PeakGroup | Event | PredictionRecord
)
"""Whatever a writer keeps."""
