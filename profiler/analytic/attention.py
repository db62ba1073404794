"""Attention on a tape: the fused kernels, the fused operator's plain path, and written out."""

from __future__ import annotations

from .tape import HALF, Tape, Value

FLASH_WIDEST_HEAD = 256


def fused_attention(
    tape: Tape,
    query: Value,
    key: Value,
    value: Value,
    *,
    dropout: float,
    grouped: bool,
    cached: bool,
) -> Value:
    """``F.scaled_dot_product_attention``, by the kernel that torch picks.

    A kernel keeps queries, keys, values, its output and one logsumexp a row; the plain path keeps
    the scores too. On a CPU the flash kernel has no dropout. On CUDA 16-bit tensors take flash,
    float32 the memory-efficient kernel, which knows no grouped queries. ``cached`` keys and
    values lie head by head in one piece already.

    Returns:
        ``(b, s, q)`` in one piece.
    """
    query, key, value = tape.lower(query), tape.lower(key), tape.lower(value)
    dropped = bool(dropout) and tape.numerics.dropout_active
    if not _has_kernel(tape, query, dropped=dropped, grouped=grouped):
        return _plain_attention(tape, query, key, value, dropout=dropout, cached=cached)
    out = tape.value("attention outputs", ("b", "s", "q"), query.dtype)
    efficient = tape.numerics.on_cuda and query.dtype not in HALF
    rows = ("b", "a", "s32") if efficient else ("b", "a", "s")
    kept = [
        query.storage,
        key.storage,
        value.storage,
        out.storage,
        tape.storage("attention logsumexp", rows, "float32"),
    ]
    if tape.numerics.on_cuda:
        kept += [tape.storage("attention random state", (), "int64") for _ in range(2)]
    tape.note(query, key, value, out=[out], saved=tuple(dict.fromkeys(kept)), kind="attention")
    return out


def _has_kernel(tape: Tape, query: Value, *, dropped: bool, grouped: bool) -> bool:
    if tape.sizes["d"] > FLASH_WIDEST_HEAD:
        return False
    if not tape.numerics.on_cuda:
        return not dropped
    return query.dtype in HALF or not grouped


def _plain_attention(
    tape: Tape, query: Value, key: Value, value: Value, *, dropout: float, cached: bool
) -> Value:
    """The operator's own composition: 16-bit tensors are raised to float32 first."""
    dtype = query.dtype
    full = ("b", "s", "q")
    query, key, value = (tape.cast(x, "float32") for x in (query, key, value))
    query = tape.scale(query, "queries and keys, scaled")
    repeated = key.dims != full
    if repeated:
        key, value = tape.copy(key, "keys, repeated", full), tape.copy(value, "values", full)
    key = tape.scale(key, "queries and keys, scaled")
    scores = tape.matmul_float(query, key, "attention scores", ("b", "a", "s", "s"))
    weights = tape.unary(scores, "attention weights", keeps_output=True)
    weights = tape.dropout(weights, dropout, "attention weights, dropped")
    if not (cached or repeated):
        value = tape.copy(value, "values")
    out = tape.matmul_float(weights, value, "attention outputs", full)
    return tape.copy(tape.cast(out, dtype), "attention outputs")


def written_out_attention(
    tape: Tape,
    query: Value,
    key: Value,
    value: Value,
    *,
    dropout: float,
    softmax_float32: bool,
    cached: bool,
    masked_fill: bool = False,
) -> Value:
    """Scores, softmax and product as Hugging Face's ``eager_attention_forward`` writes them.

    Args:
        tape: Where the operators are written down.
        query: ``(b, s, q)``.
        key: ``(b, s, k)``; fewer heads are repeated.
        value: Like ``key``.
        dropout: Probability on the weights.
        softmax_float32: Whether softmax runs in float32 whatever the type (Llama's does).
        cached: Whether keys and values lie head by head in one piece already.
        masked_fill: Whether the mask is applied by ``masked_fill``, which keeps it (nanoGPT).

    Returns:
        ``(b, s, q)`` in one piece.
    """
    full = ("b", "s", "q")
    # Llama casts the weights back to the queries' type, GPT-2 to the values'.
    dtype = query.dtype if softmax_float32 else value.dtype
    # Heads become a batch dimension in a copy, and keys are repeated, before the product.
    query = tape.copy(tape.lower(query), "queries, by head")
    whole = cached and key.dims == full
    key = tape.lower(key) if whole else tape.copy(tape.lower(key), "keys, by head", full)
    scores = tape.matmul(query, key, "attention scores", ("b", "a", "s", "s"))
    scores = tape.scale(scores, "attention scores")
    if masked_fill:
        mask = tape.storage("attention mask", ("s", "s"), "bool")
        filled = tape.value("attention scores", scores.dims, scores.dtype)
        tape.note(scores, out=[filled], saved=(mask,))
        scores = filled
    if softmax_float32:
        scores = tape.cast(scores, "float32")
    weights = tape.softmax(scores, "attention weights")
    if not masked_fill:
        weights = tape.cast(weights, dtype)
    weights = tape.dropout(weights, dropout, "attention weights, dropped")
    value = tape.lower(value) if whole else tape.copy(tape.lower(value), "values, by head", full)
    out = tape.matmul(weights, value, "attention outputs", full)
    return tape.copy(out, "attention outputs")
