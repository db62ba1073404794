"""DistributedDataParallel: buckets that its C++ reducer keeps, which Python never sees."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel
from vramscope.storage.records import MemoryClass

from .state import KeptBytes, KeptTensor, Unclaimed

_MOST_LOOKS = 8
"""The buckets are rebuilt once, in the second synchronised forward: then their sizes are known."""


class DDPReader:
    """Buckets as ``communication``; with ``gradient_as_bucket_view`` they are the gradients.

    The reducer's logging data says the buckets' sizes. Their storages become known where a
    gradient is a view of one, or when a detail step meets one (see :meth:`claim`).

    Args:
        model: The wrapper.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = weakref.ref(model)
        self._sizes: list[int] = []
        self._looks = 0
        self._met: list[weakref.ref[torch.UntypedStorage]] = []

    @classmethod
    def of(cls, module: torch.nn.Module) -> DDPReader | None:
        """A reader, if the module is such a wrapper."""
        return cls(module) if isinstance(module, DistributedDataParallel) else None

    def tensors(self) -> Iterator[KeptTensor]:
        """Buckets whose storages are known, where they are not the gradients themselves."""
        model = self._model()
        if model is None:
            return
        gradients = set()
        for parameter in model.parameters():
            if parameter.grad is not None:
                storage = parameter.grad.untyped_storage()
                gradients.add(storage._cdata)
                if model.gradient_as_bucket_view and parameter.grad._is_view():
                    self._remember(storage)
        for storage in self._known():
            if storage._cdata not in gradients:
                bucket = torch.empty(0, dtype=torch.uint8, device=storage.device)
                yield KeptTensor(bucket.set_(storage), MemoryClass.COMMUNICATION)

    def hidden(self) -> Iterator[KeptBytes]:
        """Buckets whose storages are not known."""
        model = self._model()
        if model is None:
            return
        size = self._missing(model)
        parameters = [p for p in model.parameters() if p.requires_grad]
        if size and parameters:
            yield KeptBytes(parameters[0].device, MemoryClass.COMMUNICATION, size)

    def fingerprint(self) -> Hashable:
        """The buckets' sizes until they are rebuilt; they stay the same from then on."""
        model = self._model()
        return None if model is None else tuple(self._bucket_sizes(model))

    def claim(self, unclaimed: Sequence[Unclaimed]) -> None:
        """Recognises buckets: by their sizes, or by filling the bytes of all of them.

        The reducer says the sizes of rebuilt buckets only some steps later. It makes them one
        after the other, flat and in the parameters' types, before anything else in that step.
        """
        model = self._model()
        if model is None:
            return
        total = self._missing(model)
        if not total:
            return
        living: _Met = []
        for candidate in unclaimed:
            storage = candidate.reference() if candidate.reference is not None else None
            if storage is not None:
                living.append((candidate, storage))
        found = _matching(living, Counter(self._bucket_sizes(model)))
        if sum(s.nbytes() for _, s in found) != total:
            dtypes = {p.dtype for p in model.parameters()}
            flat = [(u, s) for u, s in living if len(u.shape) == 1 and u.dtype in dtypes]
            found = _filling(flat, total)
        for tracked, storage in found:
            tracked.memory_class = MemoryClass.COMMUNICATION
            self._met.append(weakref.ref(storage))

    def _missing(self, model: DistributedDataParallel) -> int:
        """Bytes of buckets whose storages are not known; all of them together never change."""
        known = sum(storage.nbytes() for storage in self._known())
        return max(0, sum(self._bucket_sizes(model)) - known)

    def _remember(self, storage: torch.UntypedStorage) -> None:
        if all(known._cdata != storage._cdata for known in self._known()):
            self._met.append(weakref.ref(storage))

    def _known(self) -> Iterator[torch.UntypedStorage]:
        self._met = [reference for reference in self._met if reference() is not None]
        for reference in self._met:
            storage = reference()
            if storage is not None:
                yield storage

    def _bucket_sizes(self, model: DistributedDataParallel) -> list[int]:
        """Bytes of every bucket, as far as the reducer has said."""
        if self._looks < _MOST_LOOKS:
            data = model._get_ddp_logging_data()
            self._looks = _MOST_LOOKS if data.get("has_rebuilt_buckets") else self._looks + 1
            text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
            self._sizes = [int(size) for size in str(text).split(",") if size.strip()]
        return self._sizes


_Met = list[tuple[Unclaimed, torch.UntypedStorage]]


def _matching(met: _Met, sizes: Counter[int]) -> _Met:
    """The storages of these sizes, of each size no more than there are."""
    left = Counter(sizes)
    found: _Met = []
    for tracked, storage in met:
        if left[storage.nbytes()] > 0:
            left[storage.nbytes()] -= 1
            found.append((tracked, storage))
    return found


def _filling(met: _Met, total: int) -> _Met:
    """The first storages, if some number of them hold exactly this many bytes."""
    held = 0
    for position, (_, storage) in enumerate(met):
        held += storage.nbytes()
        if held == total:
            return met[: position + 1]
    return []
