"""Mixtures of experts: the router and the stacked experts in place of the MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..blocks import correction, experts, gated_mlp, latent_attention, router
from ..hf_values import HfConfig
from ..modules import (
    NOTHING,
    Tree,
    Weight,
    embedding,
    layer_norm,
    linear,
    norm,
    numbered,
    rotary,
    weight,
)
from .decoders import Decoder, said
from .family import Family, decoder_family

MoeBlock = Callable[[HfConfig], Tree]


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureDecoder(Decoder):
    """A decoder of which some layers have experts."""

    moe: MoeBlock
    sparse: Callable[[HfConfig, int], bool] = lambda c, layer: True
    """Whether a layer has experts."""
    moe_name: str = "mlp"
    moe_last: bool = False
    """Whether the experts come after the norms in the block."""
    latent: bool = False
    """DeepSeek's latent attention."""
    turns_head_dim: bool = False
    """Whether ``head_dim``, where given, is what turns (DeepSeek-V3)."""

    def attention(self, c: HfConfig, layer: int = 0) -> Tree:
        """Attention's projections and norms."""
        if self.latent:
            return latent_attention(c, bias=said(c, self.bias))
        return Decoder.attention(self, c, layer)

    def rotary_width(self, c: HfConfig) -> int:
        """Channels of a head that turn."""
        if self.latent:
            said = c.maybe("head_dim") if self.turns_head_dim else None
            return said or c.size("qk_rope_head_dim")
        return Decoder.rotary_width(self, c)

    def block(self, c: HfConfig, layer: int) -> Tree:
        """One block."""
        has_experts = self.sparse(c, layer)
        feed = {self.moe_name: self.moe(c)} if has_experts else {"mlp": self.feed_forward(c)}
        norms = self.block_norms(c)
        inner = {**norms, **feed} if self.moe_last and has_experts else {**feed, **norms}
        return {"self_attn": self.attention(c, layer), **inner}


def after_first(c: HfConfig, layer: int) -> bool:
    """The first layers are dense (DeepSeek)."""
    kinds = c.words("mlp_layer_types")
    if kinds:
        return kinds[layer] == "sparse"
    return layer >= c.size("first_k_dense_replace", 0)


def after_one(c: HfConfig, layer: int) -> bool:
    """The first layer is dense, unless the layers are listed."""
    kinds = c.words("mlp_layer_types")
    return kinds[layer] == "sparse" if kinds else layer > 0


def every_step(c: HfConfig, layer: int) -> bool:
    """Every so many-th layer has experts, but those that are listed as dense (Qwen)."""
    dense = c.get("mlp_only_layers") or []
    count, step = c.size("num_experts"), c.size("decoder_sparse_step", 1)
    return layer not in dense and count > 0 and (layer + 1) % step == 0


def routed(gate: str, count: str, inner: str = "intermediate_size") -> MoeBlock:
    """Experts behind a router, and nothing beside them.

    Args:
        gate: The router's name.
        count: Key of the number of experts.
        inner: Key of their inner width.
    """

    def made(c: HfConfig) -> Tree:
        return {
            gate: router(c.size(count), c.hidden),
            "experts": experts(c.size(count), c.hidden, c.size(inner)),
        }

    return made


mixtral = routed("gate", "num_local_experts")
qwen3_moe = routed("gate", "num_experts", "moe_intermediate_size")


def qwen2_moe(c: HfConfig) -> Tree:
    """Experts, and one that all tokens go through, behind a gate of its own."""
    return {
        "gate": router(c.size("num_experts"), c.hidden),
        "experts": experts(c.size("num_experts"), c.hidden, c.size("moe_intermediate_size")),
        "shared_expert": gated_mlp(c.hidden, c.size("shared_expert_intermediate_size")),
        "shared_expert_gate": linear(c.hidden, 1, False),
    }


def minimax_m2(c: HfConfig) -> Tree:
    """MiniMax-M2's experts."""
    return {**mixtral(c), **correction(c.size("num_local_experts"))}


def deepseek(balanced: bool) -> MoeBlock:
    """Routed and shared experts; V3 balances them by a bias that is a buffer."""

    def made(c: HfConfig) -> Tree:
        count, inner = c.size("n_routed_experts"), c.size("moe_intermediate_size")
        shared = c.maybe("n_shared_experts")
        return {
            "experts": experts(count, c.hidden, inner),
            "gate": {**router(count, c.hidden), **correction(count, balanced)},
            **({"shared_experts": gated_mlp(c.hidden, inner * shared)} if shared else NOTHING),
        }

    return made


