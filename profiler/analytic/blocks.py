"""Decoder blocks, embeddings and losses, written like the model code that they stand for."""

from __future__ import annotations

from .architectures import DecoderArchitecture
from .attention import fused_attention, written_out_attention
from .dtypes import ITEM_BYTES
from .tape import Tape, Value

TOKENS = ("b", "s", "h")
CACHED = ("cached keys", "cached values")
"""Labels of what a key-value cache holds."""


def embed(tape: Tape, arch: DecoderArchitecture) -> Value:
    """Token embeddings (and learned positions); keeps the token numbers."""
    dtype = tape.numerics.dtype
    ids = tape.storage("token numbers", ("b", "s"), "int64")
    out = tape.value("embeddings", TOKENS, dtype)
    table = arch.vocabulary * arch.hidden * out.storage.nbytes // tape.numel(TOKENS)
    if tape.numerics.frozen:
        tape.note(out=[out])
    else:
        tape.note(out=[out], saved=(ids,), weight_gradient=table)
    if arch.family == "gemma":
        out = tape.scale(out, "block inputs (residual stream)")
    if not arch.is_gpt:
        for _ in range(2):
            rotary = tape.value("rotary cosines and sines", ("s", "d"), dtype)
            tape.note(out=[rotary], saved=(rotary.storage,))
        return out
    places = tape.storage("position numbers", ("s",), "int64")
    positions = tape.value("position embeddings", ("s", "h"), dtype)
    rows = arch.positions * arch.hidden * out.storage.nbytes // tape.numel(TOKENS)
    tape.note(out=[positions], saved=(places,), weight_gradient=rows)
    x = tape.scale(out, "block inputs (residual stream)")
    if arch.family == "bert":
        x = tape.layer_norm(x, "h", "block inputs (residual stream)", bias=arch.norm_bias)
    return tape.dropout(x, arch.embedding_dropout, "block inputs (residual stream)")


def gpt_block(
    tape: Tape, arch: DecoderArchitecture, x: Value, *, attention: str, cache: bool
) -> tuple[Value, list[Value]]:
    """GPT-2's block: layer norm, attention, layer norm, MLP, each added to the stream.

    Returns:
        The block's output, and what its own variables hold until it returns.
    """
    full = ("b", "s", "q")
    normed = tape.layer_norm(x, "h", "layer norm outputs", bias=arch.norm_bias)
    joint = tape.linear(
        normed,
        "h",
        "qkv",
        "queries, keys and values",
        bias=arch.attention_bias,
        out=("b", "s", "qkv"),
        role="qkv",
    )
    query, key, value = tape.split(joint, (full, full, full))
    if cache:
        key, value = (tape.copy(x, label) for x, label in zip((key, value), CACHED, strict=True))
    if attention == "sdpa":
        mixed = fused_attention(
            tape, query, key, value, dropout=arch.attention_dropout, grouped=False, cached=cache
        )
    else:
        mixed = written_out_attention(
            tape,
            query,
            key,
            value,
            dropout=arch.attention_dropout,
            softmax_float32=False,
            cached=cache,
            masked_fill=arch.family == "nanogpt",
        )
    out = tape.linear(
        mixed, "q", "h", "attention projections", bias=arch.output_bias, out=TOKENS, role="output"
    )
    mixed = out = tape.dropout(out, arch.residual_dropout, "attention projections")
    x = tape.add(x, out, "block inputs (residual stream)")
    normed = tape.layer_norm(x, "h", "layer norm outputs", bias=arch.norm_bias)
    inner = tape.linear(
        normed, "h", "i", "MLP inputs", bias=arch.mlp_bias, out=("b", "s", "i"), role="up"
    )
    inner = activation(tape, arch.activation, inner)
    out = tape.linear(
        inner, "i", "h", "MLP projections", bias=arch.mlp_bias, out=TOKENS, role="down"
    )
    out = tape.dropout(out, arch.residual_dropout, "MLP projections")
    # Hugging Face's block still names what it handed to the MLP, and attention's result.
    held = [] if arch.family == "nanogpt" else [normed, mixed]
    return tape.add(x, out, "block inputs (residual stream)"), held


