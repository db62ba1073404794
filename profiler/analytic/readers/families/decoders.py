"""Decoders in the manner of Llama: what each family does differently is a row of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..blocks import attention, gated_mlp, mlp, rotary_share
from ..hf_values import HfConfig
from ..modules import NOTHING, Tree, buffer, embedding, linear, norm, numbered, rotary, weight
from .family import Family, decoder_family

Mlp = Callable[[HfConfig], Tree]


def said(c: HfConfig, value: bool | str) -> bool:
    """A trait that is fixed, or named by a key of the configuration."""
    return c.flag(value) if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """How one family differs from Llama; a word is the key of the configuration that decides."""

    bias: bool | str = False
    """Biases of queries, keys and values."""
    output_bias: bool | str | None = None
    """Bias of attention's output; as the others where not said."""
    head_norms: bool | str = False
    """Norms of queries and keys, over one head."""
    head_norm_names: str = "q_norm k_norm"
    whole_norms: bool = False
    """Norms of queries and keys, over all heads together."""
    norms: str = "input_layernorm post_attention_layernorm"
    """The norms of a block."""
    norm_bias: bool = False
    mlp: Mlp | None = None
    mlp_bias: bool | str = False
    final_norm: str = "norm"
    head_bias: bool | str = False
    rotary_part: float = 1.0
    rotary_key: str = ""
    """Key that says how many channels turn, where there is one."""
    full_every: int | None = None
    """Sliding attention with frequencies of its own, except in every so many-th layer."""
    scaled_embedding: bool = False
    """Gemma keeps the embedding's scale as a buffer."""
    attention_names: str = "q_proj k_proj v_proj o_proj"
    square_output: bool = False
    """Attention's output is as wide as the model, whatever the heads, and has no bias."""

    def attention(self, c: HfConfig, layer: int = 0) -> Tree:
        """Attention's projections and norms."""
        bias = said(c, self.bias)
        output = bias if self.output_bias is None else said(c, self.output_bias)
        made = dict(attention(c, names=self.attention_names, bias=bias, output_bias=output))
        if self.square_output:
            made["o_proj"] = linear(c.hidden, c.hidden, False)
        if self.whole_norms:
            width = c.head_width
            norms: Tree = {"q_norm": norm(c.heads * width), "k_norm": norm(c.kv_heads * width)}
        elif said(c, self.head_norms):
            norms = {name: norm(c.head_width) for name in self.head_norm_names.split()}
        else:
            norms = NOTHING
        return {**made, **norms}

    def feed_forward(self, c: HfConfig) -> Tree:
        """The MLP."""
        if self.mlp is not None:
            return self.mlp(c)
        return gated_mlp(c.hidden, c.size("intermediate_size"), said(c, self.mlp_bias))

    def block_norms(self, c: HfConfig) -> Tree:
        """The norms of a block."""
        return {name: norm(c.hidden, self.norm_bias) for name in self.norms.split()}

    def block(self, c: HfConfig, layer: int) -> Tree:
        """One block."""
        return {
            "self_attn": self.attention(c, layer),
            "mlp": self.feed_forward(c),
            **self.block_norms(c),
        }

    def body(self, c: HfConfig) -> Tree:
        """The model without a head."""
        scale = {"embed_scale": buffer()} if self.scaled_embedding else {}
        return {
            "embed_tokens": {**embedding(c.vocabulary, c.hidden), **scale},
            "layers": numbered(self.block(c, i) for i in range(c.layers)),
            **({self.final_norm: norm(c.hidden, self.norm_bias)} if self.final_norm else {}),
            "rotary_emb": rotary(self.rotary_width(c), self._rotary_kinds(c)),
        }

    def rotary_width(self, c: HfConfig) -> int:
        """Channels of a head that turn."""
        if self.rotary_key and c.has(self.rotary_key):
            return c.size(self.rotary_key)
        return int(c.head_width * rotary_share(c, self.rotary_part))

    def _rotary_kinds(self, c: HfConfig) -> list[str]:
        if self.full_every is None:
            return [""]
        said = c.words("layer_types")
        every = c.size("sliding_window_pattern", self.full_every)
        usual = [SLIDING if (i + 1) % every else FULL for i in range(c.layers)]
        return sorted(set(said or usual))

    def family(self) -> Family:
        """The classes of the family."""
        return decoder_family(self.body, head_bias=lambda c: said(c, self.head_bias))


FULL, SLIDING = "full_attention", "sliding_attention"
FOUR_NORMS = (
    "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm"
)
AFTER = "post_attention_layernorm post_feedforward_layernorm"


