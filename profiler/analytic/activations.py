"""What a forward pass saves for backward, for dense decoder transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .architectures import DecoderArchitecture
from .blocks import CACHED, embed, gpt_block, head_and_loss, llama_block
from .scenario import Scenario
from .tape import Numerics, Op, Storage, Tape, Value, padded_rows


@dataclass(frozen=True)
class Segment:
    """A stretch of the forward pass: the operators, and the storages that it keeps."""

    ops: tuple[Op, ...]
    entry: Value | None
    exit: Value
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


@dataclass(frozen=True)
class Recording:
    """A whole forward pass: embeddings, one block that stands for all, head and loss."""

    embedding: Segment
    block: Segment
    head: Segment
    block_held: tuple[Value, ...]
    """What a block's own variables hold until it returns."""
    held: tuple[Value, ...]
    """What the model's variables hold at the loss; the logits first."""
    sizes: Mapping[str, int]

    @cached_property
    def cache(self) -> tuple[Storage, ...]:
        """One layer's storages of the key-value cache, kept for backward or not."""
        made = (v.storage for op in self.block.ops for v in op.outputs)
        # A cast keeps the label: the first of a label is the cache's own.
        first: dict[str, Storage] = {}
        for storage in made:
            first.setdefault(storage.label, storage)
        return tuple(first[label] for label in CACHED if label in first)

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
    assert batch is not None
    assert batch.sequence is not None
    sizes = _sizes(arch, batch.micro_batch, batch.sequence)
    tape = Tape(sizes, _numerics(scenario))
    block = gpt_block if arch.is_gpt else llama_block
    x = embed(tape, arch)
    x.storage.label = "block inputs (residual stream)"
    embedding = _cut(tape, None, x)
    entry = x
    x, inside = block(tape, arch, x, attention=scenario.attention, cache=scenario.use_cache)
    layer = _cut(tape, entry, x, arch.layers)
    entry = x
    upcast = scenario.loss.upcast_logits
    held, loss = head_and_loss(
        tape, arch, x, upcast=arch.family != "nanogpt" if upcast is None else upcast
    )
    return Recording(embedding, layer, _cut(tape, entry, loss), tuple(inside), tuple(held), sizes)


def _cut(tape: Tape, entry: Value | None, leaves: Value, layers: int = 1) -> Segment:
    ops = tuple(tape.ops)
    tape.ops.clear()
    return Segment(ops, entry, leaves, layers)


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