def activation(tape: Tape, name: str, x: Value) -> Value:
    """The MLP's non-linearity; ``gelu_new`` is written out and keeps four tensors."""
    if name != "gelu_new":
        relu = name == "relu"
        return tape.unary(x, "MLP activations", keeps_input=not relu, keeps_output=relu)
    # 0.5 * x * (1 + tanh(√(2/π) * (x + 0.044715 * pow(x, 3))))
    half = tape.scale(x, "halved MLP inputs")
    cube = tape.unary(tape.upper(x, cuda_only=True), "cubes", keeps_input=True)
    inside = tape.scale(tape.add(x, tape.scale(cube, "cubes"), "tanh inputs"), "tanh inputs")
    tanh = tape.unary(inside, "tanh outputs", keeps_output=True)
    return tape.multiply(half, tape.scale(tanh, "1 + tanh"), "MLP activations")


def rms_norm(tape: Tape, x: Value, width: str, label: str) -> Value:
    """Llama's, written out: float32 inside, the input's type outside."""
    if tape.numerics.compiled:
        return fused_rms_norm(tape, x, width, label)
    wide = tape.cast(x, "float32")
    rows = x.dims[:-1]
    square = tape.unary(wide, "squares", keeps_input=True)
    mean = tape.unary(square, "mean squares", dims=rows)
    inverse = tape.unary(mean, "inverse deviations of RMS norms", keeps_output=True)
    normed = tape.multiply(wide, inverse, "RMS-normed inputs")
    if tape.numerics.offset_norms:
        return tape.cast(_offset_weighted(tape, normed, width, label), x.dtype)
    return tape.weighted(tape.cast(normed, x.dtype), width, label)


def _offset_weighted(tape: Tape, x: Value, width: str, label: str) -> Value:
    """``x * (1 + weight)`` in float32: keeps the sum too."""
    out = tape.value(label, x.dims, x.dtype)
    total = tape.storage("1 + weights of norms", (width,), "float32")
    if tape.numerics.frozen:
        tape.note(x, out=[out], saved=(total,))
        return out
    gradient = tape.sizes[width] * ITEM_BYTES[tape.numerics.dtype]
    tape.note(x, out=[out], saved=(x.storage, total), weight_gradient=gradient)
    return out


def fused_rms_norm(tape: Tape, x: Value, width: str, label: str) -> Value:
    """One kernel: keeps its input and a float32 number a row."""
    inverse = tape.storage("inverse deviations of RMS norms", x.dims[:-1], "float32")
    out = tape.value(label, x.dims, x.dtype)
    gradient = 0 if tape.numerics.frozen else tape.sizes[width] * ITEM_BYTES[tape.numerics.dtype]
    tape.note(x, out=[out], saved=(x.storage, inverse), weight_gradient=gradient)
    return out


def rotate(tape: Tape, x: Value, label: str) -> Value:
    """Rotary positions: keeps the cosines and sines only, which all blocks share."""
    dtype = x.dtype if tape.numerics.dtype == x.dtype else "float32"
    turned = tape.value(label, x.dims, dtype)
    tape.note(x, out=[turned], scratch=2 * turned.storage.nbytes)
    return turned


def stream_norm(tape: Tape, arch: DecoderArchitecture, x: Value) -> Value:
    """The norm of the stream that the architecture has."""
    if arch.layer_norms:
        return tape.layer_norm(x, "h", "layer norm outputs", bias=arch.norm_bias)
    return rms_norm(tape, x, "h", "RMS norm outputs")


