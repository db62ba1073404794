"""Decoder blocks of libraries that are not Hugging Face's, written like their code."""

from __future__ import annotations

from dataclasses import replace

from .architectures import DecoderArchitecture
from .attention import fused_attention
from .blocks import TOKENS, activation, rms_norm, stream_norm
from .tape import Tape, Value

FULL, FEW, INNER = ("b", "s", "q"), ("b", "s", "k"), ("b", "s", "i")
LITGPT_CHUNK = 128
"""Tokens of each piece of LitGPT's head (``lm_head_chunk_size``)."""


def litgpt_block(
    tape: Tape, arch: DecoderArchitecture, x: Value, *, attention: str, cache: bool
) -> tuple[Value, list[Value]]:
    """LitGPT's block: one matrix for queries, keys and values; parallel residuals where they are.

    Source: litgpt ``model.py`` Block, CausalSelfAttention, LLaMAMLP, GptNeoxMLP.

    Returns:
        The block's output, and what its own variables hold until it returns.
    """
    del cache
    normed = stream_norm(tape, arch, x)
    mixed = _litgpt_attention(tape, arch, normed, attention)
    if arch.post_norms:
        mixed = stream_norm(tape, arch, mixed)
    if arch.parallel_residual != "none":
        shared = arch.parallel_residual == "one norm"
        second = normed if shared else stream_norm(tape, arch, x)
        out = _litgpt_mlp(tape, arch, second)
        both = tape.add(out, mixed, "MLP and attention projections")
        return tape.add(both, x, "block inputs (residual stream)"), [normed, mixed]
    x = tape.add(mixed, x, "block inputs (residual stream)")
    out = _litgpt_mlp(tape, arch, stream_norm(tape, arch, x))
    if arch.post_norms:
        out = stream_norm(tape, arch, out)
    return tape.add(out, x, "block inputs (residual stream)"), [normed, mixed]


def _litgpt_attention(tape: Tape, arch: DecoderArchitecture, x: Value, attention: str) -> Value:
    joint = tape.linear(
        x,
        "h",
        "qkv",
        "queries, keys and values",
        bias=arch.attention_bias,
        out=("b", "s", "qkv"),
        role="none",
    )
    joint = _joint_adapter(tape, x, joint)
    grouped = arch.query_width != arch.kv_width
    query, key, value = tape.split(joint, (FULL, FEW, FEW))
    if grouped:
        # Heads are expanded, and reshaping writes them out.
        query = tape.copy(query, "queries")
        key = tape.copy(key, "keys, repeated", FULL)
        value = tape.copy(value, "values, repeated", FULL)
    query, key = (_turned(tape, part, label) for part, label in ((query, "queries"), (key, "keys")))
    if attention == "sdpa":
        mixed = fused_attention(tape, query, key, value, dropout=0, grouped=False, cached=True)
    else:
        mixed = _capped_attention(tape, query, key, value)
    return tape.linear(
        mixed,
        "q",
        "h",
        "attention projections",
        bias=arch.output_bias,
        out=TOKENS,
        role="output",
    )


def _turned(tape: Tape, x: Value, label: str) -> Value:
    """``apply_rope`` and the ``cat`` with what is not turned: a tensor of its own."""
    full = tape.value(f"rotated {label}", x.dims, x.dtype)
    tape.note(x, out=[full], work=2 * full.storage.nbytes, scratch=2 * full.storage.nbytes)
    return full


def _capped_attention(tape: Tape, query: Value, key: Value, value: Value) -> Value:
    """Gemma 2's: scores through ``tanh``, softmax in float32, no fused kernel.

    Source: litgpt ``scaled_dot_product_attention`` with ``attention_logit_softcapping``.
    """
    square = ("b", "a", "s", "s")
    scores = tape.scale(tape.matmul(query, key, "attention scores", square), "attention scores")
    capped = tape.unary(tape.scale(scores, "scores"), "capped scores", keeps_output=True)
    wide = tape.cast(tape.scale(capped, "attention scores"), "float32")
    weights = tape.cast(tape.unary(wide, "attention weights", keeps_output=True), query.dtype)
    return tape.matmul(weights, value, "attention outputs", FULL)


