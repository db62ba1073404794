"""The registry of state readers: which of a model's modules keep more than their own tensors."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence

import torch

from .ddp import DDPReader
from .deepspeed import DeepSpeedReader
from .pipelining import PipelineReader
from .state import NothingKept, StateReader

ReaderFactory = Callable[[torch.nn.Module], StateReader | None]


def readers_of(
    models: Sequence[torch.nn.Module],
    known: weakref.WeakKeyDictionary[torch.nn.Module, StateReader],
) -> list[StateReader]:
    """The readers of all framework objects in these models, wrappers included.

    Args:
        models: Root modules, as they are trained.
        known: Readers by the module that they read; a module's reader is made once and kept here.
    """
    factories = _factories()
    found: dict[int, StateReader] = {}
    for model in models:
        if model not in known:
            known[model] = _first(model, (*factories, PipelineReader.of)) or NothingKept()
        for module in model.modules():
            reader = known.get(module)
            if reader is None and (reader := _first(module, factories)) is not None:
                known[module] = reader
            if reader is not None and not isinstance(reader, NothingKept):
                found[id(reader)] = reader
    return list(found.values())


def _factories() -> list[ReaderFactory]:
    """Those of frameworks that are loaded: what nobody imported wraps nothing."""
    factories: list[ReaderFactory] = [DeepSpeedReader.of, DDPReader.of]
    if "torch.distributed.fsdp" in sys.modules:
        from .fsdp import FSDP1Reader, FSDP2Reader

        factories += [FSDP1Reader.of, FSDP2Reader.of]
    return factories


def _first(module: torch.nn.Module, factories: Sequence[ReaderFactory]) -> StateReader | None:
    readers = (factory(module) for factory in factories)
    return next((reader for reader in readers if reader is not None), None)
