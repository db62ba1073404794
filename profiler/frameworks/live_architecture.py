"""Which dense decoder a live model is, if it is one: from its config, checked on its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn
from vramscope.profiler.analytic import (
    DecoderArchitecture,
    TensorInventory,
    from_hf_config,
    inventory_of,
)

_NANOGPT_NAMES = ("n_layer", "n_head", "n_embd", "vocab_size", "block_size")
_HF_HEADS = {
    "GPT2LMHeadModel": "gpt2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def read_architecture(
    models: Sequence[nn.Module], tensors: TensorInventory
) -> tuple[DecoderArchitecture | None, list[str]]:
    """The architecture of a single known decoder, or ``None`` with the reasons.

    What a config says is believed only if its tensors are those of the live model, shape by
    shape.
    """
    if len(models) != 1:
        return None, [f"{len(models)} models are trained; activations are modelled for one"]
    model = models[0]
    try:
        architecture = _from_config(model)
    except ValueError as error:
        return None, [f"{type(model).__name__}: {error}"]
    if architecture is None:
        return None, [
            f"{type(model).__name__} is not a decoder known to the formulas (Hugging Face "
            f"{', '.join(_HF_HEADS)}, or a GPT whose config has {', '.join(_NANOGPT_NAMES)})"
        ]
    expected, live = _shapes(inventory_of(architecture)), _shapes(tensors)
    if expected != live:
        return None, [
            f"{type(model).__name__}: its config describes {_total(expected):,} parameters, the "
            f"live model holds {_total(live):,} on this device "
            f"({_first_difference(expected, live)})"
        ]
    return architecture, []


def _from_config(model: nn.Module) -> DecoderArchitecture | None:
    config: Any = getattr(model, "config", None)
    name = type(model).__name__
    model_type = getattr(config, "model_type", None)
    if _HF_HEADS.get(name) == model_type and hasattr(config, "to_dict"):
        return from_hf_config({**config.to_dict(), "auto_map": None})
    if model_type is None and all(hasattr(config, n) for n in _NANOGPT_NAMES):
        return _from_nanogpt(model, config)
    return None


def _from_nanogpt(model: nn.Module, config: Any) -> DecoderArchitecture:
    """A GPT in the manner of nanoGPT, with what its config does not say read off its modules."""
    bias = bool(getattr(config, "bias", True))
    dropout = float(getattr(config, "dropout", 0.0) or 0.0)
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    tied = any(m.weight is e.weight for m in linears for e in embeddings)
    return DecoderArchitecture(
        family="nanogpt",
        layers=int(config.n_layer),
        hidden=int(config.n_embd),
        heads=int(config.n_head),
        intermediate=_intermediate(linears, config),
        vocabulary=int(config.vocab_size),
        positions=int(config.block_size),
        activation=_activation(model),
        tied=tied,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        norm_bias=norms[0].bias is not None if norms else bias,
        residual_dropout=dropout,
        embedding_dropout=_embedding_dropout(model, dropout),
        attention_dropout=dropout,
    )


def _intermediate(linears: Sequence[nn.Linear], config: Any) -> int:
    """Width inside the MLP: the layers that lead from another width to the model's."""
    widths = [m.in_features for m in linears if m.out_features == config.n_embd]
    others = [w for w in widths if w != config.n_embd]
    return max(others) if others else 4 * int(config.n_embd)


def _activation(model: nn.Module) -> Literal["gelu", "gelu_tanh", "gelu_new", "silu", "relu"]:
    for module in model.modules():
        name = type(module).__name__
        if isinstance(module, nn.GELU):
            return "gelu" if module.approximate == "none" else "gelu_tanh"
        if name in ("NewGELU", "NewGELUActivation"):
            return "gelu_new"
        if isinstance(module, nn.ReLU):
            return "relu"
        if isinstance(module, nn.SiLU):
            return "silu"
    return "gelu"


def _embedding_dropout(model: nn.Module, dropout: float) -> float:
    """After the embeddings nanoGPT drops too; a model without a dropout outside blocks does not."""
    blocks = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    inside = {id(x) for block in blocks for x in block.modules()}
    outside = [m for m in model.modules() if isinstance(m, nn.Dropout) and id(m) not in inside]
    return outside[0].p if outside else (dropout if not blocks else 0.0)


def _shapes(tensors: TensorInventory) -> Counter[tuple[int, ...]]:
    """How often each shape occurs; a transposed matrix (Conv1D) is the same."""
    shapes: Counter[tuple[int, ...]] = Counter()
    for tensor, count in tensors.counted():
        if tensor.storage_bytes != 0:
            shapes[tuple(sorted(tensor.shape))] += count
    return shapes


def _total(shapes: Mapping[tuple[int, ...], int]) -> int:
    total = 0
    for shape, count in shapes.items():
        numel = 1
        for n in shape:
            numel *= n
        total += numel * count
    return total


def _first_difference(expected: Counter[tuple[int, ...]], live: Counter[tuple[int, ...]]) -> str:
    for shape in {**expected, **live}:
        if expected[shape] != live[shape]:
            return f"shape {shape}: {expected[shape]} expected, {live[shape]} found"
    return "same shapes"
