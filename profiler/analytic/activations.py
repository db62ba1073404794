"""What a forward pass saves for backward, for dense decoder transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from vramscope.storage.records import MemoryClass, Phase

from .architectures import DecoderArchitecture
from .blocks import embed, gpt_block, head_and_loss, llama_block
from .dtypes import ITEM_BYTES
from .scenario import Scenario
from .tape import Numerics, Op, Storage, Tape, Value, padded_rows
from .terms import Term

PASSES = frozenset({Phase.FORWARD, Phase.BACKWARD})


@dataclass(frozen=True)
class Segment:
    """A stretch of the forward pass: the operators, and the storages that it keeps."""

    ops: tuple[Op, ...]
    layers: int = 1

    @cached_property
    def saved(self) -> tuple[Storage, ...]:
        """Storages kept for backward, each once."""
        return tuple(dict.fromkeys(s for op in self.ops for s in op.saved))

    @cached_property
    def copies(self) -> tuple[Storage, ...]:
        """16-bit copies of weights that are kept."""
        return tuple(dict.fromkeys(s for op in self.ops for s in op.copies))

    @cached_property
    def saved_bytes(self) -> int:
        """Bytes of one layer's ``saved``."""
        return sum(s.nbytes for s in self.saved)

    @cached_property
    def copy_bytes(self) -> int:
        """Bytes of one layer's ``copies``."""
        return sum(s.nbytes for s in self.copies)


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole forward pass: embeddings, one block that stands for all, head and loss."""

    embedding: Segment
    block: Segment
    head: Segment
    block_input: Storage
    logits: Value
    loss: Value
    sizes: Mapping[str, int]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The stretches in the order of the forward pass."""
        return (self.embedding, self.block, self.head)

    @property
    def saved_bytes(self) -> int:
        """Everything kept for backward without checkpointing, weight copies apart."""
        return sum(s.saved_bytes * s.layers for s in self.segments)

    @property
    def copy_bytes(self) -> int:
        """All 16-bit copies of weights."""
        return sum(s.copy_bytes * s.layers for s in self.segments)


def record(scenario: Scenario) -> Recording:
    """Write a decoder's forward pass down.

    The scenario must have an architecture and a batch with a sequence.
    """
    arch, batch = scenario.architecture, scenario.batch
    assert arch is not None
    assert batch is not None and batch.sequence is not None
    sizes = _sizes(arch, batch.micro_batch, batch.sequence)
    tape = Tape(sizes, _numerics(scenario))
    block = gpt_block if arch.is_gpt else llama_block
    x = embed(tape, arch)
    embedding = _cut(tape)
    block_input = x.storage
    x = block(tape, arch, x, attention=scenario.attention, cache=scenario.use_cache)
    layer = _cut(tape, arch.layers)
    upcast = scenario.loss.upcast_logits
    logits, loss = head_and_loss(
        tape, arch, x, upcast=arch.family != "nanogpt" if upcast is None else upcast
    )
    return Recording(embedding, layer, _cut(tape), block_input, logits, loss, sizes)


def _cut(tape: Tape, layers: int = 1) -> Segment:
    ops = tuple(tape.ops)
    tape.ops.clear()
    return Segment(ops, layers)


def _sizes(arch: DecoderArchitecture, samples: int, tokens: int) -> dict[str, int]:
    """What the names of dimensions stand for."""
    return {
        "b": samples,
        "s": tokens,
        "s32": padded_rows(tokens),
        "h": arch.hidden,
        "a": arch.heads,
        "g": arch.kv_heads or arch.heads,
        "d": arch.head_width,
        "q": arch.query_width,
        "k": arch.kv_width,
        "qkv": arch.query_width + 2 * arch.kv_width,
        "i": arch.intermediate,
        "v": arch.vocabulary,
    }


def _numerics(scenario: Scenario) -> Numerics:
    """Types: those of the largest part of the tensors, and autocast."""
    counts: dict[str, int] = {}
    for tensor, n in scenario.inventory.counted():
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel * n
    return Numerics(
        dtype=max(counts, key=lambda name: counts[name]),
        autocast=scenario.autocast,
        device=scenario.device,
        dropout_active=scenario.dropout_active,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """Terms of the forward and the backward pass, or why there are none."""

    terms: tuple[Term, ...] = ()
    unknown: Mapping[MemoryClass, frozenset[Phase]] = field(default_factory=dict)
    not_modelled: tuple[str, ...] = ()
    uncertain: int = 0
    """Bytes in the terms that may not be there: the training loop decides."""


def passes_of(scenario: Scenario) -> Passes:
    """Activations, weight copies and temporaries of both passes."""
    unknown = {MemoryClass.ACTIVATIONS: PASSES, MemoryClass.TEMPORARIES: PASSES}
    if scenario.autocast:
        unknown[MemoryClass.AUTOCAST_CACHE] = PASSES
    return Passes(unknown=unknown, not_modelled=("activations: not yet",))
