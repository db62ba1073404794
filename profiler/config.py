"""How a profiler measures: one frozen object, validated when it is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerConfig:
    """Settings of a :class:`~vramscope.profiler.MemoryProfiler`.

    Raises:
        ValueError: A value is outside its range; the message names field, value and range.
    """

    detail_every: int = 50
    """Every how many steps one is followed allocation by allocation; 0 for never."""
    detail_first: int = 3
    """How many steps at the start of a run are detail steps."""
    predict: bool = True
    """Predict the run's memory from the live model and store it beside the measurement."""
    snapshot_on_oom: str | None = None
    """Folder for torch's own allocator snapshot when memory runs out, if history is recorded
    (``torch.cuda.memory._record_memory_history``); ``None`` for no snapshot."""
    driver_every_s: float = 1.0
    """How often, at most, the driver (NVML) is asked, in seconds."""

    def __post_init__(self) -> None:
        for name in ("detail_every", "detail_first"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"ProfilerConfig.{name} must be an integer >= 0, got {value!r}")
        if not self.driver_every_s >= 0:
            raise ValueError(
                f"ProfilerConfig.driver_every_s must be seconds >= 0, got {self.driver_every_s!r}"
            )

    def is_detail_step(self, step: int) -> bool:
        """Whether the step with this number (from 1) is followed in detail."""
        if step <= self.detail_first:
            return True
        return self.detail_every > 0 and step % self.detail_every == 0
