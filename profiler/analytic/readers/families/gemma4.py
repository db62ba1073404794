"""Gemma 4: layers with embeddings of their own, shared keys and values, three towers."""

from __future__ import annotations

from ..blocks import gated_mlp
from ..hf_values import HfConfig
from ..modules import (
    NOTHING,
    Tree,
    buffer,
    embedding,
    linear,
    norm,
    numbered,
    repeat,
    rotary,
    weight,
)
from .decoders import FOUR_NORMS, FULL, SLIDING
from .family import Family, decoder_family
from .towers import generation


def layer_kinds(c: HfConfig) -> list[str]:
    """Sliding or full attention of each layer; every sixth is full, and the last always."""
    usual = [SLIDING if (i + 1) % 6 else FULL for i in range(c.layers)]
    kinds = c.words("layer_types") or usual
    return [*kinds[:-1], FULL]


def gemma4_attention(c: HfConfig, kind: str, shares: bool) -> Tree:
    """Attention of one layer; layers that share keys and values have no matrices for them."""
    full, bias = kind == FULL, c.flag("attention_bias")
    width = c.size("global_head_dim", 512) if full else c.head_width
    same = c.flag("attention_k_eq_v")
    fewer = c.maybe("num_global_key_value_heads") if full and same else None
    keys = linear(c.hidden, (fewer or c.kv_heads) * width, bias)
    own = {
        "k_norm": norm(width),
        "k_proj": keys,
        **(NOTHING if full and same else {"v_proj": keys}),
    }
    return {
        "q_proj": linear(c.hidden, c.heads * width, bias),
        "q_norm": norm(width),
        **(NOTHING if shares else own),
        "o_proj": linear(c.heads * width, c.hidden, bias),
    }


def gemma4_text(c: HfConfig) -> Tree:
    """The language model."""
    if c.flag("enable_moe_block"):
        raise ValueError(f"{c.where}enable_moe_block=true: its experts are not known here")
    kinds, narrow = layer_kinds(c), c.maybe("hidden_size_per_layer_input") or 0
    first_shared = c.layers - (c.maybe("num_kv_shared_layers") or 0)
    gate = {
        "per_layer_input_gate": linear(c.hidden, narrow, False),
        "per_layer_projection": linear(narrow, c.hidden, False),
        "post_per_layer_input_norm": norm(c.hidden),
    }

    def block(layer: int) -> Tree:
        shares = layer >= first_shared
        wide = 2 if shares and c.flag("use_double_wide_mlp") else 1
        return {
            "layer_scalar": buffer(1),
            "self_attn": gemma4_attention(c, kinds[layer], shares),
            "mlp": gated_mlp(c.hidden, wide * c.size("intermediate_size")),
            **{name: norm(c.hidden) for name in FOUR_NORMS.split()},
            **(gate if narrow else NOTHING),
        }

    inputs: Tree = {
        "embed_tokens_per_layer": {
            "embed_scale": buffer(),
            **embedding(c.size("vocab_size_per_layer_input"), c.layers * narrow),
        },
        "per_layer_model_projection": linear(c.hidden, c.layers * narrow, False),
        "per_layer_projection_norm": norm(narrow),
    }
    turned = {FULL: c.size("global_head_dim", 512), SLIDING: c.head_width}
    frequencies: dict[str, Tree] = {}
    for kind in sorted(set(kinds)):
        frequencies |= rotary(turned[kind], [kind])  # type: ignore[arg-type]
    return {
        "embed_tokens": {"embed_scale": buffer(), **embedding(c.vocabulary, c.hidden)},
        "layers": numbered(block(i) for i in range(c.layers)),
        "norm": norm(c.hidden),
        "rotary_emb": frequencies,
        **(inputs if narrow else NOTHING),
    }


def clippable(c: HfConfig, inputs: int, outputs: int) -> Tree:
    """A linear layer whose inputs and outputs are kept between bounds, which are buffers."""
    bounds = ("input_min", "input_max", "output_min", "output_max")
    kept = {name: buffer() for name in bounds} if c.flag("use_clipped_linears") else {}
    return {**kept, "linear": linear(inputs, outputs, False)}


