"""Qwen-VL of every generation, and GLM-4V, whose tower is like it."""

from __future__ import annotations

from ..blocks import gated_mlp, mlp, plain_attention
from ..hf_values import HfConfig
from ..modules import (
    NOTHING,
    Tree,
    buffer,
    convolution,
    embedding,
    layer_norm,
    linear,
    norm,
    repeat,
    rotary,
)
from . import experts
from .decoders import Decoder, fused_gate
from .family import Body, Family
from .towers import generation, language, text_of
from .vision import patches


def qwen2_vision(c: HfConfig) -> Tree:
    """Qwen2-VL's tower: patches over time, and a merger of neighbouring ones."""
    width, out = c.size("embed_dim"), c.size("hidden_size")
    merged = width * c.size("spatial_merge_size") ** 2
    block: Tree = {
        "norm1": layer_norm(width),
        "norm2": layer_norm(width),
        "attn": {"qkv": linear(width, 3 * width), "proj": linear(width, width)},
        "mlp": mlp(width, int(width * c.share("mlp_ratio", 4))),
    }
    return {
        "patch_embed": {"proj": qwen_patches(c, width, bias=False)},
        "rotary_pos_emb": rotary(width // c.size("num_heads") // 2),
        "blocks": repeat(c.size("depth"), block),
        "merger": qwen_merger(merged, layer_norm(width), out),
    }


def qwen2_5_vision(c: HfConfig) -> Tree:
    """Qwen2.5-VL's tower: RMS norms and gated MLPs."""
    width = c.hidden
    merged = width * c.size("spatial_merge_size") ** 2
    block: Tree = {
        "norm1": norm(width),
        "norm2": norm(width),
        "attn": {"qkv": linear(width, 3 * width), "proj": linear(width, width)},
        "mlp": gated_mlp(width, c.size("intermediate_size"), bias=True),
    }
    return {
        "patch_embed": {"proj": qwen_patches(c, width, bias=False)},
        "rotary_pos_emb": rotary(width // c.size("num_heads") // 2),
        "blocks": repeat(c.size("depth"), block),
        "merger": qwen_merger(merged, norm(width), c.size("out_hidden_size")),
    }


def qwen3_vision(c: HfConfig) -> Tree:
    """Qwen3-VL's tower: learned positions, and mergers for several depths."""
    width, out = c.hidden, c.size("out_hidden_size")
    merged = width * c.size("spatial_merge_size") ** 2

    def merger(scale: int) -> Tree:
        return {
            "norm": layer_norm(scale),
            "linear_fc1": linear(merged, merged),
            "linear_fc2": linear(merged, out),
        }

    block: Tree = {
        "norm1": layer_norm(width),
        "norm2": layer_norm(width),
        "attn": {"qkv": linear(width, 3 * width), "proj": linear(width, width)},
        "mlp": mlp(width, c.size("intermediate_size"), "linear_fc1 linear_fc2"),
    }
    deep = c.get("deepstack_visual_indexes") if c.model_type.startswith("qwen3_vl") else None
    return {
        "patch_embed": {"proj": qwen_patches(c, width, bias=True)},
        "pos_embed": embedding(c.size("num_position_embeddings"), width),
        "rotary_pos_emb": rotary(width // c.size("num_heads") // 2),
        "blocks": repeat(c.size("depth"), block),
        "merger": merger(width),
        **({"deepstack_merger_list": repeat(len(deep), merger(merged))} if deep else NOTHING),
    }


def qwen_patches(c: HfConfig, width: int, bias: bool) -> Tree:
    """Cuts a video into patches."""
    size = c.size("patch_size")
    return convolution(
        c.size("in_channels", 3), width, c.size("temporal_patch_size"), size, size, bias=bias
    )


def qwen_merger(merged: int, scale: Tree, out: int) -> Tree:
    """Joins neighbouring patches."""
    return {"ln_q": scale, "mlp": {"0": linear(merged, merged), "2": linear(merged, out)}}


def qwen_vl(model_type: str, tower: Body) -> Family:
    """Qwen-VL of one generation."""

    def text(c: HfConfig) -> HfConfig:
        return text_of(c, f"{model_type}_text")

    def body(c: HfConfig) -> Tree:
        images = c.nested("vision_config", f"{model_type}_vision")
        # Old files name the whole model's type in the nested configuration.
        images = HfConfig(images.values, f"{model_type}_vision", images.where)
        return {"visual": tower(images), "language_model": language(text(c))}

    return generation(body, text, either=model_type in ("qwen2_vl", "qwen2_5_vl"))


def glm4v_vision(c: HfConfig) -> Tree:
    """GLM-4V's tower: a convolution halves the grid before the merger."""
    width, out = c.hidden, c.size("out_hidden_size")
    merge, inner = c.size("spatial_merge_size"), c.size("intermediate_size")
    bias = c.flag("attention_bias")
    block: Tree = {
        "norm1": norm(width),
        "norm2": norm(width),
        "attn": {"qkv": linear(width, 3 * width, bias), "proj": linear(width, width, False)},
        "mlp": gated_mlp(width, out),
    }
    return {
        "embeddings": {"position_embedding": embedding(patches(c), width)},
        "patch_embed": {"proj": qwen_patches(c, width, bias=True)},
        "rotary_pos_emb": rotary(width // c.size("num_heads") // 2),
        "blocks": repeat(c.size("depth"), block),
        "merger": {
            "proj": linear(out, out, False),
            "post_projection_norm": layer_norm(out),
            **gated_mlp(out, inner),
        },
        "post_conv_layernorm": norm(width),
        "downsample": convolution(width, out, merge, merge),
        "post_layernorm": norm(width),
    }


# Qwen-Omni


def omni_vision(c: HfConfig) -> Tree:
    """Qwen3-VL's tower with other names in its mergers."""
    width, out = c.hidden, c.size("out_hidden_size")
    merged = width * c.size("spatial_merge_size") ** 2
    deep = c.get("deepstack_visual_indexes") or []
    made = dict(qwen3_vision(c))
    made["merger"] = qwen_merger(merged, layer_norm(width), out)
    if deep:
        made["merger_list"] = repeat(len(deep), qwen_merger(merged, layer_norm(merged), out))
    return made


def omni_audio(c: HfConfig) -> Tree:
    """Three convolutions over the spectrogram, blocks, and a projection."""
    width, channels = c.size("d_model"), c.size("downsample_hidden_size")
    rows = (((c.size("num_mel_bins") + 1) // 2 + 1) // 2 + 1) // 2
    block: Tree = {
        "self_attn": plain_attention(width, "k_proj v_proj q_proj out_proj"),
        "self_attn_layer_norm": layer_norm(width),
        **mlp(width, c.size("encoder_ffn_dim")),
        "final_layer_norm": layer_norm(width),
    }
    return {
        "positional_embedding": {
            "positional_embedding": buffer(c.size("max_source_positions"), width)
        },
        "layers": repeat(c.size("encoder_layers"), block),
        "ln_post": layer_norm(width),
        "conv2d1": convolution(1, channels, 3, 3),
        "conv2d2": convolution(channels, channels, 3, 3),
        "conv2d3": convolution(channels, channels, 3, 3),
        "conv_out": linear(channels * rows, width, False),
        "proj1": linear(width, width),
        "proj2": linear(width, c.size("output_dim")),
    }


def omni_thinker(c: HfConfig) -> Tree:
    """What understands: sound, images and text."""
    words = c.nested("text_config", "qwen3_omni_moe_text")
    return {
        "model": {
            "audio_tower": omni_audio(c.nested("audio_config", "qwen3_omni_moe_audio_encoder")),
            "visual": omni_vision(c.nested("vision_config", "qwen3_omni_moe_vision_encoder")),
            "language_model": language(words),
        },
        "lm_head": linear(words.hidden, words.vocabulary, False),
    }


def omni(c: HfConfig) -> Tree:
    """Qwen3-Omni without its voice."""
    if c.flag("enable_audio_output", True):
        raise ValueError(
            "enable_audio_output=true: the talker of Qwen3-Omni is not known here; only the "
            "thinker is (enable_audio_output=false)"
        )
    return {"thinker": omni_thinker(c.nested("thinker_config", "qwen3_omni_moe_thinker"))}


_QWEN2 = Decoder(bias=True, output_bias=False)
_QWEN3 = Decoder(bias="attention_bias", head_norms=True)

TEXT_FAMILIES: dict[str, Family] = {
    "qwen2_vl_text": _QWEN2.family(),
    "qwen2_5_vl_text": _QWEN2.family(),
    "qwen3_vl_text": _QWEN3.family(),
    "qwen3_vl_moe_text": experts.MixtureDecoder(
        moe=experts.qwen3_moe,
        sparse=experts.every_step,
        bias="attention_bias",
        head_norms=True,
    ).family(),
    "qwen3_omni_moe_text": experts.MixtureDecoder(
        moe=experts.qwen3_moe, sparse=experts.every_step, bias="attention_bias", head_norms=True
    ).family(),
    "glm4v_text": Decoder(
        bias=True,
        output_bias=False,
        mlp=fused_gate,
        norms="input_layernorm post_attention_layernorm "
        "post_self_attn_layernorm post_mlp_layernorm",
    ).family(),
}

FAMILIES: dict[str, Family] = {
    **TEXT_FAMILIES,
    "qwen3_omni_moe": Family({"ForConditionalGeneration": omni}),
    "qwen3_omni_moe_thinker": Family({"ForConditionalGeneration": omni_thinker}),
    "qwen2_vl": qwen_vl("qwen2_vl", qwen2_vision),
    "qwen2_5_vl": qwen_vl("qwen2_5_vl", qwen2_5_vision),
    "qwen3_vl": qwen_vl("qwen3_vl", qwen3_vision),
    "qwen3_vl_moe": qwen_vl("qwen3_vl_moe", qwen3_vision),
    "qwen3_5": qwen_vl("qwen3_5", qwen3_vision),
    "qwen3_5_moe": qwen_vl("qwen3_5_moe", qwen3_vision),
    "glm4v": qwen_vl("glm4v", glm4v_vision),
}
