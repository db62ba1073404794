"""Terms of inference: cache, what a prompt's pass holds, and the last generated token."""

from __future__ import annotations

from vramscope.storage.records import MemoryClass, Phase

from .activations import Recording, record
from .architectures import DecoderArchitecture
from .backward import forward_transient
from .dtypes import ITEM_BYTES
from .inference import CacheShape
from .passes import Passes, why_not
from .scenario import Scenario
from .tape import Value
from .terms import Allocation, Term, make_term

DURING = frozenset({Phase.FORWARD})
LIVING = frozenset({Phase.FORWARD, Phase.IDLE})
CACHE_SOURCE = "transformers cache_utils.DynamicCache: keys and values of each layer"
PASS_SOURCE = "the model's code, operator by operator, nothing kept for backward"
TOKEN_NUMBERS = 4
"""Tensors of one int64 a token: ids, positions, the attention mask, the cache's positions."""


def inference_of(scenario: Scenario) -> Passes:
    """Key-value cache and temporaries at the fuller of two instants: prompt, last token."""
    if reason := why_not(scenario):
        unknown = {MemoryClass.KV_CACHE: LIVING, MemoryClass.TEMPORARIES: DURING}
        return Passes(unknown=unknown, not_modelled=(f"inference: {reason}",))
    spec, batch, arch = scenario.inference, scenario.batch, scenario.architecture
    assert spec is not None
    assert batch is not None
    assert batch.sequence is not None
    assert arch is not None
    recording = record(scenario)
    sequences = batch.micro_batch * spec.beams
    first = _prompt_terms(scenario, recording)
    prompt = _cache_term(scenario, arch, sequences, spec.kept_tokens(batch.sequence, 0), DURING)
    end_tokens = spec.kept_tokens(batch.sequence, spec.new_tokens)
    last = [
        _cache_term(scenario, arch, sequences, end_tokens, LIVING),
        *_token_terms(scenario, arch, sequences, end_tokens),
    ]
    at_prompt = prompt.nbytes + sum(t.nbytes for t in first)
    at_end = sum(t.nbytes for t in last)
    loading = _loading_term(scenario)
    ending = _cache_term(scenario, arch, sequences, end_tokens, frozenset({Phase.IDLE}))
    if loading.nbytes > max(at_prompt, at_end):
        return Passes(terms=(loading, ending))
    if at_prompt < at_end:
        return Passes(terms=tuple(last))
    return Passes(terms=(prompt, ending, *first))


def _loading_term(scenario: Scenario) -> Term:
    """The largest matrix before it is quantised, as it is read and as the kernel wants it."""
    assert scenario.inference is not None
    copies = scenario.inference.loading_copies
    largest = max(t.numel for t, _ in scenario.inventory.counted() if t.numel)
    return make_term(
        "the largest matrix in 16 bit, while it is quantised",
        MemoryClass.TEMPORARIES,
        [Allocation(2 * largest, copies)],
        f"{copies} × 2 B × {largest:,}, as the weights are loaded",
        "lightning fabric plugins/precision/bitsandbytes.py: the peaks of published runs",
        DURING,
    )


def _shape(scenario: Scenario, arch: DecoderArchitecture) -> CacheShape:
    assert scenario.inference is not None
    computed = scenario.autocast or recorded_dtype(scenario)
    dtype = scenario.inference.cache_dtype or computed
    return CacheShape(arch.kv_width, arch.kv_width, arch.kv_heads or arch.heads, dtype)


def recorded_dtype(scenario: Scenario) -> str:
    """Type that the unquantised weights, and so the activations, have."""
    counts: dict[str, int] = {}
    for tensor, n in scenario.inventory.counted():
        if tensor.storage_bytes is None:
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel * n
    return max(counts, key=lambda name: counts[name], default="float16")


