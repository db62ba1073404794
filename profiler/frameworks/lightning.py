"""A callback for Lightning's ``Trainer``: it records memory, whatever the strategy wraps."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from ..config import ProfilerConfig
from ..session import MemoryProfiler


class MemoryCallback(Callback):
    """``Trainer(…, callbacks=[MemoryCallback()])`` is all.

    Args:
        run_name: As for :class:`~vramscope.profiler.MemoryProfiler`.
        store: As for :class:`~vramscope.profiler.MemoryProfiler`.
        config: As for :class:`~vramscope.profiler.MemoryProfiler`.
    """

    def __init__(
        self,
        *,
        run_name: str | None = None,
        store: str | Path | None = None,
        config: ProfilerConfig | None = None,
    ) -> None:
        self._arguments: dict[str, Any] = {"run_name": run_name, "store": store, "config": config}
        self._profiler: MemoryProfiler | None = None
        self._evaluation = contextlib.ExitStack()

    @property
    def profiler(self) -> MemoryProfiler | None:
        """The profiler, while training."""
        return self._profiler

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attaches to what the strategy wrapped, and to its optimizers."""
        model = trainer.strategy.model or pl_module
        profiler = MemoryProfiler(model, trainer.optimizers, **self._arguments)
        self._profiler = profiler.attach()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Without a wrapper Lightning calls ``training_step``, and no module: forward begins."""
        if self._profiler is not None and trainer.strategy.model is pl_module:
            self._profiler.heard_late(pl_module, (batch,))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Evaluation is no part of a step."""
        if self._profiler is not None:
            self._evaluation.enter_context(self._profiler.phase("eval"))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Back to training."""
        self._evaluation.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Closes the run."""
        self._finish(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Closes the run, with what ended it."""
        self._finish(exception)

    def _finish(self, error: BaseException | None) -> None:
        self._evaluation.close()
        if self._profiler is not None:
            self._profiler.finish(error)
            self._profiler = None
