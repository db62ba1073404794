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
    x = _add_and_norm(tape, arch, x, out)
    inner = tape.linear(x, "h", "i", "MLP inputs", bias=arch.mlp_bias, out=INNER, role="gate")
    inner = activation(tape, arch.activation, inner)
    out = tape.linear(
        inner, "i", "h", "MLP projections", bias=arch.mlp_bias, out=TOKENS, role="down"
    )
    return _add_and_norm(tape, arch, x, out), [x, inner]


def _add_and_norm(tape: Tape, arch: DecoderArchitecture, x: Value, out: Value) -> Value:
    out = tape.dropout(out, arch.residual_dropout, "projections, dropped")
    total = tape.add(out, x, "sums before layer norms")
    return tape.layer_norm(total, "h", "layer norm outputs", bias=arch.norm_bias)


def classification_head(
    tape: Tape, arch: DecoderArchitecture, x: Value
) -> tuple[list[Value], list[Value], Value]:
    """Pooler and classifier over the first token: a few numbers a sample.

    Returns:
        What is held while the loss is computed, the logits, and the loss.
    """
    del arch
    first = Value(x.storage, ("b", "h"), x.dtype)  # a view, for which the whole stream is kept
    tape.note(x, out=[first], scratch=x.storage.nbytes)
    pooled = tape.linear(first, "h", "h", "pooled", bias=True, out=("b", "h"))
    logits = tape.unary(pooled, "pooled", keeps_output=True)
    loss = tape.value("loss", (), "float32")
    tape.note(logits, out=[loss])
    return [x, logits], [logits], loss
