"""Decoders that are not made like Llama: GPT-2 and its heirs, OPT, BLOOM, Falcon, MPT, Phi-3."""

from __future__ import annotations

from ..blocks import attention, gated_mlp, mlp, plain_attention, rotary_of
from ..hf_values import HfConfig
from ..modules import (
    NOTHING,
    Tree,
    buffer,
    conv1d,
    embedding,
    layer_norm,
    linear,
    norm,
    repeat,
)
from .family import Family, decoder_family, language_head


def gpt2(c: HfConfig) -> Tree:
    """GPT-2, with cross-attention where asked for."""
    width, inner = c.hidden, c.maybe("n_inner") or 4 * c.hidden
    joint = {"c_attn": conv1d(width, 3 * width), "c_proj": conv1d(width, width)}
    cross = {
        "crossattention": {
            "c_attn": conv1d(width, 2 * width),
            "q_attn": conv1d(width, width),
            "c_proj": conv1d(width, width),
        },
        "ln_cross_attn": layer_norm(width),
    }
    block: Tree = {
        "ln_1": layer_norm(width),
        "attn": joint,
        "ln_2": layer_norm(width),
        **(cross if c.flag("add_cross_attention") else NOTHING),
        "mlp": {"c_fc": conv1d(width, inner), "c_proj": conv1d(inner, width)},
    }
    return {
        "wte": embedding(c.vocabulary, width),
        "wpe": embedding(c.size("n_positions"), width),
        "h": repeat(c.layers, block),
        "ln_f": layer_norm(width),
    }


def gpt_bigcode(c: HfConfig) -> Tree:
    """GPT-2 with one key and value head (StarCoder, SantaCoder)."""
    width, inner = c.hidden, c.maybe("n_inner") or 4 * c.hidden
    kv = 2 * width // c.heads if c.flag("multi_query", True) else 2 * width
    positions = c.size("n_positions")
    block: Tree = {
        "ln_1": layer_norm(width),
        "attn": {"c_attn": linear(width, width + kv), "c_proj": linear(width, width)},
        "ln_2": layer_norm(width),
        "mlp": mlp(width, inner, "c_fc c_proj"),
    }
    return {
        "bias": buffer(positions, positions, item_bytes=1),
        "wte": embedding(c.vocabulary, width),
        "wpe": embedding(positions, width),
        "h": repeat(c.layers, block),
        "ln_f": layer_norm(width),
    }


def gpt_neo(c: HfConfig) -> Tree:
    """GPT-Neo: its causal masks are buffers."""
    width, inner = c.hidden, c.maybe("intermediate_size") or 4 * c.hidden
    positions = c.size("max_position_embeddings")
    block: Tree = {
        "ln_1": layer_norm(width),
        "attn": {
            "attention": {
                "bias": buffer(1, 1, positions, positions, item_bytes=1),
                **{name: linear(width, width, False) for name in ("k_proj", "v_proj", "q_proj")},
                "out_proj": linear(width, width),
            }
        },
        "ln_2": layer_norm(width),
        "mlp": mlp(width, inner, "c_fc c_proj"),
    }
    return {
        "wte": embedding(c.vocabulary, width),
        "wpe": embedding(positions, width),
        "h": repeat(c.layers, block),
        "ln_f": layer_norm(width),
    }


def gptj(c: HfConfig) -> Tree:
    """GPT-J: no learned positions, sines as a buffer."""
    width, inner = c.hidden, c.maybe("n_inner") or 4 * c.hidden
    block: Tree = {
        "ln_1": layer_norm(width),
        "attn": plain_attention(width, "k_proj v_proj q_proj out_proj", bias=False),
        "mlp": mlp(width, inner, "fc_in fc_out"),
    }
    return _gptj_like(c, block)


def codegen(c: HfConfig) -> Tree:
    """CodeGen: GPT-J with one matrix for queries, keys and values."""
    width, inner = c.hidden, c.maybe("n_inner") or 4 * c.hidden
    block: Tree = {
        "ln_1": layer_norm(width),
        "attn": {
            "out_proj": linear(width, width, False),
            "qkv_proj": linear(width, 3 * width, False),
        },
        "mlp": mlp(width, inner, "fc_in fc_out"),
    }
    return _gptj_like(c, block)


def _gptj_like(c: HfConfig, block: Tree) -> Tree:
    turned = c.maybe("rotary_dim") or c.hidden
    return {
        "wte": embedding(c.vocabulary, c.hidden),
        "h": repeat(c.layers, block),
        "ln_f": layer_norm(c.hidden),
        "rotary_emb": {"embed_positions": buffer(c.size("n_positions"), turned)},
    }