def _joint_adapter(tape: Tape, x: Value, joint: Value) -> Value:
    """LoRAQKVLinear: adapters for some of queries, keys and values, padded to the joint width.

    ``index_copy`` keeps what it copies from. Source: litgpt ``lora.py``.
    """
    plan = tape.numerics.adapters
    names = [n for n in ("query", "key", "value") if plan and n in plan.roles]
    if plan is None or not names:
        return joint
    widths = {"query": "q", "key": "k", "value": "k"}
    dropped = tape.dropout(x, plan.dropout, "adapters' inputs, dropped")
    item = dropped.storage.nbytes // tape.numel(x.dims)
    inside = tape.sizes["h"]
    for name in names:
        low = tape.value("adapters' inner values", ("b", "s", "r"), dropped.dtype)
        gradient = inside * plan.rank * item
        tape.note(dropped, out=[low], saved=(dropped.storage,), weight_gradient=gradient)
        part = tape.value("adapters' outputs", ("b", "s", widths[name]), low.dtype)
        gradient = tape.sizes[widths[name]] * plan.rank * item
        tape.note(low, out=[part], saved=(low.storage,), weight_gradient=gradient)
        padded = tape.value("adapters' outputs, padded", joint.dims, low.dtype)
        tape.note(part, out=[padded], saved=(part.storage,), work=padded.storage.nbytes)
    scaled = tape.scale(padded, "adapters' outputs, padded")
    return tape.add(joint, scaled, "queries, keys and values")


def _litgpt_mlp(tape: Tape, arch: DecoderArchitecture, x: Value) -> Value:
    bias = arch.mlp_bias
    first = tape.linear(x, "h", "i", "MLP inputs", bias=bias, out=INNER, role="gate")
    if arch.has_gate:
        second = tape.linear(x, "h", "i", "MLP inputs", bias=bias, out=INNER, role="up")
        opened = activation(tape, arch.activation, first)
        inner = tape.multiply(opened, second, "MLP products")
    else:
        inner = activation(tape, arch.activation, first)
    return tape.linear(inner, "i", "h", "MLP projections", bias=bias, out=TOKENS, role="down")