def llama_block(
    tape: Tape, arch: DecoderArchitecture, x: Value, *, attention: str, cache: bool
) -> tuple[Value, list[Value]]:
    """Llama's block, with grouped queries, and Qwen3's norms of queries and keys.

    Returns:
        The block's output, and what its own variables hold until it returns.
    """
    full, few = ("b", "s", "q"), ("b", "s", "k")
    bias = arch.attention_bias
    normed = stream_norm(tape, arch, x)
    query = tape.linear(normed, "h", "q", "queries", bias=bias, out=full, role="query")
    key = tape.linear(normed, "h", "k", "keys", bias=bias, out=few, role="key")
    value = tape.linear(normed, "h", "k", "values", bias=bias, out=few, role="value")
    if arch.family == "qwen3":
        query = head_norm(tape, query, "a")
        key = head_norm(tape, key, "g")
    query, key = rotate(tape, query, "rotated queries"), rotate(tape, key, "rotated keys")
    if cache:
        key, value = (tape.copy(x, label) for x, label in zip((key, value), CACHED, strict=True))
    if attention == "sdpa":
        grouped = arch.query_width != arch.kv_width
        mixed = fused_attention(
            tape, query, key, value, dropout=arch.attention_dropout, grouped=grouped, cached=cache
        )
    else:
        mixed = written_out_attention(
            tape,
            query,
            key,
            value,
            dropout=arch.attention_dropout,
            softmax_float32=True,
            cached=cache,
        )
    out = tape.linear(
        mixed, "q", "h", "attention projections", bias=arch.output_bias, out=TOKENS, role="output"
    )
    x = tape.add(x, out, "block inputs (residual stream)")
    normed = stream_norm(tape, arch, x)
    out = gated_mlp(tape, arch, normed)
    return tape.add(x, out, "block inputs (residual stream)"), [normed]


def gated_mlp(tape: Tape, arch: DecoderArchitecture, normed: Value) -> Value:
    """``down(act(gate(x)) · up(x))``, or ``down(act(x))`` without a gate.

    Compiled, the opened gate is computed again in backward.
    """
    inner, bias = ("b", "s", "i"), arch.mlp_bias
    if not arch.has_gate:
        wide = tape.linear(normed, "h", "i", "MLP inputs", bias=bias, out=inner, role="gate")
        wide = activation(tape, arch.activation, wide)
        return tape.linear(wide, "i", "h", "MLP projections", bias=bias, out=TOKENS, role="down")
    gate = tape.linear(normed, "h", "i", "MLP gates", bias=bias, out=inner, role="gate")
    if tape.numerics.compiled:
        up = tape.linear(normed, "h", "i", "MLP inputs", bias=bias, out=inner, role="up")
        product = tape.value("MLP products", inner, gate.dtype)
        tape.note(gate, up, out=[product], saved=(gate.storage, up.storage))
        return tape.linear(product, "i", "h", "MLP projections", bias=bias, out=TOKENS, role="down")
    opened = activation(tape, arch.activation, gate)
    up = tape.linear(normed, "h", "i", "MLP inputs", bias=bias, out=inner, role="up")
    product = tape.multiply(opened, up, "MLP products")
    return tape.linear(product, "i", "h", "MLP projections", bias=bias, out=TOKENS, role="down")


def head_norm(tape: Tape, x: Value, heads: str) -> Value:
    """Qwen3 norms each head of the queries and of the keys."""
    by_head = tape.view(x, ("b", "s", heads, "d"))
    return tape.view(rms_norm(tape, by_head, "d", "normed queries and keys"), x.dims)


def head_and_loss(
    tape: Tape, arch: DecoderArchitecture, x: Value, *, upcast: bool
) -> tuple[list[Value], Value]:
    """Last norm, logits and cross-entropy over all tokens.

    Cross-entropy keeps the log-probabilities (float32 under autocast), the targets and one
    number. Llama's loss raises the logits to float32 first.

    Returns:
        What the model's own variables hold while the loss is computed (the logits first), and
        the loss.
    """
    if arch.is_gpt:
        normed = tape.layer_norm(x, "h", "layer norm outputs", bias=arch.norm_bias)
    else:
        normed = rms_norm(tape, x, "h", "RMS norm outputs")
    logits = tape.linear(normed, "h", "v", "logits", bias=False, out=("b", "s", "v"), role="head")
    raised = tape.cast(logits, "float32") if upcast else logits
    likely = tape.softmax(raised, "log-probabilities")
    targets = tape.storage("targets", ("b", "s"), "int64")
    loss = tape.value("loss", (), likely.dtype)
    weight = tape.storage("sum of the targets' weights", (), likely.dtype)
    tape.note(likely, out=[loss], saved=(likely.storage, targets, weight))
    # Hugging Face's forward still names the last hidden state; nanoGPT's does not.
    return [logits] if arch.family == "nanogpt" else [logits, normed], loss
