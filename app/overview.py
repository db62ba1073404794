"""A run at a glance, read in few queries: what every page, table and report starts from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    MEMORY_LINES,
    DeviceInfo,
    Event,
    MemoryUse,
    ModuleRecord,
    PredictionMethod,
    PredictionRecord,
    RunInfo,
    StepRecord,
)


def predicted_beside(prediction: PredictionRecord, step: StepRecord | None) -> MemoryUse:
    """The predicted books to hold against the measured peak of a step.

    A prediction that knows every phase says its own peak. One that does not knows no peak: then it
    is the phase in which the measured one lies, with what is unknown there left unknown.
    """
    if prediction.peak_phase is None and step is not None and step.peak_phase is not None:
        return prediction.phases.get(step.peak_phase, prediction.peak)
    return prediction.peak


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOverview:
    """One device of a run: its fullest step, its last step and what was predicted for it."""

    device: DeviceInfo
    peak: StepRecord | None
    """The step with the most allocated; ``None`` before the first step."""
    last: StepRecord | None
    predictions: tuple[PredictionRecord, ...]
    """The newest of each method."""

    @property
    def peak_use(self) -> MemoryUse:
        """The books at the peak, every line unknown before the first step."""
        return MemoryUse() if self.peak is None else self.peak.peak

    @property
    def end_use(self) -> MemoryUse:
        """The books at the end of the last step, every line unknown before the first."""
        return MemoryUse() if self.last is None else self.last.end

    def prediction(self, method: PredictionMethod) -> PredictionRecord | None:
        """The newest prediction by one method."""
        return next((p for p in self.predictions if p.method is method), None)

    @property
    def label(self) -> str:
        """Such as ``rank 0, cuda:0, NVIDIA H100``, for a person."""
        kind = f"{self.device.kind}:{self.device.index}" if self.device.kind != "cpu" else "cpu"
        name = f", {self.device.name}" if self.device.name else ""
        return f"rank {self.device.rank}, {kind}{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """One run at a glance."""

    run: RunInfo
    devices: tuple[DeviceOverview, ...]
    events: tuple[Event, ...]

    @property
    def fullest(self) -> DeviceOverview | None:
        """The device with the highest peak; the first one before the first step."""
        return max(self.devices, key=lambda device: device.peak_use.allocated or 0, default=None)


def overview(reader: RunReader, key: str) -> RunOverview:
    """Read a run at a glance.

    Args:
        reader: An open reader of the store.
        key: The run's id, the start of it, or its name.

    Raises:
        RunNotFound: There is no such run.
        AmbiguousRun: The start of an id fits several runs.
        StorageError: The store cannot be read.
    """
    run = reader.run(key)
    predictions = reader.predictions(run.id)
    devices = []
    for device in reader.devices(run.id):
        assert device.id is not None, "a device that was read has its number in the store"
        devices.append(
            DeviceOverview(
                device=device,
                peak=reader.peak_step(run.id, device.id),
                last=reader.last_step(run.id, device.id),
                predictions=tuple(p for p in predictions if p.device == device.id),
            )
        )
    return RunOverview(run=run, devices=tuple(devices), events=reader.events(run.id))


def differences(a: MemoryUse, b: MemoryUse) -> Iterator[tuple[str, int | None]]:
    """Every line of the books with ``a − b`` in bytes; unknown where either is unknown."""
    for line in MEMORY_LINES:
        left, right = getattr(a, line), getattr(b, line)
        yield line, None if left is None or right is None else left - right


def modules_in_all_dtypes(modules: Iterable[ModuleRecord]) -> tuple[ModuleRecord, ...]:
    """One record a module, its activations of every dtype together, the largest first."""
    whole: dict[str, ModuleRecord] = {}
    for part in modules:
        seen = whole.get(part.module)
        held = part.activations + (0 if seen is None else seen.activations)
        whole[part.module] = replace(seen or part, dtype="", activations=held)
    return tuple(sorted(whole.values(), key=lambda module: -module.activations))
