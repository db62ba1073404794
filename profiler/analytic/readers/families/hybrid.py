"""Decoders that mix attention with gated delta networks: Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from dataclasses import dataclass

from ..blocks import attention
from ..hf_values import HfConfig
from ..modules import Tree, linear, norm, weight
from .decoders import Decoder
from .experts import MixtureDecoder, every_step, qwen2_moe
from .family import Family


def is_linear(c: HfConfig, layer: int) -> bool:
    """Whether a layer is a delta network; every fourth has attention where nothing is said."""
    kinds = c.words("layer_types")
    if kinds:
        return kinds[layer] == "linear_attention"
    return bool((layer + 1) % c.size("full_attention_interval", 4))


def delta_network(c: HfConfig, joint: bool) -> Tree:
    """A gated delta network; ``joint``: its inputs come from two matrices instead of four."""
    keys = c.size("linear_num_key_heads") * c.size("linear_key_head_dim")
    heads, head = c.size("linear_num_value_heads"), c.size("linear_value_head_dim")
    values = heads * head
    if joint:
        inputs: Tree = {
            "in_proj_qkvz": linear(c.hidden, 2 * keys + 2 * values, False),
            "in_proj_ba": linear(c.hidden, 2 * heads, False),
        }
    else:
        inputs = {
            "in_proj_qkv": linear(c.hidden, 2 * keys + values, False),
            "in_proj_z": linear(c.hidden, values, False),
            "in_proj_b": linear(c.hidden, heads, False),
            "in_proj_a": linear(c.hidden, heads, False),
        }
    return {
        "dt_bias": weight(heads),
        "A_log": weight(heads),
        "conv1d": {"weight": weight(2 * keys + values, 1, c.size("linear_conv_kernel_dim"))},
        **(inputs if joint else {}),
        "norm": norm(head),
        "out_proj": linear(values, c.hidden, False),
        **({} if joint else inputs),
    }


def gated_attention(c: HfConfig) -> Tree:
    """Attention whose queries bring a gate of their own width."""
    made = dict(attention(c, bias=c.flag("attention_bias")))
    double = 2 * c.heads * c.head_width
    made["q_proj"] = linear(c.hidden, double, c.flag("attention_bias"))
    return {**made, "q_norm": norm(c.head_width), "k_norm": norm(c.head_width)}


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridDecoder(Decoder):
    """Delta networks and, in every so many-th layer, attention."""

    joint: bool = False

    def block(self, c: HfConfig, layer: int) -> Tree:
        """One block."""
        mixer = mix(c, layer, self.joint)
        return {**mixer, "mlp": self.feed_forward(c), **self.block_norms(c)}


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridMixture(MixtureDecoder):
    """The same with experts."""

    joint: bool = False

    def block(self, c: HfConfig, layer: int) -> Tree:
        """One block."""
        feed = self.moe(c) if self.sparse(c, layer) else self.feed_forward(c)
        return {**mix(c, layer, self.joint), "mlp": feed, **self.block_norms(c)}


def mix(c: HfConfig, layer: int, joint: bool) -> Tree:
    """What mixes the tokens of a layer."""
    if is_linear(c, layer):
        return {"linear_attn": delta_network(c, joint)}
    return {"self_attn": gated_attention(c)}


HYBRIDS: dict[str, Decoder] = {
    "qwen3_next": HybridMixture(moe=qwen2_moe, sparse=every_step, rotary_part=0.25, joint=True),
    "qwen3_5_text": HybridDecoder(rotary_part=0.25),
    "qwen3_5_moe_text": HybridMixture(moe=qwen2_moe, rotary_part=0.25),
}

FAMILIES: dict[str, Family] = {name: row.family() for name, row in HYBRIDS.items()}
