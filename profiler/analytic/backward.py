"""The backward pass played from a recording: what is alive when, and where its peak lies.

Saved storages go when the last operator that keeps them has run backward, gradients of
parameters come, gradients of activations come and go. Blocks are alike, so that between the
last and the first everything changes evenly: only these two are played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .activations import Recording, Segment
from .tape import Op, Storage, Value

RNG_STATE = 5056
"""Bytes of the CPU generator's state that ``torch.utils.checkpoint`` keeps for each block."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Storages that are alike: what a term sums."""

    label: str
    dims: tuple[str, ...]
    dtype: str
    nbytes: int

    @classmethod
    def of(cls, storage: Storage) -> Kind:
        """The kind of a storage."""
        return cls(storage.label, storage.dims, storage.dtype, storage.nbytes)


Kinds = Counter[Kind]


def kinds_of(storages: Iterable[Storage], times: int = 1) -> Kinds:
    """How many storages there are of each kind."""
    counted: Kinds = Counter()
    for storage in storages:
        counted[Kind.of(storage)] += times
    return counted


def total(kinds: Kinds) -> int:
    """Bytes of all storages."""
    return sum(kind.nbytes * count for kind, count in kinds.items())


@dataclass(frozen=True, slots=True)
class Instant:
    """What is alive at one instant of the backward pass."""

    saved: Kinds
    recomputed: Kinds
    """What a checkpointed block has made again for its own backward."""
    copies: Kinds
    gradients: int
    """Bytes of parameters' gradients made so far in this pass."""
    temporaries: int
    """Bytes of activations' gradients, and of parameters' before they are added or cast."""

    @property
    def nbytes(self) -> int:
        """All of it."""
        kept = total(self.saved) + total(self.recomputed) + total(self.copies)
        return kept + self.gradients + self.temporaries


@dataclass(eq=False, slots=True)
class _Buffer:
    """A gradient of an activation; several values may share it."""

    nbytes: int
    owners: int = 0


