"""The model of a published row: its sizes as a Hugging Face configuration, and from it its tensors.

A row names a family and sizes, never a repository: what a family adds (biases, norms, which
matrices are tied) is what transformers' own class of that family has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vramscope.profiler.analytic import TensorInventory, parameters_of
from vramscope.profiler.analytic.readers.hf_config import HfModel, read_hf_config

Arch = Mapping[str, Any]
Config = dict[str, Any]


class Unanswered(Exception):
    """A row that is refused; the message says why."""


def _llama_like(model_type: str, **more: object) -> Callable[[Arch], Config]:
    def config(a: Arch) -> Config:
        return {
            "model_type": model_type,
            "hidden_size": a["hidden"],
            "intermediate_size": a["ffn"],
            "num_hidden_layers": a["layers"],
            "num_attention_heads": a["heads"],
            "num_key_value_heads": a.get("kv_heads") or a["heads"],
            "vocab_size": a["vocab"],
            "tie_word_embeddings": bool(a.get("tied_embeddings")),
            **({"head_dim": a["head_dim"]} if a.get("head_dim") else {}),
            **more,
        }

    return config


def _falcon(a: Arch) -> Config:
    grouped = (a.get("kv_heads") or 1) > 1
    return {
        "model_type": "falcon",
        "hidden_size": a["hidden"],
        "ffn_hidden_size": a["ffn"],
        "num_hidden_layers": a["layers"],
        "num_attention_heads": a["heads"],
        "num_kv_heads": a.get("kv_heads") or 1,
        "vocab_size": a["vocab"],
        "multi_query": not grouped,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
        "new_decoder_architecture": grouped,
        "tie_word_embeddings": bool(a.get("tied_embeddings")),
    }


def _opt(a: Arch) -> Config:
    return {
        "model_type": "opt",
        "hidden_size": a["hidden"],
        "ffn_dim": a["ffn"],
        "num_hidden_layers": a["layers"],
        "num_attention_heads": a["heads"],
        "vocab_size": a["vocab"],
        "word_embed_proj_dim": a["hidden"],
        "max_position_embeddings": 2048,
    }


def _mpt(a: Arch) -> Config:
    return {
        "model_type": "mpt",
        "d_model": a["hidden"],
        "n_layers": a["layers"],
        "n_heads": a["heads"],
        "vocab_size": a["vocab"],
        "expansion_ratio": a["ffn"] // a["hidden"],
        "no_bias": True,
    }


def _gpt2(model_type: str, **more: object) -> Callable[[Arch], Config]:
    def config(a: Arch) -> Config:
        return {
            "model_type": model_type,
            "n_embd": a["hidden"],
            "n_inner": a.get("ffn"),
            "n_layer": a["layers"],
            "n_head": a.get("heads") or a["hidden"] // 64,
            "vocab_size": a["vocab"],
            **more,
        }

    return config


def _bert(a: Arch) -> Config:
    return {
        "model_type": "bert",
        "hidden_size": a["hidden"],
        "intermediate_size": a["ffn"],
        "num_hidden_layers": a["layers"],
        "num_attention_heads": a["heads"],
        "vocab_size": a["vocab"],
    }


def _vit(a: Arch) -> Config:
    return {
        "model_type": "vit",
        "hidden_size": a["hidden"],
        "intermediate_size": a["ffn"],
        "num_hidden_layers": a["layers"],
        "num_attention_heads": a["heads"],
        "image_size": 224,
        "patch_size": 14,
    }


CONFIGS: Mapping[str, Callable[[Arch], Config]] = {
    "llama": _llama_like("llama"),
    "llama-like": _llama_like("llama"),
    "mistral": _llama_like("mistral"),
    "mixtral": _llama_like("mixtral"),
    "qwen2": _llama_like("qwen2"),
    "qwen1": _llama_like("qwen2"),
    "qwen3": _llama_like("qwen3"),
    "gemma": _llama_like("gemma"),
    "gemma2": _llama_like("gemma2"),
    "phi3": _llama_like("phi3"),
    "phi": _llama_like("phi"),
    "gptneox": _llama_like("gpt_neox"),
    "falcon": _falcon,
    "opt": _opt,
    "mpt": _mpt,
    "gpt_bigcode": _gpt2("gpt_bigcode", multi_query=True, n_positions=8192),
    "gpt2": _gpt2("gpt2"),
    "bert": _bert,
    "vit": _vit,
}


def family_of(arch: Arch) -> str:
    """The family's first word: ``llama-like (…)`` is ``llama-like``."""
    return str(arch.get("family") or "").split(" ")[0].split("/")[0]


def config_of(arch: Arch, *, untied: bool = False) -> Config:
    """The configuration of a row's architecture.

    Raises:
        Unanswered: The family is not known, or a size is missing.
    """
    family = family_of(arch)
    if family not in CONFIGS:
        raise Unanswered(f"no model: family {family or 'not given'}")
    try:
        config = CONFIGS[family](arch)
    except (KeyError, TypeError) as missing:
        raise Unanswered(f"no model: {missing} is not given") from None
    if untied:
        config["tie_word_embeddings"] = False
    if arch.get("experts"):
        config |= {"num_local_experts": arch["experts"], "num_experts_per_tok": arch["topk"]}
    return config


def model_of(
    arch: Arch,
    dtype: str,
    *,
    quantization: Mapping[str, Any] | None = None,
    untied: bool = False,
    task: str | None = None,
) -> HfModel:
    """The tensors of a row's model.

    Args:
        arch: The row's architecture.
        dtype: Type of the weights that are not quantised.
        quantization: A ``quantization_config``.
        untied: Whether the head has a matrix of its own whatever the family does.
        task: What the class is for, where it is no language model.
    """
    config = config_of(arch, untied=untied) | {"dtype": dtype}
    if task:
        config["architectures"] = [f"{config['model_type'].title()}For{task}"]
    if quantization:
        config["quantization_config"] = dict(quantization)
    return read_hf_config(config)


def tensors_of(arch: Arch, dtype: str, **more: Any) -> TensorInventory:
    """The tensors, or, where only a number of parameters is given, that many of them."""
    try:
        return model_of(arch, dtype, **more).tensors
    except Unanswered:
        if more.get("quantization"):
            raise
        return counted(arch, dtype)


def counted(arch: Arch, dtype: str) -> TensorInventory:
    """As many parameters as the row says, in tensors of ordinary size.

    Raises:
        Unanswered: The row gives no number.
    """
    number = arch.get("params") or arch.get("params_approx")
    if not number:
        raise Unanswered("no model: neither sizes nor a number of parameters")
    total = int(float(str(number).strip("~")))
    return parameters_of(total, dtype=dtype, count=max(1, total // 20_000_000))


def frozen(inventory: TensorInventory) -> TensorInventory:
    """The same tensors, none of them trained."""
    blocks = tuple(
        replace(
            block,
            tensors=tuple(replace(t, trainable=False, optimizer=None) for t in block.tensors),
        )
        for block in inventory.blocks
    )
    return replace(inventory, blocks=blocks)
