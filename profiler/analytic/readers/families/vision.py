"""Vision and text towers: CLIP, SigLIP, ViT, DINOv2, Pixtral, InternViT, Swin, ConvNeXt."""

from __future__ import annotations

from collections.abc import Callable

from ..blocks import gated_mlp, mlp, plain_attention
from ..hf_values import HfConfig
from ..modules import (
    NOTHING,
    Buffer,
    Tree,
    convolution,
    embedding,
    layer_norm,
    linear,
    norm,
    numbered,
    position_ids,
    repeat,
    rotary,
    weight,
)
from .family import Body, Family

PROJECTIONS = "k_proj v_proj q_proj out_proj"


def patches(c: HfConfig) -> int:
    """Patches of an image."""
    height, width = c.pair("image_size")
    rows, columns = c.pair("patch_size")
    return (height // rows) * (width // columns)


def patch_convolution(c: HfConfig, width: int, bias: bool = True) -> Tree:
    """Cuts an image into patches."""
    return convolution(c.size("num_channels"), width, *c.pair("patch_size"), bias=bias)


def clip_layers(c: HfConfig) -> Tree:
    """CLIP's blocks."""
    width = c.hidden
    block: Tree = {
        "self_attn": plain_attention(width, PROJECTIONS),
        "layer_norm1": layer_norm(width),
        "mlp": mlp(width, c.size("intermediate_size")),
        "layer_norm2": layer_norm(width),
    }
    return {"layers": repeat(c.layers, block)}


def clip_text(c: HfConfig) -> Tree:
    """CLIP's text tower."""
    width, positions = c.hidden, c.size("max_position_embeddings")
    return {
        "embeddings": {
            "position_ids": position_ids(positions),
            "token_embedding": embedding(c.vocabulary, width),
            "position_embedding": embedding(positions, width),
        },
        "encoder": clip_layers(c),
        "final_layer_norm": layer_norm(width),
    }


def clip_vision(c: HfConfig) -> Tree:
    """CLIP's vision tower: a class token, patches without bias."""
    width, positions = c.hidden, patches(c) + 1
    return {
        "embeddings": {
            "class_embedding": weight(width),
            "position_ids": position_ids(positions),
            "patch_embedding": patch_convolution(c, width, bias=False),
            "position_embedding": embedding(positions, width),
        },
        "pre_layrnorm": layer_norm(width),
        "encoder": clip_layers(c),
        "post_layernorm": layer_norm(width),
    }


def siglip_layers(c: HfConfig) -> Tree:
    """CLIP's blocks in another order."""
    width = c.hidden
    block: Tree = {
        "layer_norm1": layer_norm(width),
        "self_attn": plain_attention(width, PROJECTIONS),
        "layer_norm2": layer_norm(width),
        "mlp": mlp(width, c.size("intermediate_size")),
    }
    return {"layers": repeat(c.layers, block)}


def siglip_text(c: HfConfig) -> Tree:
    """SigLIP's text tower."""
    return {
        **clip_text(c),
        "encoder": siglip_layers(c),
        "head": linear(c.hidden, c.maybe("projection_size") or c.hidden),
    }


def siglip_vision(c: HfConfig) -> Tree:
    """SigLIP's vision tower, with its pooling head."""
    width, positions = c.hidden, patches(c)
    head: Tree = {
        "probe": weight(1, 1, width),
        "attention": {
            "in_proj_weight": weight(3 * width, width),
            "in_proj_bias": weight(3 * width),
            "out_proj": linear(width, width),
        },
        "layernorm": layer_norm(width),
        "mlp": mlp(width, c.size("intermediate_size")),
    }
    return {
        "embeddings": {
            "position_ids": position_ids(positions),
            "patch_embedding": patch_convolution(c, width),
            "position_embedding": embedding(positions, width),
        },
        "encoder": siglip_layers(c),
        "post_layernorm": layer_norm(width),
        **({"head": head} if c.flag("vision_use_head", True) else NOTHING),
    }


def vit_block(c: HfConfig) -> Tree:
    """ViT's block."""
    width, bias = c.hidden, c.flag("qkv_bias", True)
    return {
        "attention": {
            **{name: linear(width, width, bias) for name in ("q_proj", "k_proj", "v_proj")},
            "o_proj": linear(width, width),
        },
        "layernorm_before": layer_norm(width),
        "layernorm_after": layer_norm(width),
        "mlp": mlp(width, c.size("intermediate_size")),
    }


def vit(c: HfConfig, tokens: int = 1) -> Tree:
    """ViT; DeiT has a second token."""
    width = c.hidden
    return {
        "embeddings": {
            "cls_token": weight(1, 1, width),
            "position_embeddings": weight(1, patches(c) + tokens, width),
            **({"distillation_token": weight(1, 1, width)} if tokens == 2 else NOTHING),
            "patch_embeddings": {"projection": patch_convolution(c, width)},
        },
        "layers": repeat(c.layers, vit_block(c)),
        "layernorm": layer_norm(width),
    }


def deit(c: HfConfig) -> Tree:
    """DeiT."""
    return vit(c, tokens=2)


def pooled_vit(c: HfConfig, tokens: int = 1) -> Tree:
    """With the pooler that the class without a head has."""
    pooler = {"dense": linear(c.hidden, c.maybe("pooler_output_size") or c.hidden)}
    return {**vit(c, tokens), "pooler": pooler}


def dinov2(c: HfConfig) -> Tree:
    """DINOv2: scaled branches, and gated MLPs in the giant model."""
    width, bias = c.hidden, c.flag("qkv_bias", True)
    inner = int(width * c.share("mlp_ratio", 4))
    gated = (int(inner * 2 / 3) + 7) // 8 * 8
    block: Tree = {
        "norm1": layer_norm(width),
        "attention": {
            **{name: linear(width, width, bias) for name in ("q_proj", "k_proj", "v_proj")},
            "o_proj": linear(width, width),
        },
        "layer_scale1": {"lambda1": weight(width)},
        "norm2": layer_norm(width),
        "mlp": (
            gated_mlp(width, gated, bias=True) if c.flag("use_swiglu_ffn") else mlp(width, inner)
        ),
        "layer_scale2": {"lambda1": weight(width)},
    }
    masked = c.flag("use_mask_token", True)
    return {
        "embeddings": {
            "cls_token": weight(1, 1, width),
            **({"mask_token": weight(1, width)} if masked else {}),
            "position_embeddings": weight(1, patches(c) + 1, width),
            "patch_embeddings": {"projection": patch_convolution(c, width)},
        },
        "encoder": {"layer": repeat(c.layers, block)},
        "layernorm": layer_norm(width),
    }


def pixtral(c: HfConfig) -> Tree:
    """Pixtral's vision tower: blocks like Llama's, rotary positions in two dimensions."""
    width, inner = c.hidden, c.size("intermediate_size")
    block: Tree = {
        "attention_norm": norm(width),
        "feed_forward": gated_mlp(width, inner),
        "attention": plain_attention(width, "k_proj v_proj q_proj o_proj", bias=False),
        "ffn_norm": norm(width),
    }
    return {
        "patch_conv": patch_convolution(c, width, bias=False),
        "ln_pre": norm(width),
        "transformer": {"layers": repeat(c.layers, block)},
        "patch_positional_embedding": rotary(c.maybe("head_dim") or width // c.heads),
    }


def internvl_vision(c: HfConfig) -> Tree:
    """InternViT as transformers keeps it."""
    width, bias = c.hidden, c.flag("attention_bias")
    scale = norm(width, c.word("norm_type", "layer_norm") == "layer_norm")
    block: Tree = {
        "lambda_1": weight(width),
        "lambda_2": weight(width),
        "attention": {
            **{name: linear(width, width, bias) for name in ("q_proj", "k_proj", "v_proj")},
            "projection_layer": linear(width, width),
            **(
                {"q_norm": norm(width), "k_norm": norm(width)} if c.flag("use_qk_norm") else NOTHING
            ),
        },
        "mlp": mlp(width, c.size("intermediate_size")),
        "layernorm_before": scale,
        "layernorm_after": scale,
    }
    masked, positions = c.flag("use_mask_token"), c.flag("use_absolute_position_embeddings", True)
    pooled = c.flag("use_mean_pooling", True)
    return {
        "embeddings": {
            "cls_token": weight(1, 1, width),
            **({"mask_token": weight(1, 1, width)} if masked else {}),
            **({"position_embeddings": weight(1, patches(c) + 1, width)} if positions else {}),
            "patch_embeddings": {"projection": patch_convolution(c, width)},
        },
        "encoder": {"layer": repeat(c.layers, block)},
        **(NOTHING if pooled else {"layernorm": layer_norm(width)}),
    }


def swin(c: HfConfig) -> Tree:
    """Swin: four stages, each half as wide in space and twice as wide in channels."""
    first, bias = c.size("embed_dim"), c.flag("qkv_bias", True)
    window, depths, heads = c.size("window_size"), c.sizes("depths"), c.sizes("num_heads")
    ratio, grid = (
        c.share("mlp_ratio", 4.0),
        tuple(
            size // patch
            for size, patch in zip(c.pair("image_size"), c.pair("patch_size"), strict=True)
        ),
    )

    def stage(level: int) -> Tree:
        width = first * 2**level
        side = min(window, *(g // 2**level for g in grid))
        block: Tree = {
            "attention": {
                **{name: linear(width, width, bias) for name in ("q_proj", "k_proj", "v_proj")},
                "o_proj": linear(width, width),
                "relative_position_bias": {
                    "relative_position_bias_table": weight((2 * side - 1) ** 2, heads[level]),
                    "relative_position_index": Buffer((side**4,), 8),
                },
            },
            "layernorm_before": layer_norm(width),
            "layernorm_after": layer_norm(width),
            "mlp": mlp(width, int(ratio * width)),
        }
        merge = {
            "downsample": {
                "reduction": linear(4 * width, 2 * width, False),
                "norm": layer_norm(4 * width),
            }
        }
        last = level == len(depths) - 1
        return {"blocks": repeat(depths[level], block), **(NOTHING if last else merge)}

    return {
        "embeddings": {
            "patch_embeddings": {"projection": patch_convolution(c, first)},
            "norm": layer_norm(first),
        },
        "encoder": {"layers": numbered(stage(i) for i in range(len(depths)))},
        "layernorm": layer_norm(first * 2 ** (len(depths) - 1)),
    }


def convnext(c: HfConfig) -> Tree:
    """ConvNeXt: depthwise convolutions and linear layers."""
    widths, depths = c.sizes("hidden_sizes"), c.sizes("depths")
    scaled = c.share("layer_scale_init_value", 1e-6) > 0

    def block(width: int) -> Tree:
        return {
            **({"layer_scale_parameter": weight(width)} if scaled else {}),
            "dwconv": convolution(1, width, 7, 7),
            "layernorm": layer_norm(width),
            "pwconv1": linear(width, 4 * width),
            "pwconv2": linear(4 * width, width),
        }

    def stage(level: int) -> Tree:
        width = widths[level]
        before = widths[level - 1]
        down = {"0": layer_norm(before), "1": convolution(before, width, 2, 2)}
        return {
            "downsampling_layer": down if level else NOTHING,
            "layers": repeat(depths[level], block(width)),
        }

    return {
        "embeddings": {
            "patch_embeddings": patch_convolution(c, widths[0]),
            "layernorm": layer_norm(widths[0]),
        },
        "encoder": {"stages": numbered(stage(i) for i in range(c.size("num_stages")))},
        "layernorm": layer_norm(widths[-1]),
    }


def _image_classes(
    prefix: str, body: Body, width: Callable[[HfConfig], int], pooled: Body | None = None
) -> Family:
    """The usual classes of a vision model."""
    return Family(
        {
            "ForImageClassification": lambda c: {
                prefix: body(c),
                "classifier": linear(width(c), c.labels),
            },
            "Model": pooled or body,
        }
    )


FAMILIES: dict[str, Family] = {
    "vit": _image_classes("vit", vit, lambda c: c.hidden, pooled_vit),
    "deit": _image_classes("deit", deit, lambda c: c.hidden, lambda c: pooled_vit(c, 2)),
    "dinov2": _image_classes("dinov2", dinov2, lambda c: 2 * c.hidden),
    "swin": _image_classes(
        "swin", swin, lambda c: c.size("embed_dim") * 2 ** (len(c.sizes("depths")) - 1)
    ),
    "convnext": _image_classes("convnext", convnext, lambda c: c.sizes("hidden_sizes")[-1]),
    "pixtral": Family({"VisionModel": pixtral}),
    "internvl_vision": Family({"VisionModel": internvl_vision}),
}
