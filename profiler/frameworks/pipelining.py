"""``torch.distributed.pipelining``: the buffers in which a stage receives from its neighbours."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from vramscope.storage.records import MemoryClass

from .state import KeptBytes, KeptTensor, Unclaimed

_STAGES = "torch.distributed.pipelining.stage"


class PipelineReader:
    """One stage's receive buffers as ``communication``; its state is the submodule's own.

    Args:
        stage: The stage around a submodule.
    """

    def __init__(self, stage: Any) -> None:
        self._stage = weakref.ref(stage)

    @classmethod
    def of(cls, module: torch.nn.Module) -> PipelineReader | None:
        """A reader, if the module is a stage's submodule."""
        stage = stage_of(module)
        return None if stage is None else cls(stage)

    def tensors(self) -> Iterator[KeptTensor]:
        """Buffers for activations from the stage before, and gradients from the one after."""
        for buffer in self._buffers():
            yield KeptTensor(buffer, MemoryClass.COMMUNICATION)
            # What the stage before is to be sent lies here until the next schedule begins.
            if buffer.grad is not None:
                yield KeptTensor(buffer.grad, MemoryClass.COMMUNICATION)

    def hidden(self) -> Iterator[KeptBytes]:
        """Nothing is hidden."""
        return iter(())

    def fingerprint(self) -> Hashable:
        """How many buffers there are, and how many hold a gradient."""
        buffers = list(self._buffers())
        return len(buffers), sum(buffer.grad is not None for buffer in buffers)

    def claim(self, unclaimed: Sequence[Unclaimed]) -> None:
        """Everything is known by attribute."""

    def _buffers(self) -> Iterator[torch.Tensor]:
        stage = self._stage()
        for name in ("args_recv_info", "grad_recv_info"):
            for infos in (getattr(stage, name, None) or {}).values():
                for info in infos:
                    buffer = getattr(info, "buffer", None)
                    if isinstance(buffer, torch.Tensor):
                        yield buffer


def stage_of(module: torch.nn.Module) -> Any:
    """The pipeline stage around a submodule, or ``None``; nothing leads there but a reference."""
    stages = sys.modules.get(_STAGES)
    base = getattr(stages, "_PipelineStageBase", None)
    if base is None:
        return None
    for holder in gc.get_referrers(module):
        # A stage's attributes may lie in a dictionary of their own, or in the object itself.
        owners = gc.get_referrers(holder) if isinstance(holder, dict) else (holder,)
        for owner in owners:
            if isinstance(owner, base) and owner.submod is module:
                return owner
    return None