def _cache_term(
    scenario: Scenario,
    arch: DecoderArchitecture,
    sequences: int,
    tokens: int,
    phases: frozenset[Phase],
) -> Term:
    shape = _shape(scenario, arch)
    half = shape.nbytes(tokens * sequences) // 2
    item = ITEM_BYTES[shape.dtype]
    return make_term(
        "key-value cache",
        MemoryClass.KV_CACHE,
        [Allocation(half, 2 * arch.layers)],
        f"2 × {arch.layers} layers × {sequences}·{tokens} tokens × {shape.key_width} × {item} B",
        CACHE_SOURCE,
        phases,
    )


def _prompt_terms(scenario: Scenario, recording: Recording) -> list[Term]:
    """The prompt's pass: the fullest instant of a block, or the logits."""
    entry = recording.block.entry
    assert entry is not None
    around = 2 * entry.storage.nbytes  # the embeddings and the block's input, both still named
    inside = around + forward_transient(
        recording.block, recording.block_held, keeps=False, lasting=_cached(recording)
    )
    head, name = _head_bytes(scenario, recording)
    tokens = recording.sizes["b"] * recording.sizes["s"]
    rotary = sum(v.storage.nbytes for op in recording.embedding.ops for v in op.outputs)
    rotary -= entry.storage.nbytes
    most = max(inside, head)
    return [
        Term(
            "the fullest block, beside the stream" if most == inside else name,
            MemoryClass.TEMPORARIES,
            most,
            f"{most:,} B that {tokens:,} tokens hold at once",
            PASS_SOURCE,
            DURING,
        ),
        Term(
            "rotary cosines and sines, token and position numbers",
            MemoryClass.TEMPORARIES,
            rotary + 8 * TOKEN_NUMBERS * tokens,
            f"{rotary:,} B + {TOKEN_NUMBERS} × 8 B × {tokens:,}",
            PASS_SOURCE,
            DURING,
        ),
    ]


def _cached(recording: Recording) -> tuple[Value, ...]:
    """Keys and values that attention reads: they are the cache, and counted there."""
    return tuple(
        value
        for op in recording.block.ops
        for value in op.outputs
        if value.storage.label in ("rotated keys", "values", "keys")
        and value.dims == ("b", "s", "k")
    )


def _head_bytes(scenario: Scenario, recording: Recording) -> tuple[int, str]:
    """Stream, last norm and logits: of the last position, or of every one."""
    assert scenario.inference is not None
    entry = recording.head.entry
    assert entry is not None
    sizes = recording.sizes
    positions = sizes["b"] * (sizes["s"] if scenario.inference.logits == "all" else 1)
    item = entry.storage.nbytes // (sizes["b"] * sizes["s"] * sizes["h"])
    upcast = 4 if scenario.loss.upcast_logits and item < 4 else 0
    logits = positions * sizes["v"] * (item + upcast)
    name = "logits of every position" if scenario.inference.logits == "all" else "last logits"
    return 2 * entry.storage.nbytes + logits, name


def _token_terms(
    scenario: Scenario, arch: DecoderArchitecture, sequences: int, tokens: int
) -> list[Term]:
    """The last token: one layer's keys are copied to be one longer, and its logits."""
    assert scenario.inference is not None
    shape = _shape(scenario, arch)
    dynamic = scenario.inference.cache == "dynamic"
    copied = shape.nbytes(tokens * sequences) // 2 if dynamic else 0
    logits = sequences * arch.vocabulary * 10
    return [
        Term(
            "keys of one layer, while they are copied",
            MemoryClass.TEMPORARIES,
            copied,
            f"{copied:,} B: the old ones beside the new ones",
            "torch.cat in DynamicCache.update",
            DURING,
        ),
        Term(
            "logits of the last position",
            MemoryClass.TEMPORARIES,
            logits,
            f"{sequences} × {arch.vocabulary:,} × (2 + 4 + 4) B: logits, raised, scored",
            "transformers generation/utils.py _sample",
            DURING,
        ),
    ]
