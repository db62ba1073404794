"""Which storages belong to which class: parameters, gradients, optimizer state, buffers.

The census enumerates unique storages, and is redone only when a cheap look finds a change.
It keeps no tensor, module or optimizer alive. What frameworks keep beside a model's own tensors
is said by the readers of :mod:`.frameworks`, who are asked first.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from vramscope.storage.records import MemoryClass

from .frameworks.readers import readers_of
from .frameworks.state import KeptBytes, StateReader, Unclaimed
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
    host: dict[MemoryClass, int] = field(default_factory=dict)
    """Model state that lies in the host's memory for this device: never the device's bytes."""
    nvme: dict[MemoryClass, int] = field(default_factory=dict)
    """Model state that lies in files for this device."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One storage and the class that it was found under."""

    storage: torch.UntypedStorage
    tensor: torch.Tensor
    memory_class: MemoryClass
    master: bool = False
    paged_for: torch.device | None = None
    """The device that pages this storage in when it needs it; ``None`` for any other storage."""
    host_for: torch.device | None = None
    """The device whose state is kept in the host's memory here; ``None`` for a device's own."""


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
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, StateReader] = (
            weakref.WeakKeyDictionary()
        )
        self._readers: list[StateReader] = []
        self._kept: list[Hashable] = []
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
        self._readers = readers_of(list(alive(self._models)), self._known)
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
            [weakref.ref(p) for p in owned if p.requires_grad and id(p) not in optimized],
            [
                weakref.ref(module)
                for model in alive(self._models)
                for module in model.modules()
                if module._buffers
            ],
        )
        self._volatile = True

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer steps any parameter that is counted here."""
        known = {id(parameter) for parameter in alive(self._parameters)}
        return any(id(p) in known for group in optimizer.param_groups for p in group["params"])

    def devices(self) -> list[torch.device]:
        """Devices that hold parameters, or compute with offloaded ones, accelerators first."""
        found = [
            device
            for device, held in self.held().items()
            if MemoryClass.PARAMETERS in held.classes or held.host or held.nvme
        ]
        return sorted(
            (d for d in found if d.type in ("cuda", "cpu")),
            key=lambda d: (d.type == "cpu", d.index or 0),
        )

    def held(self, likeness: Hashable = None) -> dict[torch.device, HeldBytes]:
        """Bytes by device and class, now; from memory where nothing can have changed.

        Args:
            likeness: Equal for steps that are alike: see :class:`Watch`.
        """
        changed, kept = self._watch.changed(likeness), self._fingerprints()
        if self._watch.restructured:
            self.refresh()
        if changed or kept != self._kept or self._volatile:
            self._kept = kept
            self._held = self._count(self.holdings(), self._hidden())
        return self._held

    def recount(self) -> tuple[list[Holding], dict[torch.device, HeldBytes]]:
        """Counts anew, changed or not, and says what was counted."""
        self.refresh()
        self._kept = self._fingerprints()
        holdings = list(self.holdings())
        self._held = self._count(holdings, self._hidden())
        return holdings, self._held

    def _fingerprints(self) -> list[Hashable]:
        """What changes whenever what frameworks keep can have changed."""
        return [reader.fingerprint() for reader in self._readers]

    def _count(
        self, holdings: Iterable[Holding], hidden: Iterable[KeptBytes]
    ) -> dict[torch.device, HeldBytes]:
        counted: dict[torch.device, HeldBytes] = {}
        self.counts += 1
        for holding in holdings:
            size, memory_class = holding.storage.nbytes(), holding.memory_class
            if holding.paged_for is not None:
                counted.setdefault(holding.paged_for, HeldBytes()).paged += size
                continue
            held = counted.setdefault(holding.host_for or holding.storage.device, HeldBytes())
            if holding.host_for is not None:
                held.host[memory_class] = held.host.get(memory_class, 0) + size
                continue
            size = self._in_blocks(holding.storage.device, size)
            held.classes[memory_class] = held.classes.get(memory_class, 0) + size
            if holding.master:
                held.master_weights += size
        for kept in hidden:
            held = counted.setdefault(kept.device, HeldBytes())
            places = {"device": held.classes, "host": held.host, "nvme": held.nvme}
            place = places[kept.place]
            place[kept.memory_class] = place.get(kept.memory_class, 0) + kept.size
        return counted

    def _in_blocks(self, device: torch.device, size: int) -> int:
        """An allocation's size as the device's allocator rounds it up."""
        block = self._block_bytes.get(device.type, 1)
        return -(-size // block) * block

    def _hidden(self) -> Iterator[KeptBytes]:
        """What frameworks keep where Python sees no tensor; asked after :meth:`holdings`."""
        for reader in self._readers:
            for kept in reader.hidden():
                on_device = kept.place == "device"
                size = self._in_blocks(kept.device, kept.size) if on_device else kept.size
                yield kept._replace(size=size)

    def holdings(self) -> Iterator[Holding]:
        """Every storage once, under the first class that claims it."""
        self._volatile = False
        seen: set[int] = set()
        for claim in self._claims():
            for storage in storages_of(claim.tensor):
                key = storage._cdata
                if key not in seen:
                    seen.add(key)
                    yield Holding(storage, *claim)

    def gradients(self) -> Iterator[torch.Tensor]:
        """The gradients that parameters, and frameworks for them, have now."""
        for reader in self._readers:
            for kept in reader.tensors():
                if kept.memory_class is MemoryClass.GRADIENTS:
                    yield kept.tensor
        yield from _gradients_of((*alive(self._parameters), *alive(self._masters)))

    def recognise(self, met: Iterable[Unclaimed]) -> None:
        """Frameworks say of storages that a detail step met, and nobody claimed, what they are."""
        if self._readers:
            unclaimed = [storage for storage in met if storage.memory_class is None]
            for reader in self._readers:
                reader.claim(unclaimed)

    def _claims(self) -> Iterator[_Claim]:
        offloaded: dict[int, torch.device] = {}
        for reader in self._readers:
            for kept in reader.tensors():
                if kept.host_for is not None:
                    offloaded |= {s._cdata: kept.host_for for s in storages_of(kept.tensor)}
                self._volatile |= kept.tensor.layout is not torch.strided
                yield _Claim(kept.tensor, kept.memory_class, kept.master, host_for=kept.host_for)
        parameters = list(alive(self._parameters))
        masters = list(alive(self._masters))
        for parameter in parameters:
            yield _Claim(parameter, MemoryClass.PARAMETERS)
        for parameter in masters:
            yield _Claim(parameter, MemoryClass.OPTIMIZER_STATE, master=True)
        for gradient in _gradients_of((*parameters, *masters)):
            self._volatile |= gradient.layout is not torch.strided
            yield _Claim(gradient, MemoryClass.GRADIENTS)
        for optimizer in alive(self._optimizers):
            yield from self._state_of(optimizer, offloaded)
        for model in alive(self._models):
            for buffer in model.buffers():
                yield _Claim(buffer, MemoryClass.BUFFERS)

    def _state_of(
        self, optimizer: torch.optim.Optimizer, offloaded: Mapping[int, torch.device]
    ) -> Iterator[_Claim]:
        for owner, state in optimizer.state.items():
            host = _host_of(owner, offloaded) if offloaded else None
            values = state.values() if isinstance(state, dict) else (state,)
            for value in values:
                if isinstance(value, torch.Tensor):
                    paged = _paged_for(value, owner)
                    yield _Claim(value, MemoryClass.OPTIMIZER_STATE, False, paged, host)
                elif isinstance(value, (list, tuple, dict, set)):
                    self._volatile = True  # grows inside one entry, as LBFGS's history does
                    for tensor in tensors_in(value):
                        yield _Claim(tensor, MemoryClass.OPTIMIZER_STATE, host_for=host)


class _Claim(NamedTuple):
    """A tensor and what it is for; the order is that of a :class:`Holding` after its storage."""

    tensor: torch.Tensor
    memory_class: MemoryClass
    master: bool = False
    paged_for: torch.device | None = None
    host_for: torch.device | None = None


def _gradients_of(parameters: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for parameter in parameters:
        for gradient in (parameter.grad, getattr(parameter, "main_grad", None)):
            if gradient is not None:
                yield gradient


def _host_of(owner: object, offloaded: Mapping[int, torch.device]) -> torch.device | None:
    """The device whose parameter this is, where it lies in the host's memory: so does its state."""
    if not isinstance(owner, torch.Tensor):
        return None
    return next((offloaded.get(storage._cdata) for storage in storages_of(owner)), None)


def _paged_for(state: torch.Tensor, owner: object) -> torch.device | None:
    """Bitsandbytes' paged state says it is on the CPU, and is paged to its parameter's device."""
    if not getattr(state, "is_paged", False):
        return None
    return owner.device if isinstance(owner, torch.Tensor) else state.device
