"""What the training thread saw of a step, handed to the thread that keeps the books.

Plain and cheap to make; nothing in it keeps a tensor, a module or an optimizer alive.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import torch
from vramscope.storage.records import Phase

from .books import Interval
from .census import HeldBytes
from .devices.source import DriverReading
from .modules import ModuleNames
from .replay import DetailLog


class SavedBytes(NamedTuple):
    """One storage kept for backward, at the step's first backward."""

    sequence: int
    """Autograd sequence number of the first node that keeps it: tells the module."""
    device: torch.device
    dtype: torch.dtype
    size: int


class DetailFindings(NamedTuple):
    """All that a detail step found."""

    log: DetailLog
    saved: Sequence[SavedBytes]
    names: ModuleNames

    def frozen(self) -> DetailFindings:
        """A copy that stays as it is while the step goes on."""
        return DetailFindings(self.log.frozen(), tuple(self.saved), self.names)

    def modules(self, device: torch.device) -> dict[tuple[str, torch.dtype], int]:
        """Bytes kept for backward by module path and dtype."""
        found: dict[tuple[str, torch.dtype], int] = {}
        for saved in self.saved:
            if saved.device == device:
                key = (self.names.module_of(saved.sequence), saved.dtype)
                found[key] = found.get(key, 0) + saved.size
        return found

    def module_at(self, device: torch.device, index: int) -> str | None:
        """Path of the module that made the last allocation before a place in the log."""
        for place in range(min(index, len(self.log.entries)) - 1, -1, -1):
            entry = self.log.entries[place]
            if entry.sign > 0 and entry.storage.device == device:
                sequence = entry.storage.sequence
                return self.names.module_of(sequence) if sequence >= 0 else None
        return None


class DeviceFacts(NamedTuple):
    """One device's part of a step."""

    intervals: Sequence[Interval]
    """The allocator's view of each phase; empty where there is no allocator to ask."""
    walked: int
    """Bytes that a graph walk found, where allocations cannot be followed."""
    driver: DriverReading


class StepFacts(NamedTuple):
    """A step that has ended, or has come so far."""

    step: int
    started_ns: int
    duration_s: float
    micro_steps: int
    skipped: bool
    kind: Hashable | None
    """Steps of one kind are alike; ``None`` of a step that broke off."""
    phase: Phase | None
    """In which it ended or broke off."""
    held: Mapping[torch.device, HeldBytes]
    """The census at its end."""
    devices: Mapping[torch.device, DeviceFacts]
    detail: DetailFindings | None

    @property
    def complete(self) -> bool:
        """Whether the step came to its end."""
        return self.kind is not None
