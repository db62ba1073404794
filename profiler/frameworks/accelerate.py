"""A tracker for Hugging Face Accelerate's ``log_with``: it records memory, on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker

from ..config import ProfilerConfig
from ..discovery import Discovery


class MemoryTracker(GeneralTracker):  # type: ignore[misc]
    """Attaches a profiler to the loop that this accelerator prepares.

    ``Accelerator(log_with=MemoryTracker())`` is all. Accelerate lets trackers speak on the main
    process only; this one listens to torch, and so records on every rank::

        accelerator = Accelerator(log_with=MemoryTracker(run_name="baseline"))

    What is logged with ``accelerator.log`` is left to other trackers.

    Args:
        run_name: As for :class:`~vramscope.profiler.MemoryProfiler`.
        store: As for :class:`~vramscope.profiler.MemoryProfiler`.
        config: As for :class:`~vramscope.profiler.MemoryProfiler`.
    """

    name = "vramscope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(
        self,
        *,
        run_name: str | None = None,
        store: str | Path | None = None,
        config: ProfilerConfig | None = None,
    ) -> None:
        super().__init__()
        self._discovery = Discovery(run_name=run_name, store=store, config=config)
        self._discovery.install()

    @property
    def tracker(self) -> Any:
        """The profiler, once the loop has begun; ``None`` before."""
        return self._discovery.profiler

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Settings are read off the live run."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Metrics are other trackers' business."""

    def finish(self) -> None:
        """Closes the run (``accelerator.end_training()``); other ranks' close at their exit."""
        self._discovery.finish()
