"""The architectures that are known, by Hugging Face ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    contrastive,
    decoders,
    encoder_heads,
    experts,
    gemma4,
    gpt,
    hybrid,
    llama_vision,
    multimodal,
    qwen_vl,
    seq2seq,
    state_space,
    vision,
)
from .family import Family

FAMILIES: Mapping[str, Family] = {
    **decoders.FAMILIES,
    **gpt.FAMILIES,
    **experts.FAMILIES,
    **hybrid.FAMILIES,
    **state_space.FAMILIES,
    **encoder_heads.FAMILIES,
    **seq2seq.FAMILIES,
    **vision.FAMILIES,
    **contrastive.FAMILIES,
    **multimodal.FAMILIES,
    **gemma4.FAMILIES,
    **qwen_vl.FAMILIES,
    **llama_vision.FAMILIES,
}
"""Every architecture that is known."""

__all__ = ["FAMILIES", "Family"]
