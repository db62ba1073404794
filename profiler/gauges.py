"""What the training thread reads off one device while a step is open."""

from __future__ import annotations

from vramscope.storage.records import Phase

from .books import Interval
from .devices.source import DriverReading, MemorySource
from .facts import DeviceFacts


class DeviceGauge:
    """Reads a device's allocator phase by phase.

    Args:
        source: Of the device's figures.
    """

    def __init__(self, source: MemorySource) -> None:
        self.source = source
        self.walked = 0
        """Bytes that a graph walk found, where allocations cannot be followed."""
        self.driver = DriverReading()
        self._intervals: list[Interval] = []

    def begin_step(self) -> None:
        """Forgets what lay between the steps."""
        self.source.read()
        self._intervals = []
        self.walked = 0

    def end_interval(self, phase: Phase) -> None:
        """A phase has ended: reads the allocator and its peak in that phase."""
        reading = self.source.read()
        if reading.allocated is not None:
            self._intervals.append(Interval(phase, reading))

    def facts(self) -> DeviceFacts:
        """What was read since the step began."""
        return DeviceFacts(tuple(self._intervals), self.walked, self.driver)