def chunked_head(
    tape: Tape, arch: DecoderArchitecture, x: Value, *, fused: bool
) -> tuple[list[Value], list[Value], Value]:
    """Last norm, then head and loss in pieces of the sequence (dimension ``c``).

    Args:
        tape: Where the operators are written down.
        arch: The decoder.
        x: The stream.
        fused: Whether each piece's loss is one compiled kernel that keeps the logits alone and
            computes its softmax again (torchtune); LitGPT's keeps the log-probabilities.

    Source: litgpt ``lora.py`` GPT.forward, ``utils.chunked_cross_entropy``, lightning fabric
    ``HalfPrecision.convert_output``; torchtune ``modules/loss/ce_chunked_output_loss.py``.

    Returns:
        What is held while the loss is computed, the logits that the loop's variable keeps, and
        the loss.
    """
    normed = stream_norm(tape, arch, x)
    pieces = -(-tape.sizes["s"] // tape.sizes["c"])
    piece = ("b", "c", "v")
    logits = []
    for place in range(pieces):
        logits.append(tape.linear(normed, "h", "v", "logits", bias=False, out=piece, role="head"))
        if place < pieces - 1:
            # Backward begins with the last piece; the others' gradients are added to its.
            made = tape.ops[-1]
            again = made.scratch + made.weight_gradient
            tape.ops[-1] = replace(made, weight_gradient=0, scratch=again)
    losses = []
    if not fused:
        # Lightning's precision plugin returns what the model returns in float32.
        logits = [tape.cast(part, "float32") for part in logits]
    for part in logits:
        targets = tape.storage("targets", ("b", "c"), "int64")
        if fused:
            loss = tape.value("losses", (), "float32")
            tape.note(part, out=[loss], saved=(part.storage, targets))
        else:
            likely = tape.softmax(part, "log-probabilities")
            loss = tape.value("losses", ("b", "c"), likely.dtype)
            tape.note(likely, out=[loss], saved=(likely.storage, targets))
        losses.append(loss)
    total = tape.value("loss", (), "float32")
    tape.note(*losses, out=[total])
    return [*logits, normed], logits, total


def cs336_block(
    tape: Tape, arch: DecoderArchitecture, x: Value, *, attention: str, cache: bool
) -> tuple[Value, list[Value]]:
    """Stanford CS336's TransformerBlock: everything written out, softmax by ``exp`` and ``sum``.

    Source: stanford-cs336/assignment2-systems ``cs336_basics/model.py``, ``nn_utils.py``.

    Returns:
        The block's output, and what its own variables hold until it returns.
    """
    del cache, attention
    normed = rms_norm(tape, x, "h", "RMS norm outputs")
    parts = [
        tape.linear(normed, "h", "q", label, bias=False, out=FULL)
        for label in ("queries", "keys", "values")
    ]
    query, key = (tape.copy(_halves(tape, p), "rotated queries and keys") for p in parts[:2])
    mixed = _exp_attention(tape, query, key, parts[2])
    out = tape.linear(
        tape.copy(mixed, "attention outputs"),
        "q",
        "h",
        "attention projections",
        bias=False,
        out=TOKENS,
    )
    x = tape.add(x, out, "block inputs (residual stream)")
    normed = rms_norm(tape, x, "h", "RMS norm outputs")
    gate = tape.linear(normed, "h", "i", "MLP gates", bias=False, out=INNER)
    sigmoid = tape.unary(gate, "MLP gates' sigmoids", keeps_output=True)
    opened = tape.multiply(gate, sigmoid, "MLP gates, opened")
    up = tape.linear(normed, "h", "i", "MLP inputs", bias=False, out=INNER)
    product = tape.multiply(opened, up, "MLP products")
    out = tape.linear(product, "i", "h", "MLP projections", bias=False, out=TOKENS)
    return tape.add(x, out, "block inputs (residual stream)"), [normed]


def _halves(tape: Tape, x: Value) -> Value:
    """Rotary positions on two halves that are put together again."""
    turned = tape.value("rotated halves", x.dims, "float32")
    tape.note(x, out=[turned], work=turned.storage.nbytes, scratch=2 * turned.storage.nbytes)
    return turned


def _exp_attention(tape: Tape, query: Value, key: Value, value: Value) -> Value:
    """Scores, a mask by ``where``, and softmax as ``exp(x − max) / sum``."""
    square = ("b", "a", "s", "s")
    scores = tape.matmul(query, key, "attention scores", square)
    scores = tape.scale(scores, "attention scores")
    mask = tape.storage("attention mask", ("s", "s"), "bool")
    masked = tape.value("attention scores", square, scores.dtype)
    tape.note(scores, out=[masked], saved=(mask,))
    lowered = tape.scale(masked, "scores less their maximum")
    powers = tape.unary(tape.upper(lowered), "powers of scores", keeps_output=True)
    rows = tape.unary(powers, "sums of powers", dims=("b", "a", "s"))
    weights = tape.value("attention weights", square, powers.dtype)
    # The functions' variables still name the masked scores and those less their maximum.
    named = masked.storage.nbytes + lowered.storage.nbytes
    tape.note(powers, rows, out=[weights], saved=(powers.storage, rows.storage), work=named)
    return tape.matmul(weights, value, "attention outputs", FULL)


def cs336_head(
    tape: Tape, arch: DecoderArchitecture, x: Value
) -> tuple[list[Value], list[Value], Value]:
    """Last norm, logits, and a cross-entropy written out: ``exp``, ``sum``, ``log``, ``gather``.

    Returns:
        What is held while the loss is computed, the logits that the loop's variable keeps, and
        the loss.
    """
    del arch
    normed = rms_norm(tape, x, "h", "RMS norm outputs")
    logits = tape.linear(normed, "h", "v", "logits", bias=False, out=("b", "s", "v"))
    lowered = tape.scale(logits, "logits less their maximum")
    powers = tape.unary(tape.upper(lowered), "powers of logits", keeps_output=True)
    rows = tape.unary(powers, "sums of powers", dims=("b", "s"))
    likely = tape.value("log-probabilities", logits.dims, powers.dtype)
    tape.note(lowered, rows, out=[likely], saved=(rows.storage,))
    negative = tape.scale(likely, "log-probabilities")
    targets = tape.storage("targets", ("b", "s"), "int64")
    loss = tape.value("loss", (), negative.dtype)
    tape.note(negative, out=[loss], saved=(negative.storage, targets))
    return [logits, lowered], [logits], loss