def fused_gate(c: HfConfig) -> Tree:
    """Gate and up in one matrix."""
    inner = c.size("intermediate_size")
    return {
        "gate_up_proj": linear(c.hidden, 2 * inner, False),
        "down_proj": linear(inner, c.hidden, False),
    }


def apertus_mlp(c: HfConfig) -> Tree:
    """Two matrices, and an activation with parameters and constants of its own."""
    learned: Tree = {"alpha_p": weight(1), "alpha_n": weight(1), "beta": buffer(), "eps": buffer()}
    made = mlp(c.hidden, c.size("intermediate_size"), "up_proj down_proj", bias=False)
    return {**made, "act_fn": learned}


def ungated(names: str, bias: bool | str = False) -> Mlp:
    """Two matrices without a gate."""
    return lambda c: mlp(c.hidden, c.size("intermediate_size"), names, said(c, bias))


LLAMA = Decoder(bias="attention_bias", mlp_bias="mlp_bias")

DECODERS: dict[str, Decoder] = {
    "llama": LLAMA,
    "granite": LLAMA,
    "smollm3": LLAMA,
    "helium": Decoder(bias="attention_bias", mlp_bias="mlp_bias", square_output=True),
    "mistral": Decoder(),
    "ministral": Decoder(),
    "ministral3": Decoder(),
    "qwen2": Decoder(bias=True, output_bias=False),
    "qwen3": Decoder(bias="attention_bias", head_norms=True),
    "seed_oss": Decoder(
        bias="attention_bias", output_bias="attention_out_bias", mlp_bias="mlp_bias"
    ),
    "ernie4_5": Decoder(bias="use_bias", mlp_bias="use_bias"),
    "arcee": Decoder(bias="attention_bias", mlp=ungated("up_proj down_proj", "mlp_bias")),
    "gemma": Decoder(bias="attention_bias", scaled_embedding=True),
    "gemma2": Decoder(bias="attention_bias", norms=FOUR_NORMS, scaled_embedding=True),
    "gemma3_text": Decoder(
        bias="attention_bias",
        head_norms=True,
        norms=FOUR_NORMS,
        scaled_embedding=True,
        full_every=6,
    ),
    "olmo": Decoder(bias="attention_bias", norms="", final_norm=""),
    "olmo2": Decoder(bias="attention_bias", whole_norms=True, norms=AFTER),
    "olmo3": Decoder(bias="attention_bias", whole_norms=True, norms=AFTER, full_every=4),
    "exaone4": Decoder(head_norms=True, norms=AFTER),
    "cohere2": Decoder(bias="attention_bias", norms="input_layernorm"),
    "glm": Decoder(bias="attention_bias", output_bias=False, mlp=fused_gate, rotary_part=0.5),
    "glm4": Decoder(
        bias="attention_bias",
        output_bias=False,
        mlp=fused_gate,
        rotary_part=0.5,
        norms="input_layernorm post_attention_layernorm "
        "post_self_attn_layernorm post_mlp_layernorm",
    ),
    "starcoder2": Decoder(bias="use_bias", norm_bias=True, mlp=ungated("c_fc c_proj", "use_bias")),
    "nemotron": Decoder(
        bias="attention_bias",
        norm_bias=True,
        mlp=ungated("up_proj down_proj", "mlp_bias"),
        rotary_part=0.5,
    ),
    "internlm3": Decoder(bias="qkv_bias", output_bias="bias", mlp_bias="bias"),
    "cwm": Decoder(mlp_bias="mlp_bias"),
    "hunyuan_v1_dense": Decoder(
        bias="attention_bias", head_norms=True, head_norm_names="query_layernorm key_layernorm"
    ),
    "vaultgemma": Decoder(
        bias="attention_bias",
        norms="input_layernorm pre_feedforward_layernorm",
        scaled_embedding=True,
    ),
    "nanochat": Decoder(
        bias="attention_bias", norms="", final_norm="", mlp=ungated("fc1 fc2", False)
    ),
    "jais2": Decoder(
        bias="attention_bias", norm_bias=True, mlp=ungated("up_proj down_proj", "mlp_bias")
    ),
    "apertus": Decoder(
        bias="attention_bias",
        head_norms=True,
        mlp=apertus_mlp,
        norms="attention_layernorm feedforward_layernorm",
    ),
    "phi": Decoder(
        bias=True,
        attention_names="q_proj k_proj v_proj dense",
        norms="input_layernorm",
        norm_bias=True,
        mlp=ungated("fc1 fc2", True),
        final_norm="final_layernorm",
        head_bias=True,
        rotary_part=0.5,
    ),
}

FAMILIES: dict[str, Family] = {name: row.family() for name, row in DECODERS.items()}
