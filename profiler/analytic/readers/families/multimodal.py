"""Models with several towers: images or sound beside a language model."""

from __future__ import annotations

from ..hf_values import HfConfig
from ..modules import Tree, embedding, layer_norm, linear, norm, weight
from .family import Family
from .seq2seq import whisper_encoder
from .towers import generation, language, nested, untied, vision
from .vision import clip_layers, patch_convolution, patches

CLIP_LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 336,
}
SIGLIP_SO400M = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 26,
    "num_attention_heads": 14,
    "patch_size": 14,
    "image_size": 384,
    "vision_use_head": False,
}


# LLaVA


def llava(newline: bool, default_vision: str = "clip_vision_model") -> Family:
    """LLaVA: two linear layers between the towers; LLaVA-NeXT learns where image rows end."""
    absent = CLIP_LARGE if default_vision == "clip_vision_model" else SIGLIP_SO400M
    default_text = "llama" if default_vision == "clip_vision_model" else "qwen2"

    def text(c: HfConfig) -> HfConfig:
        return c.nested("text_config", default_text)

    def body(c: HfConfig) -> Tree:
        images, words = nested(c, "vision_config", default_vision, absent), text(c)
        features = c.get("vision_feature_layer")
        inputs = images.hidden * (len(features) if isinstance(features, list) else 1)
        bias = c.flag("multimodal_projector_bias", True)
        return {
            **({"image_newline": weight(words.hidden)} if newline else {}),
            "vision_tower": vision(images),
            "multi_modal_projector": {
                "linear_1": linear(inputs, words.hidden, bias),
                "linear_2": linear(words.hidden, words.hidden, bias),
            },
            "language_model": language(words),
        }

    either = default_vision == "siglip_vision_model" or not newline
    return generation(body, text, either)


# Gemma 3, PaliGemma


def gemma3(c: HfConfig) -> Tree:
    """Gemma 3 with SigLIP."""
    images, words = c.nested("vision_config", "siglip_vision_model"), _gemma3_text(c)
    return {
        "vision_tower": vision(images),
        "multi_modal_projector": {
            "mm_input_projection_weight": weight(images.hidden, words.hidden),
            "mm_soft_emb_norm": norm(images.hidden),
        },
        "language_model": language(words),
    }


def _gemma3_text(c: HfConfig) -> HfConfig:
    return c.nested("text_config", "gemma3_text")


PALI_SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4096,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 224,
    "vision_use_head": False,
}
PALI_GEMMA = {
    "hidden_size": 2048,
    "num_hidden_layers": 18,
    "intermediate_size": 16384,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "vocab_size": 257152,
}


def paligemma(c: HfConfig) -> Tree:
    """PaliGemma: one linear layer between SigLIP and Gemma."""
    images = nested(c, "vision_config", "siglip_vision_model", PALI_SIGLIP)
    words = _pali_text(c)
    return {
        "vision_tower": vision(images),
        "multi_modal_projector": {"linear": linear(images.hidden, c.size("projection_dim"))},
        "language_model": language(words),
    }


def _pali_text(c: HfConfig) -> HfConfig:
    return nested(c, "text_config", "gemma", PALI_GEMMA)


# Idefics 3, SmolVLM


def idefics3_vision(c: HfConfig) -> Tree:
    """SigLIP's tower without its head and without a buffer of positions."""
    width = c.hidden
    return {
        "embeddings": {
            "patch_embedding": patch_convolution(c, width),
            "position_embedding": embedding(patches(c), width),
        },
        "encoder": clip_layers(c),
        "post_layernorm": layer_norm(width),
    }


def idefics3(model_type: str) -> Family:
    """Idefics 3 and SmolVLM: patches shuffled together, then one matrix."""

    def text(c: HfConfig) -> HfConfig:
        return c.nested("text_config", "llama")

    def body(c: HfConfig) -> Tree:
        given = c.nested("vision_config", f"{model_type}_vision")
        images = HfConfig(given.values, f"{model_type}_vision", given.where)
        words = text(c)
        inputs = images.hidden * c.size("scale_factor") ** 2
        return {
            "vision_model": idefics3_vision(images),
            "connector": {"modality_projection": {"proj": linear(inputs, words.hidden, False)}},
            "text_model": language(words),
        }

    return generation(body, text, either=False)


# Mistral 3, InternVL


def mistral3(c: HfConfig) -> Tree:
    """Mistral Small 3.1: neighbouring patches merged before the projection."""
    images, words = _pixtral(c), _mistral3_text(c)
    merged = images.hidden * c.size("spatial_merge_size") ** 2
    features = c.get("vision_feature_layer")
    inputs = images.hidden * (len(features) if isinstance(features, list) else 1)
    bias = c.flag("multimodal_projector_bias")
    return {
        "vision_tower": vision(images),
        "multi_modal_projector": {
            "norm": norm(images.hidden),
            "patch_merger": {"merging_layer": linear(merged, images.hidden, False)},
            "linear_1": linear(inputs, words.hidden, bias),
            "linear_2": linear(words.hidden, words.hidden, bias),
        },
        "language_model": language(words),
    }


PIXTRAL = {
    "intermediate_size": 4096,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "head_dim": 64,
    "patch_size": 14,
    "image_size": 1540,
}
MISTRAL_SMALL = {
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 131072,
}


def _pixtral(c: HfConfig) -> HfConfig:
    return nested(c, "vision_config", "pixtral", PIXTRAL)


def _mistral3_text(c: HfConfig) -> HfConfig:
    return nested(c, "text_config", "mistral", MISTRAL_SMALL)


def internvl(c: HfConfig) -> Tree:
    """InternVL: patches shuffled together, then a norm and two linear layers."""
    images, words = c.nested("vision_config", "internvl_vision"), _internvl_text(c)
    inputs = images.hidden * int(1 / c.share("downsample_ratio", 0.5)) ** 2
    return {
        "vision_tower": vision(images),
        "multi_modal_projector": {
            "layer_norm": layer_norm(inputs),
            "linear_1": linear(inputs, words.hidden),
            "linear_2": linear(words.hidden, words.hidden),
        },
        "language_model": language(words),
    }


def _internvl_text(c: HfConfig) -> HfConfig:
    return c.nested("text_config", "qwen2")


# Qwen2-Audio


def qwen2_audio(c: HfConfig) -> Tree:
    """Qwen2-Audio: Whisper's encoder and one linear layer."""
    sound, words = c.nested("audio_config", "qwen2_audio_encoder"), _internvl_text(c)
    return {
        "audio_tower": whisper_encoder(sound),
        "multi_modal_projector": {"linear": linear(sound.size("d_model"), words.hidden)},
        "language_model": language(words),
    }


FAMILIES: dict[str, Family] = {
    "llava": llava(newline=False),
    "llava_next": llava(newline=True),
    "llava_onevision": llava(newline=True, default_vision="siglip_vision_model"),
    "gemma3": generation(gemma3, _gemma3_text, either=False),
    "paligemma": generation(paligemma, _pali_text, either=False),
    "idefics3": idefics3("idefics3"),
    "smolvlm": idefics3("smolvlm"),
    "mistral3": generation(mistral3, _mistral3_text, either=False),
    "internvl": generation(internvl, _internvl_text, either=False),
    "qwen2_audio": untied(qwen2_audio, _internvl_text),
}
