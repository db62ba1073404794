"""Encoder–decoders: T5 and its kin, BART and its kin, Whisper."""

from __future__ import annotations

from dataclasses import dataclass

from ..blocks import mlp, plain_attention
from ..hf_values import HfConfig
from ..modules import (
    NOTHING,
    Tied,
    Tree,
    buffer,
    convolution,
    embedding,
    layer_norm,
    linear,
    norm,
    numbered,
    repeat,
    tied,
    weight,
)
from .family import Family

# T5


def t5_attention(c: HfConfig, relative: bool) -> Tree:
    """T5's attention; where asked for with a table of relative positions."""
    inner = c.heads * c.size("d_kv")
    buckets = c.size("relative_attention_num_buckets")
    return {
        **plain_attention(c.size("d_model"), "q k v o", bias=False, inner=inner),
        **({"relative_attention_bias": embedding(buckets, c.heads)} if relative else NOTHING),
    }


def t5_feed_forward(c: HfConfig) -> Tree:
    """Two matrices, or three where the activation is gated."""
    width, inner = c.size("d_model"), c.size("d_ff")
    gated = c.word("feed_forward_proj", "relu").startswith("gated")
    first = ("wi_0", "wi_1") if gated else ("wi",)
    made = {name: linear(width, inner, False) for name in first}
    return {"DenseReluDense": {**made, "wo": linear(inner, width, False)}}


@dataclass(frozen=True, slots=True)
class T5:
    """One member of the family."""

    relative_everywhere: bool = False
    """Whether each layer has a table of relative positions (UMT5), or the first alone."""

    def stack(self, c: HfConfig, layers: int, decoder: bool) -> Tree:
        """Encoder or decoder; the embedding is the shared one."""
        scale = norm(c.size("d_model"))

        def block(layer: int) -> Tree:
            relative = self.relative_everywhere or layer == 0
            parts: list[Tree] = [{"SelfAttention": t5_attention(c, relative), "layer_norm": scale}]
            if decoder:
                parts.append({"EncDecAttention": t5_attention(c, False), "layer_norm": scale})
            parts.append({**t5_feed_forward(c), "layer_norm": scale})
            return {"layer": numbered(parts)}

        return {
            "embed_tokens": tied(embedding(c.vocabulary, c.size("d_model"))),
            "block": numbered(block(i) for i in range(layers)),
            "final_layer_norm": scale,
        }

    def encoder(self, c: HfConfig) -> Tree:
        """The encoder with the embedding."""
        return {
            "shared": embedding(c.vocabulary, c.size("d_model")),
            "encoder": self.stack(c, c.size("num_layers"), False),
        }

    def body(self, c: HfConfig) -> Tree:
        """Encoder and decoder."""
        layers = c.maybe("num_decoder_layers") or c.size("num_layers")
        return {**self.encoder(c), "decoder": self.stack(c, layers, True)}

    def generator(self, c: HfConfig) -> Tree:
        """With the head, which is the embedding whatever the file says.

        Source: transformers 5 ``T5Config`` ties all embeddings.
        """
        return {**self.body(c), "lm_head": tied(embedding(c.vocabulary, c.size("d_model")))}

    def family(self) -> Family:
        """The classes of the family."""
        return Family(
            {
                "ForConditionalGeneration": self.generator,
                "WithLMHeadModel": self.generator,
                "EncoderModel": self.encoder,
                "Model": self.body,
            }
        )


# BART