def gpt_neox(c: HfConfig) -> Tree:
    """GPT-NeoX (Pythia)."""
    width, bias = c.hidden, c.flag("attention_bias", True)
    block: Tree = {
        "input_layernorm": layer_norm(width),
        "post_attention_layernorm": layer_norm(width),
        "attention": {
            "query_key_value": linear(width, 3 * width, bias),
            "dense": linear(width, width, bias),
        },
        "mlp": mlp(width, c.size("intermediate_size"), "dense_h_to_4h dense_4h_to_h"),
    }
    return {
        "embed_in": embedding(c.vocabulary, width),
        "layers": repeat(c.layers, block),
        "final_layer_norm": layer_norm(width),
        **rotary_of(c, share=0.25, width=width // c.heads),
    }


def opt(c: HfConfig) -> Tree:
    """OPT: two extra rows of positions; a narrower embedding in the 350M model."""
    width, inner = c.hidden, c.size("ffn_dim")
    narrow = c.maybe("word_embed_proj_dim") or width
    bias, scaled = c.flag("enable_bias", True), c.flag("layer_norm_elementwise_affine", True)
    scale: Tree = layer_norm(width) if scaled else NOTHING
    block: Tree = {
        "self_attn": plain_attention(width, "k_proj v_proj q_proj out_proj", bias),
        "self_attn_layer_norm": scale,
        **mlp(width, inner, "fc1 fc2", bias),
        "final_layer_norm": scale,
    }
    last = c.flag("do_layer_norm_before", True) and not c.flag("_remove_final_layer_norm")
    projections = {
        "project_out": linear(width, narrow, False),
        "project_in": linear(narrow, width, False),
    }
    return {
        "decoder": {
            "embed_tokens": embedding(c.vocabulary, narrow),
            "embed_positions": embedding(c.size("max_position_embeddings") + 2, width),
            **(projections if narrow != width else NOTHING),
            "final_layer_norm": scale if last else NOTHING,
            "layers": repeat(c.layers, block),
        }
    }


def bloom(c: HfConfig) -> Tree:
    """BLOOM: ALiBi, and a norm after the embedding."""
    width = c.maybe("n_embed") or c.hidden
    block: Tree = {
        "input_layernorm": layer_norm(width),
        "self_attention": {
            "query_key_value": linear(width, 3 * width),
            "dense": linear(width, width),
        },
        "post_attention_layernorm": layer_norm(width),
        "mlp": mlp(width, 4 * width, "dense_h_to_4h dense_4h_to_h"),
    }
    return {
        "word_embeddings": embedding(c.vocabulary, width),
        "word_embeddings_layernorm": layer_norm(width),
        "h": repeat(c.layers, block),
        "ln_f": layer_norm(width),
    }


def falcon(c: HfConfig) -> Tree:
    """Falcon: one key and value head, or groups of them in the new architecture."""
    width, heads = c.hidden, c.heads
    bias, head = c.flag("bias"), c.hidden // c.heads
    new, parallel = c.flag("new_decoder_architecture"), c.flag("parallel_attn", True)
    if new:
        groups = c.maybe("num_kv_heads") or heads
        joint = (heads + 2 * groups) * head
    else:
        joint = width + 2 * head if c.flag("multi_query", True) else 3 * width
    two = new and c.maybe("num_ln_in_parallel_attn") in (None, 2)
    norms: Tree = {"ln_attn": layer_norm(width), "ln_mlp": layer_norm(width)}
    if not two:
        norms = {
            **(NOTHING if parallel else {"post_attention_layernorm": layer_norm(width)}),
            "input_layernorm": layer_norm(width),
        }
    block: Tree = {
        "self_attention": {
            "query_key_value": linear(width, joint, bias),
            "dense": linear(width, width, bias),
        },
        "mlp": mlp(
            width,
            c.maybe("ffn_hidden_size") or 4 * width,
            "dense_h_to_4h dense_4h_to_h",
            bias,
        ),
        **norms,
    }
    return {
        "word_embeddings": embedding(c.vocabulary, width),
        "h": repeat(c.layers, block),
        "ln_f": layer_norm(width),
        **rotary_of(c, width=head),
    }


def mpt(c: HfConfig) -> Tree:
    """MPT: ALiBi, no bias anywhere; transformers widens by four whatever ``expansion_ratio`` is."""
    width = c.hidden
    block: Tree = {
        "norm_1": norm(width),
        "attn": {"Wqkv": linear(width, 3 * width, False), "out_proj": linear(width, width, False)},
        "norm_2": norm(width),
        "ffn": mlp(width, 4 * width, "up_proj down_proj", False),
    }
    return {
        "wte": embedding(c.vocabulary, width),
        "blocks": repeat(c.layers, block),
        "norm_f": norm(width),
    }


def stablelm(c: HfConfig) -> Tree:
    """StableLM: layer norms, a quarter of the channels turned."""
    width, head = c.hidden, c.hidden // c.heads
    per_head = c.flag("qk_layernorm")
    block: Tree = {
        "self_attn": {
            **attention(c, bias=c.flag("use_qkv_bias"), output_bias=False, head_width=head),
            **(
                {
                    "q_layernorm": {"norms": repeat(c.heads, norm(head))},
                    "k_layernorm": {"norms": repeat(c.kv_heads, norm(head))},
                }
                if per_head
                else NOTHING
            ),
        },
        "mlp": gated_mlp(width, c.size("intermediate_size")),
        "input_layernorm": layer_norm(width),
        **(
            NOTHING
            if c.flag("use_parallel_residual")
            else {"post_attention_layernorm": layer_norm(width)}
        ),
    }
    return {
        "embed_tokens": embedding(c.vocabulary, width),
        "layers": repeat(c.layers, block),
        "norm": layer_norm(width),
        **rotary_of(c, share=0.25),
    }


def phi3(c: HfConfig) -> Tree:
    """Phi-3 and Phi-4: joint matrices for queries, keys and values, and for gate and up."""
    width, inner = c.hidden, c.size("intermediate_size")
    head = c.head_width
    joint = (c.heads + 2 * c.kv_heads) * head
    block: Tree = {
        "self_attn": {
            "o_proj": linear(c.heads * head, width, False),
            "qkv_proj": linear(width, joint, False),
        },
        "mlp": {
            "gate_up_proj": linear(width, 2 * inner, False),
            "down_proj": linear(inner, width, False),
        },
        "input_layernorm": norm(width),
        "post_attention_layernorm": norm(width),
    }
    return {
        "embed_tokens": embedding(c.vocabulary, width),
        "layers": repeat(c.layers, block),
        "norm": norm(width),
        **rotary_of(c),
    }


def persimmon(c: HfConfig) -> Tree:
    """Persimmon: layer norms over queries and keys, half of the channels turned."""
    width, head = c.hidden, c.hidden // c.heads
    norms = {"q_layernorm": layer_norm(head), "k_layernorm": layer_norm(head)}
    block: Tree = {
        "self_attn": {
            "query_key_value": linear(width, 3 * width),
            "dense": linear(width, width),
            **(norms if c.flag("qk_layernorm", True) else NOTHING),
        },
        "mlp": mlp(width, c.size("intermediate_size"), "dense_h_to_4h dense_4h_to_h"),
        "input_layernorm": layer_norm(width),
        "post_attention_layernorm": layer_norm(width),
    }
    return {
        "embed_tokens": embedding(c.vocabulary, width),
        "layers": repeat(c.layers, block),
        "final_layernorm": layer_norm(width),
        **rotary_of(c, share=0.5),
    }


def cohere(c: HfConfig) -> Tree:
    """Command R: one norm a block; norms of queries and keys have a scale for each head."""
    head = c.head_width
    norms = {"q_norm": embedding(c.heads, head), "k_norm": embedding(c.kv_heads, head)}
    block: Tree = {
        "self_attn": {
            **attention(c, bias=c.flag("attention_bias")),
            **(norms if c.flag("use_qk_norm") else NOTHING),
        },
        "mlp": gated_mlp(c.hidden, c.size("intermediate_size")),
        "input_layernorm": norm(c.hidden),
    }
    return {
        "embed_tokens": embedding(c.vocabulary, c.hidden),
        "layers": repeat(c.layers, block),
        "norm": norm(c.hidden),
        **rotary_of(c),
    }


def biased_head(c: HfConfig) -> Tree:
    """A head with a bias; the matrix may still be tied."""
    return language_head(c, bias=True)


def opt_head(c: HfConfig) -> Tree:
    """As narrow as the embedding."""
    return language_head(c, width=c.maybe("word_embed_proj_dim") or c.hidden)


FAMILIES: dict[str, Family] = {
    "gpt2": decoder_family(gpt2, prefix="transformer", ending="LMHeadModel"),
    "gpt_bigcode": decoder_family(gpt_bigcode, prefix="transformer"),
    "gpt_neo": decoder_family(gpt_neo, prefix="transformer"),
    "gptj": decoder_family(gptj, prefix="transformer", head=biased_head),
    "codegen": decoder_family(codegen, prefix="transformer", head=biased_head),
    "gpt_neox": decoder_family(gpt_neox, prefix="gpt_neox"),
    "opt": decoder_family(opt, head=opt_head),
    "bloom": decoder_family(bloom, prefix="transformer"),
    "falcon": decoder_family(falcon, prefix="transformer"),
    "mpt": decoder_family(mpt, prefix="transformer"),
    "stablelm": decoder_family(stablelm),
    "phi3": decoder_family(phi3),
    "persimmon": decoder_family(persimmon),
    "cohere": decoder_family(cohere),
}
