"""Encoders in the manner of BERT, and their heads."""

from __future__ import annotations

from ..blocks import plain_attention
from ..hf_values import HfConfig
from ..modules import (
    NOTHING,
    Tree,
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


def bert_attention(c: HfConfig) -> Tree:
    """Queries, keys and values; the output with its norm."""
    width = c.hidden
    return {
        "self": {name: linear(width, width) for name in ("query", "key", "value")},
        "output": {"dense": linear(width, width), "LayerNorm": layer_norm(width)},
    }


def bert_feed_forward(c: HfConfig) -> Tree:
    """The two linear layers and their norm."""
    width, inner = c.hidden, c.size("intermediate_size")
    return {
        "intermediate": {"dense": linear(width, inner)},
        "output": {"dense": linear(inner, width), "LayerNorm": layer_norm(width)},
    }


def bert_layers(c: HfConfig) -> Tree:
    """The encoder's blocks; a decoder may attend to another encoder."""
    crossed = c.flag("is_decoder") and c.flag("add_cross_attention")
    block: Tree = {
        "attention": bert_attention(c),
        **({"crossattention": bert_attention(c)} if crossed else NOTHING),
        **bert_feed_forward(c),
    }
    return {"layer": repeat(c.layers, block)}


def bert_embeddings(c: HfConfig, width: int | None = None) -> Tree:
    """Tokens, positions and segments."""
    width, positions = width or c.hidden, c.size("max_position_embeddings")
    return {
        "position_ids": position_ids(positions),
        "token_type_ids": position_ids(positions),
        "word_embeddings": embedding(c.vocabulary, width),
        "position_embeddings": embedding(positions, width),
        "token_type_embeddings": embedding(c.size("type_vocab_size"), width),
        "LayerNorm": layer_norm(width),
    }


def roberta_embeddings(c: HfConfig) -> Tree:
    """As BERT's, positions last."""
    made = dict(bert_embeddings(c))
    made["position_embeddings"] = made.pop("position_embeddings")
    return made


def bert(c: HfConfig, pooler: bool = True) -> Tree:
    """BERT; with the pooler where the class has one."""
    return {
        "embeddings": bert_embeddings(c),
        "encoder": bert_layers(c),
        **({"pooler": {"dense": linear(c.hidden, c.hidden)}} if pooler else NOTHING),
    }


def roberta(c: HfConfig, pooler: bool = True) -> Tree:
    """RoBERTa."""
    return {**bert(c, pooler), "embeddings": roberta_embeddings(c)}


def electra(c: HfConfig, pooler: bool = False) -> Tree:
    """ELECTRA: an embedding narrower than the model."""
    width = c.size("embedding_size")
    return {
        "embeddings": bert_embeddings(c, width),
        **({"embeddings_project": linear(width, c.hidden)} if width != c.hidden else NOTHING),
        "encoder": bert_layers(c),
    }


def distilbert(c: HfConfig, pooler: bool = False) -> Tree:
    """DistilBERT: no segments."""
    width, positions = c.size("dim"), c.size("max_position_embeddings")
    block: Tree = {
        "attention": plain_attention(width, "q_lin k_lin v_lin out_lin"),
        "sa_layer_norm": layer_norm(width),
        "ffn": {
            "lin1": linear(width, c.size("hidden_dim")),
            "lin2": linear(c.size("hidden_dim"), width),
        },
        "output_layer_norm": layer_norm(width),
    }
    return {
        "embeddings": {
            "position_ids": position_ids(positions),
            "word_embeddings": embedding(c.vocabulary, width),
            "position_embeddings": embedding(positions, width),
            "LayerNorm": layer_norm(width),
        },
        "transformer": {"layer": repeat(c.size("n_layers"), block)},
    }


def mpnet(c: HfConfig, pooler: bool = True) -> Tree:
    """MPNet: relative positions in buckets."""
    width, positions = c.hidden, c.size("max_position_embeddings")
    block: Tree = {
        "attention": {
            "attn": plain_attention(width, "q k v o"),
            "LayerNorm": layer_norm(width),
        },
        **bert_feed_forward(c),
    }
    return {
        "embeddings": {
            "position_ids": position_ids(positions),
            "word_embeddings": embedding(c.vocabulary, width),
            "position_embeddings": embedding(positions, width),
            "LayerNorm": layer_norm(width),
        },
        "encoder": {
            "layer": repeat(c.layers, block),
            "relative_attention_bias": embedding(c.size("relative_attention_num_buckets"), c.heads),
        },
        **({"pooler": {"dense": linear(width, width)}} if pooler else NOTHING),
    }


def albert(c: HfConfig, pooler: bool = True) -> Tree:
    """ALBERT: a narrow embedding, and layers that share their weights."""
    width, inner = c.hidden, c.size("intermediate_size")
    layer = {
        "full_layer_layer_norm": layer_norm(width),
        "attention": {
            **plain_attention(width, "query key value dense"),
            "LayerNorm": layer_norm(width),
        },
        "ffn": linear(width, inner),
        "ffn_output": linear(inner, width),
    }
    group = {"albert_layers": repeat(c.size("inner_group_num"), layer)}
    return {
        "embeddings": bert_embeddings(c, c.size("embedding_size")),
        "encoder": {
            "embedding_hidden_mapping_in": linear(c.size("embedding_size"), width),
            "albert_layer_groups": repeat(c.size("num_hidden_groups"), group),
        },
        **({"pooler": linear(width, width)} if pooler else NOTHING),
    }


def deberta_embeddings(c: HfConfig) -> Tree:
    """Tokens, and what of positions and segments is used."""
    width, positions = c.size("embedding_size", c.hidden), c.size("max_position_embeddings")
    absolute, segments = c.flag("position_biased_input", True), c.size("type_vocab_size")
    return {
        "position_ids": position_ids(positions),
        "word_embeddings": embedding(c.vocabulary, width),
        **({"position_embeddings": embedding(positions, width)} if absolute else NOTHING),
        **({"token_type_embeddings": embedding(segments, width)} if segments else NOTHING),
        **({"embed_proj": linear(width, c.hidden, False)} if width != c.hidden else NOTHING),
        "LayerNorm": layer_norm(c.hidden),
    }


def _relative_rows(c: HfConfig) -> int:
    """Rows of the table of relative positions, half."""
    said = c.get("max_relative_positions", -1)
    return c.size("max_position_embeddings") if said is None or said < 1 else int(said)


def deberta(c: HfConfig, pooler: bool = False) -> Tree:
    """DeBERTa: one matrix for queries, keys and values, and projections of positions."""
    width, kinds = c.hidden, c.get("pos_att_type") or []
    relative = c.flag("relative_attention")
    inside: dict[str, Tree] = {"in_proj": linear(width, 3 * width, False)}
    if relative and "c2p" in kinds:
        inside["pos_proj"] = linear(width, width, False)
    if relative and "p2c" in kinds:
        inside["pos_q_proj"] = linear(width, width)
    if c.flag("talking_head"):
        inside["head_logits_proj"] = linear(c.heads, c.heads, False)
        inside["head_weights_proj"] = linear(c.heads, c.heads, False)
    block: Tree = {
        "attention": {
            "self": {"q_bias": weight(width), "v_bias": weight(width), **inside},
            "output": {"dense": linear(width, width), "LayerNorm": layer_norm(width)},
        },
        **bert_feed_forward(c),
    }
    rows = 2 * _relative_rows(c)
    return {
        "embeddings": deberta_embeddings(c),
        "encoder": {
            "layer": repeat(c.layers, block),
            **({"rel_embeddings": embedding(rows, width)} if relative else NOTHING),
        },
    }


def deberta_v2(c: HfConfig, pooler: bool = False) -> Tree:
    """DeBERTa v2 and v3."""
    width, kinds = c.hidden, c.get("pos_att_type") or []
    relative, shared = c.flag("relative_attention"), c.flag("share_att_key")
    inside = {name: linear(width, width) for name in ("query_proj", "key_proj", "value_proj")}
    if relative and not shared:
        if "c2p" in kinds:
            inside["pos_key_proj"] = linear(width, width)
        if "p2c" in kinds:
            inside["pos_query_proj"] = linear(width, width)
    block: Tree = {
        "attention": {
            "self": inside,
            "output": {"dense": linear(width, width), "LayerNorm": layer_norm(width)},
        },
        **bert_feed_forward(c),
    }
    kernel = c.size("conv_kernel_size", 0)
    convolved: Tree = {
        "conv": {
            "conv": {
                "weight": weight(width, width // c.size("conv_groups", 1), max(kernel, 1)),
                "bias": weight(width),
            },
            "LayerNorm": layer_norm(width),
        }
    }
    normed = relative and "layer_norm" in c.word("norm_rel_ebd", "none")
    buckets = c.get("position_buckets", -1)
    rows = buckets if buckets and buckets > 0 else _relative_rows(c)
    return {
        "embeddings": deberta_embeddings(c),
        "encoder": {
            "layer": repeat(c.layers, block),
            **({"rel_embeddings": embedding(2 * rows, width)} if relative else NOTHING),
            **({"LayerNorm": layer_norm(width)} if normed else NOTHING),
            **(convolved if kernel else NOTHING),
        },
    }


def modernbert(c: HfConfig) -> Tree:
    """ModernBERT: rotary positions, gated MLPs, no bias but where it is asked for."""
    width, inner = c.hidden, c.size("intermediate_size")
    bias, mlp_bias = c.flag("attention_bias"), c.flag("mlp_bias")
    scale = norm(width, c.flag("norm_bias"))

    def block(layer: int) -> Tree:
        return {
            **({"attn_norm": scale} if layer else NOTHING),
            "attn": {"Wqkv": linear(width, 3 * width, bias), "Wo": linear(width, width, bias)},
            "mlp_norm": scale,
            "mlp": {"Wi": linear(width, 2 * inner, mlp_bias), "Wo": linear(inner, width, mlp_bias)},
        }

    every = c.size("global_attn_every_n_layers", 3)
    kinds = c.words("layer_types") or [
        "sliding_attention" if i % every else "full_attention" for i in range(c.layers)
    ]
    return {
        "embeddings": {"tok_embeddings": embedding(c.vocabulary, width), "norm": scale},
        "layers": numbered(block(i) for i in range(c.layers)),
        "final_norm": scale,
        "rotary_emb": rotary(width // c.heads, sorted(set(kinds))),
    }
