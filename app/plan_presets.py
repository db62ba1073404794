"""Well-known models by their sizes, as their own ``config.json`` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vramscope.profiler.analytic import DecoderArchitecture, from_hf_config

Config = Mapping[str, object]


def _gpt2(layers: int, hidden: int, heads: int) -> Config:
    return {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads}


def _decoder(
    model_type: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int],
    intermediate: int,
    vocabulary: int,
    positions: int,
    *,
    tied: bool = False,
) -> Config:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "tie_word_embeddings": tied,
    }


_CONFIGS: Mapping[str, Config] = {
    "GPT-2, 124 M": _gpt2(12, 768, 12),
    "GPT-2 medium, 355 M": _gpt2(24, 1024, 16),
    "Qwen2.5 0.5 B": _decoder("qwen2", 24, 896, (14, 2), 4864, 151936, 32768, tied=True),
    "Llama 3.2 1 B": _decoder("llama", 16, 2048, (32, 8), 8192, 128256, 131072, tied=True),
    "GPT-2 XL, 1.6 B": _gpt2(48, 1600, 25),
    "Llama 3.2 3 B": {
        **_decoder("llama", 28, 3072, (24, 8), 8192, 128256, 131072, tied=True),
        "head_dim": 128,
    },
    "Llama 2 7 B": _decoder("llama", 32, 4096, (32, 32), 11008, 32000, 4096),
    "Mistral 7 B": _decoder("mistral", 32, 4096, (32, 8), 14336, 32000, 32768),
    "Qwen2.5 7 B": _decoder("qwen2", 28, 3584, (28, 4), 18944, 152064, 131072),
    "Llama 3.1 8 B": _decoder("llama", 32, 4096, (32, 8), 14336, 128256, 131072),
    "Qwen3 8 B": {
        **_decoder("qwen3", 36, 4096, (32, 8), 12288, 151936, 40960),
        "head_dim": 128,
    },
    "Llama 2 13 B": _decoder("llama", 40, 5120, (40, 40), 13824, 32000, 4096),
    "Qwen2.5 32 B": _decoder("qwen2", 64, 5120, (40, 8), 27648, 152064, 131072),
    "Llama 3.1 70 B": _decoder("llama", 80, 8192, (64, 8), 28672, 128256, 131072),
}

PRESETS: Mapping[str, DecoderArchitecture] = MappingProxyType(
    {name: from_hf_config(config) for name, config in _CONFIGS.items()}
)
"""From the smallest to the largest."""

FIRST = "Llama 3.1 8 B"
"""What the page opens with."""


def preset_of(architecture: DecoderArchitecture | None) -> str | None:
    """The name of a model with these sizes."""
    return next((name for name, known in PRESETS.items() if known == architecture), None)
