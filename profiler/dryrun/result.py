"""What a dry run tells: the records of a measured run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from vramscope.storage.records import (
    DeviceInfo,
    MemoryUse,
    ModuleRecord,
    Phase,
    PhaseRecord,
    Record,
    RunInfo,
    RunStatus,
    StepRecord,
)
from vramscope.storage.writer import RunWriter

from .. import identity


class DryRun:
    """One step, followed allocation by allocation.

    Args:
        records: As a measured run keeps them, of one device.
        device: Whose semantics they have.
    """

    def __init__(self, records: Sequence[Record], device: str) -> None:
        self.records = tuple(records)
        """Step, phases, modules, timeline and what the peak is made of."""
        self.device = device
        """``cuda`` or ``cpu``."""

    @property
    def step(self) -> StepRecord:
        """The books at the step's peak and at its end."""
        return next(r for r in self.records if isinstance(r, StepRecord))

    @property
    def phases(self) -> list[PhaseRecord]:
        """The books at each phase's own peak, in order."""
        return [r for r in self.records if isinstance(r, PhaseRecord)]

    @property
    def modules(self) -> list[ModuleRecord]:
        """What each module keeps for backward."""
        return [r for r in self.records if isinstance(r, ModuleRecord)]

    def phase(self, phase: Phase) -> MemoryUse | None:
        """The books at the highest peak of the phases of one kind."""
        uses = [r.peak for r in self.phases if r.phase is phase]
        return max(uses, key=lambda use: use.allocated or 0, default=None)

    def save(
        self,
        store: str | Path | None = None,
        *,
        name: str = "dry run",
        more: Sequence[Record] = (),
    ) -> str:
        """Writes it into a store as a run, which every chart draws beside measured ones.

        Args:
            store: URL or path; ``VRAMSCOPE_DB`` or ``vramscope.db`` by default.
            name: For people.
            more: Further records of the run.

        Returns:
            The run's id.

        Raises:
            StorageError: The store cannot be written.
        """
        run = RunInfo(
            id=identity.run_id(1),
            name=name,
            started_at=datetime.now(UTC),
            settings={"dry_run": True},
            environment=identity.environment(),
        )
        device = DeviceInfo(host=identity.host_name(), kind=self.device, name="dry run")
        writer = RunWriter(store, run, [device])
        for record in (*self.records, *more):
            writer.write(record)
        writer.close(RunStatus.COMPLETED)
        return run.id
