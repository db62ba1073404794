"""Predicts a live run: reads the scenario off it and stores what the formulas say."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from vramscope.storage.writer import RunWriter

if TYPE_CHECKING:
    from .analytic import BatchShape, Scenario

# A run whose shapes vary is predicted anew for each larger batch, but not for ever.
_MOST_PREDICTIONS = 8
_WAYS_OUT = 4


class Predictor:
    """Stores a prediction after the first step, and again when a larger batch has come.

    A fault is a warning: measuring goes on without a prediction.

    Args:
        writer: Of the run.
        rank: This process.
        world_size: Number of processes.
    """

    def __init__(self, writer: RunWriter, rank: int, world_size: int) -> None:
        self._writer = writer
        self._rank = rank
        self._world_size = world_size
        self._loss_in_model = True
        self._batch: BatchShape | None = None
        self._autocast: torch.dtype | None = None
        self._left = _MOST_PREDICTIONS
        self._due = True

    def saw_call(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A root module is called with shapes not seen before."""
        if self._left:
            self._guarded(self._note_call, args, kwargs)

    def _note_call(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        from .frameworks.live import batch_shape

        batch = batch_shape(args, kwargs)
        self._loss_in_model = _has_labels(args, kwargs)
        for kind in ("cuda", "cpu"):
            if torch.is_autocast_enabled(kind):
                self._autocast = torch.get_autocast_dtype(kind)
        if batch is None:
            return
        if self._batch is None or _tokens(batch) > _tokens(self._batch):
            self._batch = batch
            self._due = True

    @property
    def due(self) -> bool:
        """Whether there is something to predict after this step."""
        return self._due and self._left > 0

    def predict(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        devices: Mapping[torch.device, int],
        micro_steps: int,
    ) -> None:
        """Predicts from the live objects, after a step.

        Args:
            models: Root modules.
            optimizers: Their optimizers.
            devices: The run's devices, with their positions in the writer.
            micro_steps: Backward passes of the step.
        """
        self._due = False
        self._left -= 1
        self._guarded(self._predict, models, optimizers, devices, max(1, micro_steps))

    def ways_out(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        devices: Mapping[torch.device, int],
    ) -> str:
        """What would have taken less, each with its bytes: sentences, or nothing.

        Args:
            models: Root modules.
            optimizers: Their optimizers.
            devices: The run's devices, with their positions in the writer.
        """
        said: list[str] = []

        def ask() -> None:
            from .analytic.remedies import remedies

            for device in list(devices)[:1]:
                found = remedies(self._scenario(models, optimizers, device, 1))
                said.extend(
                    f"Predicted to take {remedy.saved_bytes / 2**20:,.1f} MiB less: "
                    f"{remedy.change} (price: {remedy.price})"
                    for remedy in found[:_WAYS_OUT]
                )

        self._guarded(ask)
        return "".join(f"\n{sentence}" for sentence in said)

    def _scenario(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        device: torch.device,
        accumulation: int,
    ) -> Scenario:
        from .frameworks.live import read_scenario

        return read_scenario(
            models,
            optimizers,
            device=device,
            batch=self._batch,
            autocast_dtype=self._autocast,
            world_size=self._world_size,
            rank=self._rank,
            accumulation=accumulation,
            loss_in_model=self._loss_in_model,
        )

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as fault:
            self._left = 0
            warnings.warn(
                f"vramscope measures on without a prediction. {type(fault).__name__}: {fault}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _predict(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        devices: Mapping[torch.device, int],
        accumulation: int,
    ) -> None:
        from .analytic import predict
        from .frameworks.live import read_settings

        for device, position in devices.items():
            scenario = self._scenario(models, optimizers, device, accumulation)
            self._writer.write(predict(scenario).to_record(position))
        self._writer.update_run(
            settings=read_settings(
                models,
                optimizers,
                batch=self._batch,
                autocast_dtype=self._autocast,
                world_size=self._world_size,
                accumulation=accumulation,
            )
        )


def _has_labels(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call hands the model what it needs to compute its loss itself."""
    if any(kwargs.get(name) is not None for name in ("labels", "targets", "target", "y")):
        return True
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    return len(tensors) > 1 and tensors[1].dtype is torch.int64


def _tokens(batch: BatchShape) -> int:
    return batch.micro_batch * (batch.sequence or 1)
