"""Dense decoder transformers by their sizes, and their parameters in order."""

# ruff: noqa: RUF009 (setting() makes a dataclass field)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .dtypes import QUANTISED, WeightDtype, quantisation_storages, weight_bytes
from .inventory import TensorBlock, TensorInventory, TensorSpec
from .mapping import check, setting

Family = Literal[
    "nanogpt",
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "bert",
    "vit",
    "litgpt",
    "torchtune",
    "cs336",
]
"""Whose code runs: ``nanogpt`` is a plain PyTorch GPT, ``litgpt``, ``torchtune`` and ``cs336`` are
those libraries' own transformers, the others Hugging Face's models."""

ENCODERS: frozenset[str] = frozenset({"bert", "vit"})
"""Families whose activations are known by sizes, but whose tensors must be given."""

Activation = Literal["gelu", "gelu_tanh", "gelu_new", "silu", "relu"]

GPT_FAMILIES: frozenset[str] = frozenset({"nanogpt", "gpt2", "bert", "vit"})
"""Layer norm, learned positions, one matrix for queries, keys and values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderArchitecture:
    """A dense decoder transformer: what its parameters and activations depend on."""

    family: Family = setting("Whose code runs.")
    layers: int = setting("Number of blocks.", minimum=1)
    hidden: int = setting("Width of the residual stream.", minimum=1)
    heads: int = setting("Attention heads.", minimum=1)
    kv_heads: int | None = setting(
        "Key and value heads (grouped-query attention); null: as many as heads.", None, minimum=1
    )
    head_dim: int | None = setting("Width of a head; null: hidden / heads.", None, minimum=1)
    intermediate: int = setting("Width inside the MLP.", minimum=1)
    vocabulary: int = setting("Number of tokens.", minimum=1)
    positions: int = setting("Longest sequence (learned positions have as many rows).", minimum=1)
    activation: Activation = setting("Non-linearity of the MLP.", "gelu")
    tied: bool = setting("Whether the head is the token embedding.", True)
    attention_bias: bool = setting("Biases of the query, key and value projections.", False)
    output_bias: bool = setting("Bias of attention's output projection.", False)
    mlp_bias: bool = setting("Biases of the MLP.", False)
    norm_bias: bool = setting("Biases of the layer norms.", False)
    residual_dropout: float = setting(
        "Dropout on both residual branches.", 0.0, minimum=0, below=1.0000001
    )
    embedding_dropout: float = setting("Dropout after the embeddings.", 0.0, minimum=0)
    attention_dropout: float = setting("Dropout on attention weights.", 0.0, minimum=0)
    norm: Literal["layer", "rms"] | None = setting("Norms; null: as the family has.", None)
    gated: bool | None = setting(
        "Whether the MLP has a gate beside its input; null: as the family has.", None
    )
    parallel_residual: Literal["none", "one norm", "two norms"] = setting(
        "Whether attention and MLP read the same stream, normed once or each for itself.", "none"
    )
    post_norms: bool = setting("Whether what is added to the stream is normed too.", False)
    experts: int = setting("Experts of the MLP; 0: one MLP for every token.", 0, minimum=0)
    patch_values: int = setting("Numbers in one patch of an image (ViT).", 768, minimum=1)
    active_experts: int = setting("Experts that see one token.", 0, minimum=0)

    def __post_init__(self) -> None:
        check(self)
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(
                f"DecoderArchitecture.heads={self.heads}: must divide hidden={self.hidden} "
                "where head_dim is not given"
            )
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(
                f"DecoderArchitecture.kv_heads={self.kv_heads}: must divide heads={self.heads}"
            )

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all key heads together."""
        return (self.kv_heads or self.heads) * self.head_width

    @property
    def is_gpt(self) -> bool:
        """Whether the blocks are GPT-2's."""
        return self.family in GPT_FAMILIES

    @property
    def layer_norms(self) -> bool:
        """Whether norms are layer norms, not RMS norms."""
        return self.is_gpt if self.norm is None else self.norm == "layer"

    @property
    def has_gate(self) -> bool:
        """Whether the MLP multiplies its input by an opened gate."""
        return not self.is_gpt if self.gated is None else self.gated


