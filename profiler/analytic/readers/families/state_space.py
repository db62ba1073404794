"""State-space models without attention: Mamba, Mamba-2, Falcon-Mamba."""

from __future__ import annotations

import math

from ..hf_values import HfConfig
from ..modules import Tree, buffer, embedding, linear, norm, repeat, weight
from .family import Family, language_head


def short_convolution(c: HfConfig, channels: int) -> Tree:
    """A depthwise convolution over a few tokens."""
    bias = {"bias": weight(channels)} if c.flag("use_conv_bias", True) else {}
    return {"weight": weight(channels, 1, c.size("conv_kernel")), **bias}


def mamba_mixer(c: HfConfig, normed: bool) -> Tree:
    """Mamba's mixer; Falcon keeps the scales of its norms as buffers."""
    states, bias = c.size("state_size"), c.flag("use_bias")
    inner = c.maybe("intermediate_size") or int(c.share("expand", 2) * c.hidden)
    said = c.get("time_step_rank", "auto")
    rank = math.ceil(c.hidden / 16) if said == "auto" else int(said)
    scales: Tree = {
        "dt_layernorm": {"weight": buffer(inner)},
        "b_layernorm": {"weight": buffer(states)},
        "c_layernorm": {"weight": buffer(states)},
    }
    return {
        "A_log": weight(inner, states),
        "D": weight(inner),
        "conv1d": short_convolution(c, inner),
        "in_proj": linear(c.hidden, 2 * inner, bias),
        "x_proj": linear(inner, rank + 2 * states, False),
        "dt_proj": linear(rank, inner),
        "out_proj": linear(inner, c.hidden, bias),
        **(scales if normed else {}),
    }


def mamba2_mixer(c: HfConfig) -> Tree:
    """Mamba-2's mixer: heads that share their states in groups."""
    heads, states, groups = c.size("num_heads"), c.size("state_size"), c.size("n_groups")
    inner, bias = int(c.share("expand", 2) * c.hidden), c.flag("use_bias")
    channels = inner + 2 * groups * states
    return {
        "dt_bias": weight(heads),
        "A_log": weight(heads),
        "D": weight(heads),
        "conv1d": short_convolution(c, channels),
        "in_proj": linear(c.hidden, inner + channels + heads, bias),
        "norm": norm(inner),
        "out_proj": linear(inner, c.hidden, bias),
    }


def body(c: HfConfig) -> Tree:
    """The model without a head."""
    mixer = (
        mamba2_mixer(c)
        if c.model_type == "mamba2"
        else mamba_mixer(c, normed=c.model_type == "falcon_mamba")
    )
    return {
        "embeddings": embedding(c.vocabulary, c.hidden),
        "layers": repeat(c.size("num_hidden_layers"), {"norm": norm(c.hidden), "mixer": mixer}),
        "norm_f": norm(c.hidden),
    }


_FAMILY = Family(
    {
        "ForCausalLM": lambda c: {"backbone": body(c), "lm_head": language_head(c)},
        "Model": body,
    }
)

FAMILIES: dict[str, Family] = dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), _FAMILY)
