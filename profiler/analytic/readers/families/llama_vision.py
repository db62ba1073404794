"""Llama 3.2 Vision and Llama 4."""

from __future__ import annotations

from ..blocks import gated_mlp, mlp, plain_attention
from ..hf_values import HfConfig
from ..modules import (
    Buffer,
    Tied,
    Tree,
    embedding,
    layer_norm,
    linear,
    norm,
    numbered,
    repeat,
    rotary,
    weight,
)
from .decoders import Decoder
from .family import Family
from .towers import language, untied
from .vision import patch_convolution, patches


def mllama_block(c: HfConfig, cross: bool) -> Tree:
    """A block of the language model; some attend to the image instead of the text."""
    plain = Decoder()
    inner = gated_mlp(c.hidden, c.size("intermediate_size"))
    if not cross:
        return {"self_attn": plain.attention(c), "mlp": inner, **plain.block_norms(c)}
    return {
        "cross_attn_attn_gate": weight(1),
        "cross_attn_mlp_gate": weight(1),
        "cross_attn": {
            **plain.attention(c),
            "q_norm": norm(c.head_width),
            "k_norm": norm(c.head_width),
        },
        "input_layernorm": norm(c.hidden),
        "mlp": inner,
        "post_attention_layernorm": norm(c.hidden),
    }


def mllama_text(c: HfConfig) -> Tree:
    """The language model; eight more rows in the embedding than in the head."""
    crossed = c.get("cross_attention_layers") or [3, 8, 13, 18, 23, 28, 33, 38]
    return {
        "embed_tokens": embedding(c.vocabulary + 8, c.hidden),
        "layers": numbered(mllama_block(c, i in crossed) for i in range(c.layers)),
        "norm": norm(c.hidden),
        "rotary_emb": rotary(c.head_width),
    }


def mllama_vision(c: HfConfig) -> Tree:
    """The vision tower: tiles of an image, with gated positions for each aspect ratio."""
    width, inner = c.hidden, c.size("intermediate_size")
    tiles, ratios = c.size("max_num_tiles"), c.size("max_aspect_ratio_id", 8) + 1
    positions = patches(c) + 1

    def block(gated: bool) -> Tree:
        return {
            **({"gate_attn": weight(1), "gate_ffn": weight(1)} if gated else {}),
            "self_attn": plain_attention(width, "q_proj k_proj v_proj o_proj", bias=False),
            "mlp": mlp(width, inner),
            "input_layernorm": layer_norm(width),
            "post_attention_layernorm": layer_norm(width),
        }

    tile: Tree = {"gate": weight(1), "embedding": embedding(ratios, tiles * width)}
    return {
        "class_embedding": weight(width),
        "patch_embedding": patch_convolution(c, width, bias=False),
        "gated_positional_embedding": {
            "gate": weight(1),
            "embedding": weight(positions, width),
            "tile_embedding": embedding(ratios, tiles * positions * width),
        },
        "pre_tile_positional_embedding": tile,
        "post_tile_positional_embedding": tile,
        "layernorm_pre": layer_norm(width),
        "layernorm_post": layer_norm(width),
        "transformer": {"layers": repeat(c.layers, block(gated=False))},
        "global_transformer": {"layers": repeat(c.size("num_global_layers"), block(gated=True))},
    }


def mllama(c: HfConfig) -> Tree:
    """Llama 3.2 Vision."""
    images, words = c.nested("vision_config", "mllama_vision_model"), _mllama_text(c)
    return {
        "vision_model": mllama_vision(images),
        "language_model": mllama_text(words),
        "multi_modal_projector": linear(images.size("vision_output_dim"), words.hidden),
    }


def _mllama_text(c: HfConfig) -> HfConfig:
    return c.nested("text_config", "mllama_text_model")


def llama4_vision(c: HfConfig) -> Tree:
    """Llama 4's vision tower: patches unfolded, rotary positions as complex numbers."""
    width, inner, head = c.hidden, c.size("intermediate_size"), c.hidden // c.heads
    inputs = c.size("num_channels") * c.size("patch_size") ** 2
    positions = patches(c) + 1
    block: Tree = {
        "self_attn": plain_attention(width, "q_proj k_proj v_proj o_proj"),
        "mlp": mlp(width, inner),
        "input_layernorm": layer_norm(width),
        "post_attention_layernorm": layer_norm(width),
    }
    out = c.size("projector_output_dim")
    return {
        "class_embedding": weight(width),
        "positional_embedding_vlm": weight(positions, width),
        "patch_embedding": {"linear": linear(inputs, width, False)},
        "rotary_embedding": {"freqs_ci": Buffer((positions, 1, head // 2), 8)},
        "layernorm_pre": layer_norm(width),
        "layernorm_post": layer_norm(width),
        "model": {"layers": repeat(c.layers, block)},
        "vision_adapter": {
            "mlp": {
                "fc1": linear(inner, c.size("projector_input_dim"), False),
                "fc2": linear(out, out, False),
            }
        },
    }


def llama4(c: HfConfig) -> Tree:
    """Llama 4."""
    images = c.nested("vision_config", "llama4_vision_model")
    words = c.nested("text_config", "llama4_text")
    matrix = (words.vocabulary, words.hidden)
    tied = words.flag("tie_word_embeddings")
    return {
        "vision_model": llama4_vision(images),
        "multi_modal_projector": {
            "linear_1": linear(images.size("vision_output_dim"), words.hidden, False)
        },
        "language_model": {
            "model": language(words),
            "lm_head": {"weight": Tied(matrix) if tied else weight(*matrix)},
        },
    }


FAMILIES: dict[str, Family] = {
    "mllama": untied(mllama, _mllama_text),
    "mllama_text_model": Family(
        {
            "ForCausalLM": lambda c: {
                "model": mllama_text(c),
                "lm_head": linear(c.hidden, c.vocabulary, False),
            },
            "TextModel": mllama_text,
        }
    ),
    "llama4": Family({"ForConditionalGeneration": llama4}),
}
