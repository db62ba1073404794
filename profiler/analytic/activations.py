"""What a forward pass saves for backward, for dense decoder transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .adapter_state import adapter_dtype, roles_of
from .architectures import ENCODERS, DecoderArchitecture
from .blocks import CACHED, embed, gpt_block, head_and_loss, llama_block
from .dtypes import ceil_div
from .encoder_blocks import bert_block, classification_head, patches, vit_block
from .library_blocks import LITGPT_CHUNK, chunked_head, cs336_block, cs336_head, litgpt_block
from .scenario import Scenario
from .tape import AdapterPlan, Numerics, Op, Storage, Tape, Value, padded_rows


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
    """What the model's variables hold at the loss."""
    logits: tuple[Value, ...]
    """What the training loop's variable keeps."""
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
    sizes = _sizes(scenario, arch, batch.micro_batch, batch.sequence)
    tape = Tape(sizes, _numerics(scenario))
    x = patches(tape, arch) if arch.family == "vit" else embed(tape, arch)
    x.storage.label = "block inputs (residual stream)"
    embedding = _cut(tape, None, x)
    entry = x
    block = _BLOCKS.get(arch.family, llama_block)
    x, inside = block(tape, arch, x, attention=scenario.attention, cache=scenario.use_cache)
    layer = _cut(tape, entry, x, arch.layers)
    entry = x
    held, logits, loss = _head(tape, arch, x, scenario)
    head = _cut(tape, entry, loss)
    return Recording(embedding, layer, head, tuple(inside), tuple(held), tuple(logits), sizes)


_BLOCKS = {
    "nanogpt": gpt_block,
    "gpt2": gpt_block,
    "bert": bert_block,
    "vit": vit_block,
    "litgpt": litgpt_block,
    "cs336": cs336_block,
}


def _head(
    tape: Tape, arch: DecoderArchitecture, x: Value, scenario: Scenario
) -> tuple[list[Value], list[Value], Value]:
    """Last norm, logits and loss: what is held meanwhile, the logits, the loss."""
    if scenario.loss.chunk_tokens or arch.family == "litgpt":
        return chunked_head(tape, arch, x, fused=arch.family != "litgpt")
    if arch.family == "cs336":
        return cs336_head(tape, arch, x)
    if arch.family in ENCODERS:
        return classification_head(tape, arch, x)
    upcast = scenario.loss.upcast_logits
    upcast = arch.family != "nanogpt" if upcast is None else upcast
    held, loss = head_and_loss(tape, arch, x, upcast=upcast)
    return held, held[:1], loss


def _cut(tape: Tape, entry: Value | None, leaves: Value, layers: int = 1) -> Segment:
    ops = tuple(tape.ops)
    tape.ops.clear()
    return Segment(ops, entry, leaves, layers)


def _sizes(
    scenario: Scenario, arch: DecoderArchitecture, samples: int, tokens: int
) -> dict[str, int]:
    """What the names of dimensions stand for."""
    shared = scenario.parallelism
    t, tokens = shared.tensor_parallel, ceil_div(tokens, shared.context_parallel)
    tokens = ceil_div(tokens, shared.sequence_parallel)
    across = t if shared.megatron_sequence_parallel else 1
    return {
        "b": samples,
        "c": ceil_div(tokens, ceil_div(tokens, scenario.loss.chunk_tokens or LITGPT_CHUNK)),
        "r": scenario.lora.rank if scenario.lora else 0,
        "s": tokens,
        "s32": padded_rows(tokens),
        "pixels": (tokens - 1) * arch.patch_values,
        "h": ceil_div(arch.hidden, across),
        "a": ceil_div(arch.heads, t),
        "g": ceil_div(arch.kv_heads or arch.heads, t),
        "d": arch.head_width,
        "q": ceil_div(arch.query_width, t),
        "k": ceil_div(arch.kv_width, t),
        "qkv": ceil_div(arch.query_width + 2 * arch.kv_width, t),
        "i": ceil_div(arch.intermediate, t),
        "v": ceil_div(arch.vocabulary, t),
    }


def _numerics(scenario: Scenario) -> Numerics:
    """Types: those of the largest part of the tensors, and autocast."""
    counts: dict[str, int] = {}
    packed = trained = 0
    for tensor, n in scenario.inventory.counted():
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel * n
        packed += tensor.numel * n if tensor.storage_bytes else 0
        trained += tensor.numel * n if tensor.trainable else 0
    arch, lora = scenario.architecture, scenario.lora
    assert arch is not None
    plain = {name: number for name, number in counts.items() if name in FLOATING}
    litgpt = arch.family == "litgpt"
    dtype = max(plain, key=lambda name: plain[name], default="bfloat16")
    autocast = scenario.autocast
    if autocast and scenario.parallelism.strategy == "fsdp":
        # FSDP's mixed precision gathers 16-bit weights: nothing is left to autocast.
        dtype, autocast = autocast, None
    return Numerics(
        dtype=dtype,
        autocast=autocast,
        device=scenario.device,
        dropout_active=scenario.dropout_active,
        compiled=scenario.compiled,
        offset_norms=arch.family == "gemma",
        frozen=lora is not None or trained * MOSTLY_FROZEN < sum(counts.values()),
        adapters=None
        if lora is None
        else AdapterPlan(
            rank=lora.rank,
            dtype=adapter_dtype(scenario),
            dropout=lora.dropout,
            roles=roles_of(lora),
        ),
        quantised=packed > sum(counts.values()) // 2,
        quantised_head=litgpt and packed > sum(counts.values()) // 2,
        quantised_keeps_input=litgpt,
        quantised_copies=2 if litgpt else 1,
    )


MOSTLY_FROZEN = 20
"""Where less than a twentieth is trained, layers are taken to keep no inputs for their weights."""
FLOATING = frozenset({"float32", "bfloat16", "float16"})
