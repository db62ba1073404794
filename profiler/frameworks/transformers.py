"""A callback for Hugging Face's ``Trainer``: it records memory, whatever the trainer wraps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..config import ProfilerConfig
from ..discovery import Discovery


class MemoryCallback(TrainerCallback):
    """``Trainer(…, callbacks=[MemoryCallback()])`` is all; DDP and DeepSpeed are looked through.

    The trainer shows callbacks its bare model; the profiler is attached to what it really calls
    at the first step.

    Args:
        run_name: The trainer's ``run_name``, else the script's name, by default.
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
        self._run_name = run_name
        self._store = store
        self._config = config
        self._discovery: Discovery | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins to look for the loop."""
        optimizer = kwargs.get("optimizer")
        self._discovery = Discovery(
            run_name=self._run_name or getattr(args, "run_name", None),
            store=self._store,
            config=self._config,
            optimizers=() if optimizer is None else (optimizer,),
        )
        self._discovery.install()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Closes the run. One that an error ends is closed when the program ends."""
        if self._discovery is not None:
            self._discovery.finish()
            self._discovery = None
