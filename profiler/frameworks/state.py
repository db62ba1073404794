"""What frameworks keep beside a model's own tensors: one small interface.

A census asks every :class:`StateReader` first; what none of them claims is counted as in a plain
loop. Readers hold weak references only.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from vramscope.storage.records import MemoryClass

Place = Literal["device", "host", "nvme"]
"""Where bytes lie: on the device, or for it in the host's memory or on a disk."""


class KeptTensor(NamedTuple):
    """A tensor that a framework keeps, and what it is for."""

    tensor: torch.Tensor
    memory_class: MemoryClass
    master: bool = False
    """A float32 copy of weights that are kept or computed with in another form."""
    host_for: torch.device | None = None
    """The device whose state lies in the host's memory here; ``None`` for a device's own."""


class KeptBytes(NamedTuple):
    """Bytes that a framework keeps where Python sees no tensor: in C++, or in a file."""

    device: torch.device
    memory_class: MemoryClass
    size: int
    place: Place = "device"


class Unclaimed(Protocol):
    """A storage that a detail step met, in the order of their appearance."""

    shape: tuple[int, ...]
    """Of the tensor by which it was met first."""
    dtype: torch.dtype
    memory_class: MemoryClass | None
    reference: weakref.ref[torch.UntypedStorage] | None


class StateReader(Protocol):
    """Says what one framework keeps for one model."""

    def tensors(self) -> Iterator[KeptTensor]:
        """The tensors it keeps now; a storage named twice counts under its first class."""

    def hidden(self) -> Iterator[KeptBytes]:
        """What it keeps now beside tensors."""

    def fingerprint(self) -> Hashable:
        """What changes whenever the other two can: asked at every step, so it must be cheap."""

    def claim(self, unclaimed: Sequence[Unclaimed]) -> None:
        """Says of storages that nobody claimed what they are for, where it recognises them."""


class NothingKept:
    """The reader of a plain module: everything is its own."""

    def tensors(self) -> Iterator[KeptTensor]:
        """None."""
        return iter(())

    def hidden(self) -> Iterator[KeptBytes]:
        """None."""
        return iter(())

    def fingerprint(self) -> Hashable:
        """Nothing changes."""
        return None

    def claim(self, unclaimed: Sequence[Unclaimed]) -> None:
        """Nothing is recognised."""
