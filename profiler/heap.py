"""What outlived steps that were not followed: looked for among all tensors that Python knows.

Slow, so only a loop that grows is searched, when one of its steps is followed anyway.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping

import torch
from vramscope.storage.records import MemoryClass

from .activations import saved_for_backward
from .storages import shape_of, storages_of
from .tracker import AllocationTracker, Kind


class HeapSearch:
    """Finds what models have computed, and what is like that which outlived earlier steps.

    At the first search everything that leaks is known, since the loop has been followed while it
    grew: whatever else there is then, such as a dataset's tensors or another loop's, is no leak.
    """

    def __init__(self) -> None:
        self._bystanders: dict[int, weakref.ref[torch.UntypedStorage]] | None = None

    def run(self, tracker: AllocationTracker, alike: Mapping[Kind, MemoryClass]) -> None:
        """Enters what is found into a detail step's log.

        Args:
            tracker: Of the step, whose inputs it knows already.
            alike: Shapes and dtypes that outlived earlier steps, and what they were for.
        """
        found: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        roots: list[torch.Tensor] = []
        for tensor in _tensors():
            try:
                with torch._C.DisableTorchFunctionSubclass():
                    computed, kind = tensor.grad_fn is not None, (shape_of(tensor), tensor.dtype)
                    storages = list(storages_of(tensor)) if computed or kind in alike else []
            except Exception:  # Somebody's tensor that cannot be asked: symbolic, freed, half made.
                continue
            if self._bystanders is None:
                found.update({s._cdata: weakref.ref(s) for s in storages})
            elif storages and not any(map(self._is_bystander, storages)):
                tracker.admit(tensor, alike.get(kind, MemoryClass.TEMPORARIES))
                if computed:
                    roots.append(tensor)
        for saved in saved_for_backward(roots):
            tracker.admit(saved.tensor, MemoryClass.ACTIVATIONS)
        if self._bystanders is None:
            self._bystanders = found

    def _is_bystander(self, storage: torch.UntypedStorage) -> bool:
        known = (self._bystanders or {}).get(storage._cdata)
        return known is not None and known() is storage


def _tensors() -> Iterator[torch.Tensor]:
    """Yields every living tensor, told by its type: asking objects could wake what is lazy."""
    is_tensor: dict[type, bool] = {}
    for found in gc.get_objects():
        kind = type(found)
        known = is_tensor.get(kind)
        if known is None:
            known = is_tensor[kind] = issubclass(kind, torch.Tensor)
        if known:
            yield found