@dataclass(frozen=True, slots=True)
class _Weights:
    """Makes the tensors of one kind of model: linear layers may be quantised, the rest not."""

    dtype: WeightDtype
    double_quantization: bool
    optimizer: int

    @property
    def plain_dtype(self) -> Literal["float32", "bfloat16", "float16"]:
        """What the tensors that are not quantised lie in: 16 bit beside quantised weights."""
        if self.dtype == "int8":
            return "float16"
        return "bfloat16" if self.dtype in QUANTISED else self.dtype  # type: ignore[return-value]

    def plain(self, *shape: int) -> TensorSpec:
        trainable = self.dtype not in QUANTISED
        return TensorSpec(
            shape=shape, dtype=self.plain_dtype, trainable=trainable, optimizer=self.optimizer
        )

    def linear(self, rows: int, columns: int, bias: bool) -> list[TensorSpec]:
        """A weight of a linear layer and its bias. Conv1D's transposed one has the same bytes."""
        return [self._matrix(rows, columns), *([self.plain(rows)] if bias else [])]

    def _matrix(self, rows: int, columns: int) -> TensorSpec:
        if self.dtype not in QUANTISED:
            return self.plain(rows, columns)
        constants = quantisation_storages(
            rows, columns, self.dtype, double_quantization=self.double_quantization
        )
        held = weight_bytes(rows * columns, self.dtype) + sum(constants.values())
        return TensorSpec(
            shape=(rows, columns),
            dtype="int8" if self.dtype == "int8" else "uint8",
            trainable=False,
            optimizer=None,
            storage_bytes=held,
        )


@lru_cache(maxsize=64)
def inventory_of(
    arch: DecoderArchitecture,
    dtype: WeightDtype = "float32",
    *,
    double_quantization: bool = False,
    optimizer: int = 0,
) -> TensorInventory:
    """Every parameter of the architecture, in the order of the model.

    Quantised types quantise the blocks' linear layers, as bitsandbytes does in transformers; the
    embeddings, norms, biases and the head stay in 16 bit, and nothing is trainable.
    """
    make = _Weights(dtype, double_quantization, optimizer)
    block = _gpt_block(arch, make) if arch.is_gpt else _llama_block(arch, make)
    before = [make.plain(arch.vocabulary, arch.hidden)]
    if arch.is_gpt:
        before.append(make.plain(arch.positions, arch.hidden))
    after = _norm(arch, make)
    if not arch.tied:
        after.append(make.plain(arch.vocabulary, arch.hidden))
    return TensorInventory(
        blocks=(
            TensorBlock(tensors=tuple(before)),
            TensorBlock(tensors=tuple(block), repeat=arch.layers),
            TensorBlock(tensors=tuple(after)),
        ),
        buffers=_buffers(arch),
        tied_numel=arch.vocabulary * arch.hidden if arch.tied else 0,
        buffer_numel=sum(_buffers(arch)) // 4,
    )


def _norm(arch: DecoderArchitecture, make: _Weights) -> list[TensorSpec]:
    return [make.plain(arch.hidden) for _ in range(2 if arch.norm_bias else 1)]


def _mlp(arch: DecoderArchitecture, make: _Weights) -> list[TensorSpec]:
    inward = 2 if arch.has_gate else 1
    one = [
        *make.linear(arch.intermediate, arch.hidden, arch.mlp_bias) * inward,
        *make.linear(arch.hidden, arch.intermediate, arch.mlp_bias),
    ]
    if not arch.experts:
        return one
    return [make.plain(arch.experts, arch.hidden), *one * arch.experts]


def _gpt_block(arch: DecoderArchitecture, make: _Weights) -> list[TensorSpec]:
    width = arch.query_width
    return [
        *_norm(arch, make),
        *make.linear(width + 2 * arch.kv_width, arch.hidden, arch.attention_bias),
        *make.linear(arch.hidden, width, arch.output_bias),
        *_norm(arch, make),
        *make.linear(arch.intermediate, arch.hidden, arch.mlp_bias),
        *make.linear(arch.hidden, arch.intermediate, arch.mlp_bias),
    ]


def _llama_block(arch: DecoderArchitecture, make: _Weights) -> list[TensorSpec]:
    head_norms = [make.plain(arch.head_width)] * 2 if arch.family == "qwen3" else []
    return [
        *make.linear(arch.query_width, arch.hidden, arch.attention_bias),
        *make.linear(arch.kv_width, arch.hidden, arch.attention_bias),
        *make.linear(arch.kv_width, arch.hidden, arch.attention_bias),
        *make.linear(arch.hidden, arch.query_width, arch.output_bias),
        *head_norms,
        *_mlp(arch, make),
        *_norm(arch, make) * _norms(arch),
    ]


def _norms(arch: DecoderArchitecture) -> int:
    """Norms of a block."""
    return 1 if arch.parallel_residual == "one norm" else 4 if arch.post_norms else 2