@dataclass(frozen=True, kw_only=True, slots=True)
class Bart:
    """How one member of the family differs."""

    extra_positions: int = 0
    """Rows of learned positions beside the longest sequence."""
    sines: bool = False
    """Positions are sines: parameters that are not trained, or a buffer."""
    sines_are_buffer: bool = False
    embedding_norm: bool = True
    final_norm: bool = False
    logits_bias: bool = True
    """Whether the logits have a bias, kept as a buffer."""
    labels: int = 2
    """Classes where the configuration does not say."""

    def positions(self, c: HfConfig) -> Tree:
        """The table of positions."""
        rows, width = c.size("max_position_embeddings") + self.extra_positions, c.size("d_model")
        if self.sines_are_buffer:
            return {"weights": buffer(rows, width)}
        return {"weight": weight(rows, width)}

    def stack(self, c: HfConfig, side: str, tokens: Tree) -> Tree:
        """Encoder or decoder."""
        width = c.size("d_model")
        attend = plain_attention(width, "k_proj v_proj q_proj out_proj")
        cross = {"encoder_attn": attend, "encoder_attn_layer_norm": layer_norm(width)}
        block: Tree = {
            "self_attn": attend,
            "self_attn_layer_norm": layer_norm(width),
            **(cross if side == "decoder" else NOTHING),
            **mlp(width, c.size(f"{side}_ffn_dim")),
            "final_layer_norm": layer_norm(width),
        }
        return {
            "embed_tokens": tokens,
            "embed_positions": self.positions(c),
            "layers": repeat(c.size(f"{side}_layers"), block),
            **({"layernorm_embedding": layer_norm(width)} if self.embedding_norm else NOTHING),
            **({"layer_norm": layer_norm(width)} if self.final_norm else NOTHING),
        }

    def body(self, c: HfConfig) -> Tree:
        """Encoder and decoder over one embedding."""
        table = embedding(c.vocabulary, c.size("d_model"))
        again = tied(table) if c.ties else table
        return {
            "shared": table,
            "encoder": self.stack(c, "encoder", again),
            "decoder": self.stack(c, "decoder", again),
        }

    def generator(self, c: HfConfig) -> Tree:
        """With the head."""
        table = embedding(c.vocabulary, c.size("d_model"))
        bias = {"final_logits_bias": buffer(1, c.vocabulary)} if self.logits_bias else {}
        return {**bias, "model": self.body(c), "lm_head": tied(table) if c.ties else table}

    def decoder_alone(self, c: HfConfig) -> Tree:
        """The decoder as a language model."""
        table = embedding(c.vocabulary, c.size("d_model"))
        return {
            "model": {"decoder": self.stack(c, "decoder", table)},
            "lm_head": tied(table) if c.ties else table,
        }

    def classifier(self, c: HfConfig) -> Tree:
        """With two dense layers over the last token."""
        width = c.size("d_model")
        return {
            "model": self.body(c),
            "classification_head": {
                "dense": linear(width, width),
                "out_proj": linear(width, c.label_count(self.labels)),
            },
        }

    def family(self) -> Family:
        """The classes of the family."""
        return Family(
            {
                "ForConditionalGeneration": self.generator,
                "MTModel": self.generator,
                "Model": self.body,
                "ForCausalLM": self.decoder_alone,
                "ForSequenceClassification": self.classifier,
            }
        )


# Whisper


def whisper_attention(width: int) -> Tree:
    """Keys have no bias."""
    return {
        "k_proj": linear(width, width, False),
        "v_proj": linear(width, width),
        "q_proj": linear(width, width),
        "out_proj": linear(width, width),
    }


def whisper_encoder(c: HfConfig) -> Tree:
    """Two convolutions over the spectrogram, then blocks."""
    width = c.size("d_model")
    block: Tree = {
        "self_attn": whisper_attention(width),
        "self_attn_layer_norm": layer_norm(width),
        **mlp(width, c.size("encoder_ffn_dim")),
        "final_layer_norm": layer_norm(width),
    }
    return {
        "conv1": convolution(c.size("num_mel_bins"), width, 3),
        "conv2": convolution(width, width, 3),
        "embed_positions": embedding(c.size("max_source_positions"), width),
        "layers": repeat(c.size("encoder_layers"), block),
        "layer_norm": layer_norm(width),
    }


def whisper(c: HfConfig) -> Tree:
    """Encoder and decoder."""
    width = c.size("d_model")
    block: Tree = {
        "self_attn": whisper_attention(width),
        "self_attn_layer_norm": layer_norm(width),
        "encoder_attn": whisper_attention(width),
        "encoder_attn_layer_norm": layer_norm(width),
        **mlp(width, c.size("decoder_ffn_dim")),
        "final_layer_norm": layer_norm(width),
    }
    return {
        "encoder": whisper_encoder(c),
        "decoder": {
            "embed_tokens": embedding(c.vocabulary, width),
            "embed_positions": embedding(c.size("max_target_positions"), width),
            "layers": repeat(c.size("decoder_layers"), block),
            "layer_norm": layer_norm(width),
        },
    }


def _whisper_generator(c: HfConfig) -> Tree:
    matrix = (c.vocabulary, c.size("d_model"))
    head = {"weight": Tied(matrix) if c.ties else weight(*matrix)}
    return {"model": whisper(c), "proj_out": head}


FAMILIES: dict[str, Family] = {
    "t5": T5().family(),
    "mt5": T5().family(),
    "umt5": T5(relative_everywhere=True).family(),
    "bart": Bart(extra_positions=2, labels=3).family(),
    "mbart": Bart(extra_positions=2, final_norm=True).family(),
    "pegasus": Bart(embedding_norm=False, final_norm=True).family(),
    "marian": Bart(embedding_norm=False).family(),
    "blenderbot": Bart(embedding_norm=False, final_norm=True).family(),
    "blenderbot-small": Bart().family(),
    "m2m_100": Bart(
        extra_positions=2,
        sines_are_buffer=True,
        embedding_norm=False,
        final_norm=True,
        logits_bias=False,
    ).family(),
    "whisper": Family({"ForConditionalGeneration": _whisper_generator, "Model": whisper}),
}
