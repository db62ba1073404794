"""Encoders: BERT's block, with its norms behind the sums, and a classification head."""

from __future__ import annotations

from .architectures import DecoderArchitecture
from .attention import fused_attention, written_out_attention
from .blocks import TOKENS, activation
from .tape import Tape, Value

FULL, INNER = ("b", "s", "q"), ("b", "s", "i")


def bert_block(
    tape: Tape, arch: DecoderArchitecture, x: Value, *, attention: str, cache: bool
) -> tuple[Value, list[Value]]:
    """BERT's layer: attention, add and norm, MLP, add and norm, with dropouts.

    Source: transformers ``models/bert/modeling_bert.py`` BertLayer.

    Returns:
        The block's output, and what its own variables hold until it returns.
    """
    del cache
    out = _attention(tape, arch, x, attention)
    x = _add_and_norm(tape, arch, x, out)
    inner = tape.linear(x, "h", "i", "MLP inputs", bias=arch.mlp_bias, out=INNER, role="gate")
    inner = activation(tape, arch.activation, inner)
    out = tape.linear(
        inner, "i", "h", "MLP projections", bias=arch.mlp_bias, out=TOKENS, role="down"
    )
    out = tape.dropout(out, arch.residual_dropout, "projections, dropped")
    return _add_and_norm(tape, arch, x, out), [x, inner]


def vit_block(
    tape: Tape, arch: DecoderArchitecture, x: Value, *, attention: str, cache: bool
) -> tuple[Value, list[Value]]:
    """A vision transformer's layer: norm, attention, norm, MLP, each added to the stream.

    Source: transformers ``models/vit/modeling_vit.py`` ViTLayer; timm's has one joint matrix.

    Returns:
        The block's output, and what its own variables hold until it returns.
    """
    del cache
    normed = tape.layer_norm(x, "h", "layer norm outputs", bias=arch.norm_bias)
    out = _attention(tape, arch, normed, attention)
    x = tape.add(x, out, "block inputs (residual stream)")
    normed = tape.layer_norm(x, "h", "layer norm outputs", bias=arch.norm_bias)
    inner = tape.linear(normed, "h", "i", "MLP inputs", bias=arch.mlp_bias, out=INNER, role="gate")
    inner = activation(tape, arch.activation, inner)
    out = tape.linear(
        inner, "i", "h", "MLP projections", bias=arch.mlp_bias, out=TOKENS, role="down"
    )
    out = tape.dropout(out, arch.residual_dropout, "projections, dropped")
    return tape.add(x, out, "block inputs (residual stream)"), [normed]


def _attention(tape: Tape, arch: DecoderArchitecture, x: Value, attention: str) -> Value:
    """Three matrices, the product by kernel or written out, the output's matrix, dropped."""
    query, key, value = (
        tape.linear(x, "h", "q", label, bias=arch.attention_bias, out=FULL, role=role)
        for label, role in (("queries", "query"), ("keys", "key"), ("values", "value"))
    )
    dropout = arch.attention_dropout
    if attention == "sdpa":
        mixed = fused_attention(
            tape, query, key, value, dropout=dropout, grouped=False, cached=False
        )
    else:
        mixed = written_out_attention(
            tape, query, key, value, dropout=dropout, softmax_float32=False, cached=False
        )
    out = tape.linear(
        mixed, "q", "h", "attention projections", bias=arch.output_bias, out=TOKENS, role="output"
    )
    return tape.dropout(out, arch.residual_dropout, "projections, dropped")


def patches(tape: Tape, arch: DecoderArchitecture) -> Value:
    """A convolution over patches, the class token, positions; keeps the images."""
    images = tape.storage("images", ("b", "pixels"), tape.numerics.autocast or tape.numerics.dtype)
    out = tape.value("block inputs (residual stream)", TOKENS, tape.numerics.dtype)
    table = arch.hidden * (arch.patch_values + tape.sizes["s"])
    gradient = 0 if tape.numerics.frozen else table * out.storage.nbytes // tape.numel(TOKENS)
    tape.note(out=[out], saved=(images,), weight_gradient=gradient)
    return tape.dropout(out, arch.embedding_dropout, "block inputs (residual stream)")


def _add_and_norm(tape: Tape, arch: DecoderArchitecture, x: Value, out: Value) -> Value:
    total = tape.add(out, x, "sums before layer norms")
    return tape.layer_norm(total, "h", "layer norm outputs", bias=arch.norm_bias)


def classification_head(
    tape: Tape, arch: DecoderArchitecture, x: Value
) -> tuple[list[Value], list[Value], Value]:
    """Pooler (BERT) or last norm (ViT), and a classifier over the first token.

    Returns:
        What is held while the loss is computed, the logits, and the loss.
    """
    if arch.family == "vit":
        x = tape.layer_norm(x, "h", "layer norm outputs", bias=arch.norm_bias)
    first = Value(x.storage, ("b", "h"), x.dtype)  # a view, for which the whole stream is kept
    tape.note(x, out=[first], scratch=x.storage.nbytes)
    pooled = tape.linear(first, "h", "h", "pooled", bias=True, out=("b", "h"))
    logits = pooled if arch.family == "vit" else tape.unary(pooled, "pooled", keeps_output=True)
    loss = tape.value("loss", (), "float32")
    tape.note(logits, out=[loss])
    return [x, logits], [logits], loss
