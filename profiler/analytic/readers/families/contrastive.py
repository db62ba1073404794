"""Pairs of towers that are trained against each other: CLIP and SigLIP."""

from __future__ import annotations

from ..hf_values import HfConfig
from ..modules import Tree, linear, weight
from .family import Family
from .vision import clip_text, clip_vision, siglip_text, siglip_vision


def clip(c: HfConfig) -> Tree:
    """Both towers, and the projections into one space."""
    text, vision = towers(c, "clip")
    size = c.size("projection_dim")
    return {
        "logit_scale": weight(),
        "text_model": clip_text(text),
        "vision_model": clip_vision(vision),
        "visual_projection": linear(vision.hidden, size, False),
        "text_projection": linear(text.hidden, size, False),
    }


def siglip(c: HfConfig) -> Tree:
    """Both towers."""
    text, vision = towers(c, "siglip")
    return {
        "logit_scale": weight(1),
        "logit_bias": weight(1),
        "text_model": siglip_text(text),
        "vision_model": siglip_vision(vision),
    }


def towers(c: HfConfig, family: str) -> tuple[HfConfig, HfConfig]:
    """The nested configurations; ``text_config_dict`` of old files wins over ``text_config``."""
    found = []
    for side in ("text", "vision"):
        older = c.mapping(f"{side}_config_dict")
        values = {**c.values, f"{side}_config": {**c.mapping(f"{side}_config"), **older}}
        whole = HfConfig(values, c.model_type, c.where)
        found.append(whole.nested(f"{side}_config", f"{family}_{side}_model"))
    return found[0], found[1]


def text_of(c: HfConfig, family: str) -> HfConfig:
    """The text tower's configuration, from its own file or from the pair's."""
    return towers(c, family)[0] if c.model_type == family else c


def vision_of(c: HfConfig, family: str) -> HfConfig:
    """The vision tower's configuration, from its own file or from the pair's."""
    return towers(c, family)[1] if c.model_type == family else c


def _clip_text_projected(c: HfConfig) -> Tree:
    text = text_of(c, "clip")
    size = text.size("projection_dim")
    return {
        "text_model": clip_text(text),
        "text_projection": linear(text.hidden, size, False),
    }


def _clip_vision_projected(c: HfConfig) -> Tree:
    vision = vision_of(c, "clip")
    size = vision.size("projection_dim")
    return {
        "vision_model": clip_vision(vision),
        "visual_projection": linear(vision.hidden, size, False),
    }


_CLIP_TOWERS = {
    "TextModelWithProjection": _clip_text_projected,
    "VisionModelWithProjection": _clip_vision_projected,
    "TextModel": lambda c: clip_text(text_of(c, "clip")),
    "VisionModel": lambda c: clip_vision(vision_of(c, "clip")),
}
_SIGLIP_TOWERS = {
    "TextModel": lambda c: siglip_text(text_of(c, "siglip")),
    "VisionModel": lambda c: siglip_vision(vision_of(c, "siglip")),
}


FAMILIES: dict[str, Family] = {
    "clip": Family({"Model": clip, **_CLIP_TOWERS}),
    "clip_text_model": Family({"TextModel": clip_text, **_CLIP_TOWERS}),
    "clip_vision_model": Family({"VisionModel": clip_vision, **_CLIP_TOWERS}),
    "siglip": Family({"Model": siglip, **_SIGLIP_TOWERS}),
    "siglip_text_model": Family({"TextModel": siglip_text, **_SIGLIP_TOWERS}),
    "siglip_vision_model": Family({"VisionModel": siglip_vision, **_SIGLIP_TOWERS}),
}