def gemma4_vision(c: HfConfig) -> Tree:
    """The vision tower."""
    width, inner = c.hidden, c.size("intermediate_size")
    head = c.head_width
    keys = c.kv_heads * head
    block: Tree = {
        "self_attn": {
            "q_proj": clippable(c, width, c.heads * head),
            "k_proj": clippable(c, width, keys),
            "v_proj": clippable(c, width, keys),
            "o_proj": clippable(c, c.heads * head, width),
            "q_norm": norm(head),
            "k_norm": norm(head),
        },
        "mlp": {
            "gate_proj": clippable(c, width, inner),
            "up_proj": clippable(c, width, inner),
            "down_proj": clippable(c, inner, width),
        },
        **{name: norm(width) for name in FOUR_NORMS.split()},
    }
    return {
        "patch_embedder": {
            "position_embedding_table": weight(2, c.size("position_embedding_size"), width),
            "input_proj": linear(3 * c.size("patch_size") ** 2, width, False),
        },
        "encoder": {
            "layers": repeat(c.layers, block),
            "rotary_emb": rotary(head // 2),
        },
    }


def gemma4_audio(c: HfConfig) -> Tree:
    """The audio tower: a conformer behind two convolutions."""
    width, kernel = c.hidden, c.size("conv_kernel_size")
    first, second = c.sizes("subsampling_conv_channels")

    def feed_forward() -> Tree:
        return {
            "ffw_layer_1": clippable(c, width, 4 * width),
            "ffw_layer_2": clippable(c, 4 * width, width),
            "pre_layer_norm": norm(width),
            "post_layer_norm": norm(width),
        }

    attention: Tree = {
        "per_dim_scale": weight(width // c.heads),
        "softcap": buffer(),
        **{name: clippable(c, width, width) for name in ("q_proj", "k_proj", "v_proj", "post")},
        "relative_k_proj": linear(width, width, False),
    }
    block: Tree = {
        "feed_forward1": feed_forward(),
        "feed_forward2": feed_forward(),
        "self_attn": attention,
        "lconv1d": {
            "linear_start": clippable(c, width, 2 * width),
            "linear_end": clippable(c, width, width),
            "depthwise_conv1d": {"weight": weight(width, 1, kernel)},
            "pre_layer_norm": norm(width),
            "conv_norm": norm(width),
        },
        "norm_pre_attn": norm(width),
        "norm_post_attn": norm(width),
        "norm_out": norm(width),
    }
    return {
        "subsample_conv_projection": {
            "layer0": {"conv": {"weight": weight(first, 1, 3, 3)}, "norm": norm(first)},
            "layer1": {"conv": {"weight": weight(second, first, 3, 3)}, "norm": norm(second)},
            "input_proj_linear": linear(first // 4 * second, width, False),
        },
        "rel_pos_enc": {"inv_timescales": buffer(1, 1, width // 2)},
        "layers": repeat(c.layers, block),
        "output_proj": linear(width, c.size("output_proj_dims")),
    }


def _text(c: HfConfig) -> HfConfig:
    return c.nested("text_config", "gemma4_text")


def gemma4(c: HfConfig) -> Tree:
    """The towers that the configuration has, and the language model."""
    words, parts = _text(c), {}
    towers = {
        "vision": ("gemma4_vision", gemma4_vision),
        "audio": ("gemma4_audio", gemma4_audio),
    }
    for side, (model_type, tower) in towers.items():
        if not c.has(f"{side}_config"):
            continue
        inner = c.nested(f"{side}_config", model_type)
        out = inner.size("output_proj_dims") if side == "audio" else inner.hidden
        parts[f"{side}_tower"] = tower(inner)
        parts[f"embed_{side}"] = {"embedding_projection": linear(out, words.hidden, False)}
    return {"language_model": gemma4_text(words), **parts}


FAMILIES: dict[str, Family] = {
    "gemma4_text": decoder_family(gemma4_text),
    "gemma4": generation(gemma4, _text, either=False),
}