def _buffers(arch: DecoderArchitecture) -> tuple[int, ...]:
    """Rotary frequencies: two copies of one float32 for two channels (transformers 5)."""
    return () if arch.is_gpt else (arch.head_width // 2 * 4,) * 2


_HF_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}


HF_DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma")
"""The ``model_type`` of each Hugging Face decoder that :func:`from_hf_config` reads."""


def from_hf_config(config: Mapping[str, object]) -> DecoderArchitecture:
    """The architecture that a Hugging Face ``config.json`` describes.

    Defaults of absent keys are those of the configuration classes of transformers 5.

    Raises:
        ValueError: The ``model_type`` is not one of the dense decoders known here, a key that
            decides sizes is missing or has a value that is not understood.
    """
    model_type = config.get("model_type")
    if model_type == "gpt2":
        return _from_gpt2(config)
    if model_type in ("llama", "mistral", "qwen2", "qwen3", "gemma"):
        return _from_llama(model_type, config)
    raise ValueError(
        f"model_type={model_type!r}: not a decoder whose activations are modelled; modelled are "
        f"{', '.join(HF_DECODERS)}"
    )


def _number(config: Mapping[str, object], *names: str, default: object = None) -> int:
    """The first of several keys that is given."""
    for name in names:
        if config.get(name) is not None:
            value = config[name]
            break
    else:
        value = default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{names[0]}={value!r}: must be a whole number")
    return value


def _share(config: Mapping[str, object], name: str, default: float) -> float:
    value = config.get(name, default)
    if not isinstance(value, int | float):
        raise ValueError(f"{name}={value!r}: must be a number between 0 and 1")
    return float(value)


def _activation(value: object) -> Activation:
    if value not in _HF_ACTIVATIONS:
        known = ", ".join(_HF_ACTIVATIONS)
        raise ValueError(f"activation {value!r}: not known here; known are {known}")
    return _HF_ACTIVATIONS[str(value)]


def _from_gpt2(config: Mapping[str, object]) -> DecoderArchitecture:
    for name in ("add_cross_attention", "reorder_and_upcast_attn"):
        if config.get(name):
            raise ValueError(f"{name}=true: not modelled for model_type='gpt2'")
    hidden = _number(config, "n_embd", "hidden_size", default=768)
    return DecoderArchitecture(
        family="gpt2",
        layers=_number(config, "n_layer", "num_hidden_layers", default=12),
        hidden=hidden,
        heads=_number(config, "n_head", "num_attention_heads", default=12),
        intermediate=_number(config, "n_inner", default=4 * hidden),
        vocabulary=_number(config, "vocab_size", default=50257),
        positions=_number(config, "n_positions", "max_position_embeddings", default=1024),
        activation=_activation(config.get("activation_function", "gelu_new")),
        tied=bool(config.get("tie_word_embeddings", True)),
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        residual_dropout=_share(config, "resid_pdrop", 0.1),
        embedding_dropout=_share(config, "embd_pdrop", 0.1),
        attention_dropout=_share(config, "attn_pdrop", 0.1),
    )


_LLAMA_POSITIONS: Mapping[str, int] = {
    "llama": 2048,
    "mistral": 4096 * 32,
    "qwen2": 32768,
    "qwen3": 32768,
    "gemma": 8192,
}


def _from_llama(
    family: Literal["llama", "mistral", "qwen2", "qwen3", "gemma"], config: Mapping[str, object]
) -> DecoderArchitecture:
    heads = _number(config, "num_attention_heads")
    width = {"qwen3": 128, "gemma": 256}.get(family, 0)
    head_dim = _number(config, "head_dim", default=width) or None
    kv_default = {"llama": heads, "mistral": 8, "qwen2": 32, "qwen3": 32, "gemma": 16}[family]
    bias = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3", "gemma")
    gemma = family == "gemma"
    return DecoderArchitecture(
        family=family,
        layers=_number(config, "num_hidden_layers"),
        hidden=_number(config, "hidden_size"),
        heads=heads,
        kv_heads=_number(config, "num_key_value_heads", default=kv_default),
        head_dim=head_dim,
        intermediate=_number(config, "intermediate_size"),
        vocabulary=_number(config, "vocab_size"),
        positions=_number(config, "max_position_embeddings", default=_LLAMA_POSITIONS[family]),
        activation=_activation(config.get("hidden_act", "gelu_pytorch_tanh" if gemma else "silu")),
        tied=bool(config.get("tie_word_embeddings", gemma)),
        attention_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)) and family == "llama",
        attention_dropout=_share(config, "attention_dropout", 0.0),
    )