def gpt_oss_experts(c: HfConfig) -> Tree:
    """gpt-oss: experts with biases, their matrices the other way round."""
    count, inner = c.size("num_local_experts"), c.size("intermediate_size")
    return {
        "router": {**router(count, c.hidden), "bias": weight(count)},
        "experts": {
            "gate_up_proj": Weight((count, c.hidden, 2 * inner), "experts"),
            "gate_up_proj_bias": weight(count, 2 * inner),
            "down_proj": Weight((count, inner, c.hidden), "experts"),
            "down_proj_bias": weight(count, c.hidden),
        },
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class GptOss(MixtureDecoder):
    """gpt-oss keeps an attention sink for each head."""

    def attention(self, c: HfConfig, layer: int = 0) -> Tree:
        """Attention's projections and sinks."""
        return {"sinks": weight(c.heads), **MixtureDecoder.attention(self, c, layer)}


def indexer(c: HfConfig) -> Tree:
    """DeepSeek's lightning indexer, which chooses the keys to attend to."""
    heads, width = c.size("index_n_heads"), c.size("index_head_dim")
    return {
        "wq_b": linear(c.size("q_lora_rank"), heads * width, False),
        "wk": linear(c.hidden, width, False),
        "k_norm": layer_norm(width),
        "weights_proj": linear(c.hidden, heads, False),
    }


def has_indexer(c: HfConfig, layer: int) -> bool:
    """Whether a layer chooses keys itself, or takes those of a layer before it (GLM-5)."""
    kinds = c.get("indexer_types") or c.get("index_topk_pattern")
    if kinds:
        return str(kinds[layer]) in ("full", "F")
    every, start = c.size("index_topk_freq", 1) or 1, c.size("index_skip_topk_offset", 2)
    return max(layer - start + 1, 0) % every == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseLatent(MixtureDecoder):
    """Latent attention over the keys that an indexer chooses."""

    def attention(self, c: HfConfig, layer: int = 0) -> Tree:
        """Attention's projections and the indexer."""
        chosen = {"indexer": indexer(c)} if has_indexer(c, layer) else NOTHING
        return {**MixtureDecoder.attention(self, c, layer), **chosen}


def llama4_experts(c: HfConfig) -> Tree:
    """Llama 4: experts, their matrices the other way round, and one for all tokens."""
    count, inner = c.size("num_local_experts"), c.size("intermediate_size")
    return {
        "experts": {
            "gate_up_proj": Weight((count, c.hidden, 2 * inner), "experts"),
            "down_proj": Weight((count, inner, c.hidden), "experts"),
        },
        "router": linear(c.hidden, count, False),
        "shared_expert": gated_mlp(c.hidden, inner),
    }


def llama4_text(c: HfConfig) -> Tree:
    """Llama 4's language model: experts in every so many-th layer."""
    step = c.size("interleave_moe_layer_step")
    listed = c.get("moe_layers")
    sparse = listed if listed else range(step - 1, c.layers, step)
    plain = Decoder(bias="attention_bias")

    def block(layer: int) -> Tree:
        dense = gated_mlp(c.hidden, c.size("intermediate_size_mlp"))
        return {
            "self_attn": plain.attention(c),
            "feed_forward": llama4_experts(c) if layer in sparse else dense,
            **plain.block_norms(c),
        }

    return {
        "embed_tokens": embedding(c.vocabulary, c.hidden),
        "layers": numbered(block(i) for i in range(c.layers)),
        "norm": norm(c.hidden),
        "rotary_emb": rotary(c.head_width),
    }


def dbrx(c: HfConfig) -> Tree:
    """DBRX: sizes under other names, clipped joint projections, flat experts."""
    width, head = c.hidden, c.hidden // c.heads
    inside, feed = c.nested("attn_config", "dbrx"), c.nested("ffn_config", "dbrx")
    joint = width + 2 * inside.size("kv_n_heads", 1) * head
    count, inner = feed.size("moe_num_experts", 4), feed.size("ffn_hidden_size", 3584)
    flat = weight(count * inner, width)
    block: Tree = {
        "norm_attn_norm": {
            "norm_1": norm(width),
            "attn": {"Wqkv": linear(width, joint, False), "out_proj": linear(width, width, False)},
            "norm_2": norm(width),
        },
        "ffn": {
            "router": {"layer": linear(width, count, False)},
            "experts": {"mlp": {"w1": flat, "v1": flat, "w2": flat}},
        },
    }
    return {
        "wte": embedding(c.vocabulary, width),
        "blocks": numbered([block] * c.layers),
        "norm_f": norm(width),
        "rotary_emb": rotary(head),
    }


def ernie_experts(c: HfConfig) -> Tree:
    """ERNIE 4.5: the balancing bias is a parameter."""
    count, inner = c.size("moe_num_experts"), c.size("moe_intermediate_size")
    shared = c.size("moe_num_shared_experts")
    return {
        "gate": {
            **router(count, c.hidden),
            "moe_statics": {"e_score_correction_bias": weight(1, count)},
        },
        "experts": experts(count, c.hidden, inner),
        **(
            {"shared_experts": gated_mlp(c.hidden, inner * shared, c.flag("use_bias"))}
            if shared
            else NOTHING
        ),
    }


def ernie_sparse(c: HfConfig, layer: int) -> bool:
    """Layers between two numbers, every so many-th."""
    last = c.get("moe_layer_end_index", -1)
    end = c.layers - 1 if last is None or last < 0 else last
    regular = (layer + 1) % c.size("moe_layer_interval") == 0
    return regular and c.size("moe_layer_start_index") <= layer <= end


DEEPSEEK_V3 = MixtureDecoder(
    moe=deepseek(balanced=True),
    sparse=after_first,
    latent=True,
    turns_head_dim=True,
    bias="attention_bias",
)

MIXTURES: dict[str, Decoder] = {
    "mixtral": MixtureDecoder(moe=mixtral),
    "qwen2_moe": MixtureDecoder(
        moe=qwen2_moe, sparse=every_step, bias="qkv_bias", output_bias=False
    ),
    "qwen3_moe": MixtureDecoder(
        moe=qwen3_moe, sparse=every_step, bias="attention_bias", head_norms=True
    ),
    "olmoe": MixtureDecoder(
        moe=routed("gate", "num_experts"), bias="attention_bias", whole_norms=True
    ),
    "phimoe": MixtureDecoder(
        moe=routed("router", "num_local_experts"),
        bias="attention_bias",
        norm_bias=True,
        head_bias="lm_head_bias",
    ),
    "granitemoe": MixtureDecoder(
        moe=routed("router", "num_local_experts"),
        bias="attention_bias",
        moe_name="block_sparse_moe",
        moe_last=True,
    ),
    "gpt_oss": GptOss(moe=gpt_oss_experts, bias="attention_bias"),
    "minimax_m2": MixtureDecoder(moe=minimax_m2, whole_norms=True, rotary_key="rotary_dim"),
    "deepseek_v2": MixtureDecoder(
        moe=deepseek(balanced=False), sparse=after_first, latent=True, bias="attention_bias"
    ),
    "deepseek_v3": DEEPSEEK_V3,
    "glm4_moe": MixtureDecoder(
        moe=deepseek(balanced=True),
        sparse=after_first,
        bias="attention_bias",
        output_bias=False,
        head_norms="use_qk_norm",
        rotary_part=0.5,
    ),
    "glm4_moe_lite": replace(DEEPSEEK_V3, sparse=after_one),
    "dots1": MixtureDecoder(
        moe=deepseek(balanced=True), sparse=after_first, bias="attention_bias", head_norms=True
    ),
    "deepseek_v32": SparseLatent(
        moe=deepseek(balanced=True), sparse=after_first, latent=True, bias="attention_bias"
    ),
    "glm_moe_dsa": SparseLatent(
        moe=deepseek(balanced=True), sparse=after_first, latent=True, bias="attention_bias"
    ),
    "solar_open": MixtureDecoder(
        moe=deepseek(balanced=True), bias="attention_bias", output_bias=False
    ),
    "ernie4_5_moe": MixtureDecoder(
        moe=ernie_experts,
        sparse=ernie_sparse,
        bias="use_bias",
        mlp_bias="use_bias",
        head_bias="use_bias",
    ),
}

FAMILIES: dict[str, Family] = {
    **{name: row.family() for name, row in MIXTURES.items()},
    "llama4_text": decoder_family(llama4_text),
    "dbrx": decoder_family(dbrx, prefix="transformer"),
}