@dataclass(slots=True)
class _Player:
    """Plays operators backward and remembers the fullest instant."""

    saved: Kinds
    copies: Kinds
    adds_to_gradients: bool
    """Gradients exist already (accumulation): new ones are added and dropped."""
    recomputed: Kinds = field(default_factory=Counter)
    """The part of ``saved`` that a checkpointed block has made again."""
    saved_bytes: int = 0
    copy_bytes: int = 0
    gradients: int = 0
    temporaries: int = 0
    peak_bytes: int = -1
    peak: Instant | None = None
    buffers: dict[Value, _Buffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.saved_bytes, self.copy_bytes = total(self.saved), total(self.copies)
        self.look()

    def look(self, extra: int = 0) -> None:
        """Remember this instant if it is the fullest so far."""
        held = self.saved_bytes + self.copy_bytes + self.gradients + self.temporaries + extra
        if held > self.peak_bytes:
            self.peak_bytes = held
            self.peak = Instant(
                saved=self.saved - self.recomputed,
                recomputed=Counter(self.recomputed),
                copies=Counter(self.copies),
                gradients=self.gradients,
                temporaries=self.temporaries + extra,
            )

    def change(self, saved: Kinds, copies: Kinds, sign: int) -> None:
        """Keep or release storages."""
        for kind, count in saved.items():
            self.saved[kind] += sign * count
            self.saved_bytes += sign * count * kind.nbytes
        for kind, count in copies.items():
            self.copies[kind] += sign * count
            self.copy_bytes += sign * count * kind.nbytes

    def play(self, segment: Segment, *, tied: bool = False) -> None:
        """Run a segment's operators backward, the last first."""
        holders: Counter[Storage] = Counter(
            s for op in segment.ops for s in (*op.saved, *op.copies)
        )
        for op in reversed(segment.ops):
            self._run(op, tied=tied)
            for storage in op.saved:
                holders[storage] -= 1
                if not holders[storage]:
                    gone = kinds_of([storage])
                    self.change(gone, Counter(), -1)
                    self.recomputed -= gone
            for storage in op.copies:
                self.change(Counter(), kinds_of([storage]), -1)

    def _run(self, op: Op, *, tied: bool) -> None:
        incoming = [b for v in op.outputs if (b := self.buffers.pop(v, None)) is not None]
        if op.passes_gradient:
            self._hand_on(op.inputs, incoming)
            return
        made = [_Buffer(v.storage.nbytes) for v in op.inputs]
        self.temporaries += sum(b.nbytes for b in made)
        self._make_weight_gradient(op, tied=tied)
        for value, buffer in zip(op.inputs, made, strict=True):
            self._give(value, buffer)
        self._release(incoming)

    def _make_weight_gradient(self, op: Op, *, tied: bool) -> None:
        """A tied table's second gradient and the first one are added into a third tensor."""
        if self.adds_to_gradients or tied:
            copies = 2 if tied else 1
            self.look(copies * op.weight_gradient + max(op.weight_temporary, op.scratch))
            return
        self.gradients += op.weight_gradient
        self.look(max(op.weight_temporary, op.scratch))

    def _hand_on(self, inputs: Iterable[Value], incoming: list[_Buffer]) -> None:
        for value in inputs:
            for buffer in incoming:
                self._give(value, buffer)
        self._release(incoming)

    def _give(self, value: Value, buffer: _Buffer) -> None:
        """Give a value its gradient; a second one is added to the first in place."""
        if value in self.buffers:
            if buffer.owners == 0:
                self.temporaries -= buffer.nbytes
            return
        buffer.owners += 1
        self.buffers[value] = buffer

    def _release(self, buffers: Iterable[_Buffer]) -> None:
        for buffer in buffers:
            buffer.owners -= 1
            if buffer.owners <= 0:
                self.temporaries -= buffer.nbytes

    def seed(self, value: Value) -> None:
        """Begin with the gradient of the loss."""
        buffer = _Buffer(value.storage.nbytes)
        self.temporaries += buffer.nbytes
        self._give(value, buffer)

    def cross(self, entry: Value | None, leaves: Value) -> None:
        """Hand a segment's incoming gradient to the segment before it."""
        if entry is not None and entry in self.buffers:
            self.buffers[leaves] = self.buffers.pop(entry)


def selected(block: Segment) -> list[Storage]:
    """What one block keeps under selective checkpointing, beside its input.

    Every second matrix product's output and attention's: torchtitan's per-operator policy
    (``_apply_ac_to_transformer_block``: ``mm`` with an odd count, the attention kernels).
    """
    kept: list[Storage] = []
    products = 0
    for op in block.ops:
        if op.kind == "product":
            products += 1
            if products % 2:
                kept.append(op.outputs[0].storage)
        elif op.kind == "attention":
            kept += [s for s in op.saved if s not in {v.storage for v in op.inputs}]
    return kept


def checkpointed_saved(recording: Recording, *, selective: bool = False) -> Kinds:
    """What all blocks keep under checkpointing: their inputs and the generator's state."""
    entry = recording.block.entry
    assert entry is not None
    layers = recording.block.layers
    state = Kind("random states of checkpointed blocks", (), "uint8", RNG_STATE)
    kept = [entry.storage, *(selected(recording.block) if selective else ())]
    return kinds_of(dict.fromkeys(kept), layers) + Counter({state: layers})


def play_backward(
    recording: Recording,
    *,
    checkpointed: bool,
    adds_to_gradients: bool,
    tied: bool,
    on_cpu: bool,
    selective: bool = False,
) -> Instant:
    """The fullest instant of the backward pass.

    Args:
        recording: The forward pass.
        checkpointed: Whether blocks keep only their inputs and are computed again.
        adds_to_gradients: Whether ``.grad`` is there already (a later micro-step).
        tied: Whether head and embedding share their matrix, so that its gradients are added.
        on_cpu: Whether states of the CPU's generator count.
        selective: Whether checkpointed blocks keep some of their operators' outputs too.
    """
    embedding, block, head = recording.segments
    saved, copies = forward_kept(
        recording, checkpointed=checkpointed, on_cpu=on_cpu, selective=selective
    )
    player = _Player(saved, copies, adds_to_gradients)
    player.seed(head.exit)
    player.play(head)
    player.cross(head.entry, block.exit)
    recomputed = Segment(block.ops, block.entry, block.exit)
    inside = kinds_of(recomputed.saved)
    weights = kinds_of(recomputed.copies)
    if checkpointed:
        assert block.entry is not None
        own = _of_one_block(recording, on_cpu=on_cpu, selective=selective)
        inside -= kinds_of([block.entry.storage, *(selected(block) if selective else ())])

    def one_block() -> None:
        if checkpointed:
            player.change(inside, weights, 1)
            player.recomputed = Counter(inside)
            player.look()
        player.play(recomputed)
        if checkpointed:
            own_rest = own - kinds_of([block.entry.storage])  # type: ignore[union-attr]
            player.change(own_rest, Counter(), -1)
        player.cross(block.entry, block.exit)

    before = player.gradients
    one_block()
    if block.layers > 1:
        skipped = block.layers - 2
        gone, copies_gone = (own, Counter()) if checkpointed else (inside, weights)
        player.change(_times(gone, skipped), _times(copies_gone, skipped), -1)
        player.gradients += skipped * (player.gradients - before)
        one_block()
    player.cross(block.exit, embedding.exit)
    player.play(embedding, tied=tied)
    assert player.peak is not None
    return player.peak


def _of_one_block(recording: Recording, *, on_cpu: bool, selective: bool) -> Kinds:
    """What one checkpointed block keeps."""
    kept = checkpointed_saved(recording, selective=selective)
    layers = recording.block.layers
    one = Counter({kind: count // layers for kind, count in kept.items()})
    return one if on_cpu else Counter({k: n for k, n in one.items() if k.nbytes != RNG_STATE})


def _times(kinds: Kinds, times: int) -> Kinds:
    return Counter({kind: count * times for kind, count in kinds.items()})


def forward_kept(
    recording: Recording, *, checkpointed: bool, on_cpu: bool, selective: bool = False
) -> tuple[Kinds, Kinds]:
    """Storages and weight copies that the whole forward pass leaves for backward."""
    saved: Kinds = Counter()
    copies: Kinds = Counter()
    for segment in recording.segments:
        if checkpointed and segment is recording.block:
            one = _of_one_block(recording, on_cpu=on_cpu, selective=selective)
            saved += _times(one, segment.layers)
            continue
        saved += kinds_of(segment.saved, segment.layers)
        copies += kinds_of(segment.copies, segment.layers)
    return saved, copies


def forward_transient(
    segment: Segment,
    held: Iterable[Value] = (),
    *,
    keeps: bool = True,
    lasting: Iterable[Value] = (),
) -> int:
    """Most bytes that a segment's forward holds at once beside what it keeps for backward.

    A tensor lives from the operator that makes it to the last that reads it; ``held`` ones live
    to the end. With ``keeps=False`` (checkpointing) what would be kept lives no longer.
    ``lasting`` ones are counted elsewhere (a cache).
    """
    kept = set(segment.saved) if keeps else set()
    kept |= {value.storage for value in lasting}
    last: dict[Storage, int] = {}
    for place, op in enumerate(segment.ops):
        for value in (*op.inputs, *op.outputs):
            last[value.storage] = place
    for value in held:
        last[value.storage] = len(segment.ops)
    entry = segment.entry.storage if segment.entry else None
    alive: dict[Storage, int] = {}
    most = 0
    for place, op in enumerate(segment.ops):
        for value in op.outputs:
            if value.storage not in kept and value.storage is not entry:
                alive[value.storage] = value.storage.nbytes
        most = max(most, sum(alive.values()) + op.work)
        alive = {s: n for s, n in alive.items() if last[s] > place}
    return most
