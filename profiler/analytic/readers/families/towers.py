"""What models with several towers share: the nested parts, and the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..hf_values import HfConfig
from ..modules import Tied, Tree, linear, weight
from .family import Body, Family
from .vision import clip_vision, internvl_vision, pixtral, siglip_vision

VISION: Mapping[str, Body] = {
    "clip_vision_model": clip_vision,
    "siglip_vision_model": siglip_vision,
    "pixtral": pixtral,
    "internvl_vision": internvl_vision,
}


def language(c: HfConfig) -> Tree:
    """The body of the nested language model.

    Raises:
        ValueError: Its ``model_type`` is not known here.
    """
    from . import FAMILIES  # this module is itself part of that table

    family = FAMILIES.get(c.model_type)
    body = family.named("Model") if family else None
    if body is None:
        raise ValueError(f"{c.where}model_type={c.model_type!r}: not a language model known here")
    return body(c)


def vision(c: HfConfig) -> Tree:
    """The nested vision tower.

    Raises:
        ValueError: Its ``model_type`` is not known here.
    """
    if c.model_type not in VISION:
        known = ", ".join(VISION)
        raise ValueError(
            f"{c.where}model_type={c.model_type!r}: not a vision tower known here; known are "
            f"{known}"
        )
    return VISION[c.model_type](c)


def nested(
    c: HfConfig, key: str, model_type: str, absent: Mapping[str, Any] | None = None
) -> HfConfig:
    """A nested configuration; where the file has none, with sizes of its own."""
    return c.nested(key, model_type, **({} if c.has(key) or absent is None else absent))


def text_of(c: HfConfig, model_type: str) -> HfConfig:
    """The language model's configuration; old files have its keys at the top."""
    if c.has("text_config"):
        return c.nested("text_config", model_type)
    return HfConfig({k: v for k, v in c.values.items() if k != "model_type"}, model_type)


def head(c: HfConfig, text: HfConfig, either: bool = True) -> Tree:
    """The head over the vocabulary; tied where the file or the nested one says so."""
    tied = c.flag("tie_word_embeddings") or (either and text.flag("tie_word_embeddings"))
    matrix = (text.vocabulary, text.hidden)
    return {"weight": Tied(matrix) if tied else weight(*matrix)}


def untied(body: Body, text: Callable[[HfConfig], HfConfig]) -> Family:
    """The usual classes, where the head is never the embedding."""

    def generator(c: HfConfig) -> Tree:
        words = text(c)
        return {"model": body(c), "lm_head": linear(words.hidden, words.vocabulary, False)}

    return Family({"ForConditionalGeneration": generator, "Model": body})


def generation(body: Body, text: Callable[[HfConfig], HfConfig], either: bool = True) -> Family:
    """The usual classes: with a head, and without."""
    return Family(
        {
            "ForConditionalGeneration": lambda c: {
                "model": body(c),
                "lm_head": head(c, text(c), either),
            },
            "Model": body,
        }
    )
