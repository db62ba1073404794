"""Which storages belong to which class: parameters, gradients, optimizer state, buffers.

The census enumerates unique storages, and is redone only when a cheap look finds a change.
It keeps no tensor, module or optimizer alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from vramscope.storage.records import MemoryClass

from .storages import storages_of, tensors_in
from .watch import Watch, alive

_HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class HeldBytes:
    """What one device holds, in bytes by class, each storage counted once."""

    classes: dict[MemoryClass, int] = field(default_factory=dict)
    master_weights: int = 0
    paged: int = 0
    """Managed memory that stands for this device: outside torch's allocator, and of no class."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One storage and the class that it was found under."""

    storage: torch.UntypedStorage
    tensor: torch.Tensor
    memory_class: MemoryClass
    master: bool = False
    paged_for: torch.device | None = None
    """The device that pages this storage in when it needs it; ``None`` for any other storage."""


class Census:
    """Counts what models and optimizers hold.

    Args:
        models: Root modules.
        optimizers: Their optimizers, unwrapped.
        block_bytes: By device type, what an allocation is rounded up to.
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        block_bytes: dict[str, int],
    ) -> None:
        self._models = [weakref.ref(model) for model in models]
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._block_bytes = block_bytes
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._masters: list[weakref.ref[torch.Tensor]] = []
        self._watch = Watch(self._optimizers)
        self._volatile = True
        self._held: dict[torch.device, HeldBytes] = {}
        self.counts = 0
        """How often storages were counted anew."""
        self.refresh()

    def add(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Takes further models and optimizers in."""
        self._models += [weakref.ref(model) for model in models]
        self._optimizers += [weakref.ref(optimizer) for optimizer in optimizers]
        self.refresh()

    def refresh(self) -> None:
        """Looks the parameters up anew (a module may have been added, moved or cast)."""
        seen: set[int] = set()
        owned: list[torch.Tensor] = []
        for model in alive(self._models):
            for parameter in model.parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    owned.append(parameter)
        half = any(parameter.dtype in _HALF for parameter in owned)
        masters: list[torch.Tensor] = []
        for optimizer in alive(self._optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) in seen:
                        continue
                    seen.add(id(parameter))
                    copy = half and parameter.dtype is torch.float32
                    (masters if copy else owned).append(parameter)
        self._parameters = [weakref.ref(parameter) for parameter in owned]
        self._masters = [weakref.ref(parameter) for parameter in masters]
        optimized = {
            id(p) for o in alive(self._optimizers) for g in o.param_groups for p in g["params"]
        }
        self._watch.begin(
            [weakref.ref(p) for p in owned if p.requires_grad and id(p) not in optimized]
        )
        self._volatile = True

    def devices(self) -> list[torch.device]:
        """Devices that hold parameters, accelerators first; from the last count."""
        found = [d for d, held in self.held().items() if MemoryClass.PARAMETERS in held.classes]
        return sorted(
            (d for d in found if d.type in ("cuda", "cpu")),
            key=lambda d: (d.type == "cpu", d.index or 0),
        )

    def held(self, likeness: Hashable = None) -> dict[torch.device, HeldBytes]:
        """Bytes by device and class, now; from memory where nothing can have changed.

        Args:
            likeness: Equal for steps that are alike: see :class:`Watch`.
        """
        if self._watch.changed(likeness) or self._volatile:
            self._held = self._count(self.holdings())
        return self._held

    def recount(self) -> tuple[list[Holding], dict[torch.device, HeldBytes]]:
        """Counts anew, changed or not, and says what was counted."""
        self._watch.changed(None)
        holdings = list(self.holdings())
        self._held = self._count(holdings)
        return holdings, self._held

    def _count(self, holdings: Iterable[Holding]) -> dict[torch.device, HeldBytes]:
        counted: dict[torch.device, HeldBytes] = {}
        self.counts += 1
        for holding in holdings:
            if holding.paged_for is not None:
                paging = counted.setdefault(holding.paged_for, HeldBytes())
                paging.paged += holding.storage.nbytes()
                continue
            device = holding.storage.device
            block = self._block_bytes.get(device.type, 1)
            size = -(-holding.storage.nbytes() // block) * block
            held = counted.setdefault(device, HeldBytes())
            held.classes[holding.memory_class] = held.classes.get(holding.memory_class, 0) + size
            if holding.master:
                held.master_weights += size
        return counted

    def holdings(self) -> Iterator[Holding]:
        """Every storage once, under the first class that claims it."""
        self._volatile = False
        seen: set[int] = set()
        for tensor, memory_class, master, paged_for in self._tensors():
            for storage in storages_of(tensor):
                key = storage._cdata
                if key not in seen:
                    seen.add(key)
                    yield Holding(storage, tensor, memory_class, master, paged_for)

    def gradients(self) -> Iterator[torch.Tensor]:
        """The gradients that parameters have now."""
        return _gradients_of((*alive(self._parameters), *alive(self._masters)))

    def _tensors(
        self,
    ) -> Iterator[tuple[torch.Tensor, MemoryClass, bool, torch.device | None]]:
        parameters = list(alive(self._parameters))
        masters = list(alive(self._masters))
        for parameter in parameters:
            yield parameter, MemoryClass.PARAMETERS, False, None
        for parameter in masters:
            yield parameter, MemoryClass.OPTIMIZER_STATE, True, None
        for gradient in _gradients_of((*parameters, *masters)):
            self._volatile |= gradient.layout is not torch.strided
            yield gradient, MemoryClass.GRADIENTS, False, None
        for optimizer in alive(self._optimizers):
            for owner, state in optimizer.state.items():
                values = state.values() if isinstance(state, dict) else (state,)
                for value in values:
                    if isinstance(value, torch.Tensor):
                        yield value, MemoryClass.OPTIMIZER_STATE, False, _paged_for(value, owner)
                    elif isinstance(value, (list, tuple, dict, set)):
                        self._volatile = True  # grows inside one entry, as LBFGS's history does
                        for tensor in tensors_in(value):
                            yield tensor, MemoryClass.OPTIMIZER_STATE, False, None
        for model in alive(self._models):
            for buffer in model.buffers():
                yield buffer, MemoryClass.BUFFERS, False, None


def _gradients_of(parameters: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for parameter in parameters:
        for gradient in (parameter.grad, getattr(parameter, "main_grad", None)):
            if gradient is not None:
                yield gradient


def _paged_for(state: torch.Tensor, owner: object) -> torch.device | None:
    """Bitsandbytes' paged state says it is on the CPU, and is paged to its parameter's device."""
    if not getattr(state, "is_paged", False):
        return None
    return owner.device if isinstance(owner, torch.Tensor) else state.device
