"""Every known architecture against transformers' own model, built without storage."""

from __future__ import annotations

from typing import Any

import pytest
from vramscope.profiler.analytic.readers.families import FAMILIES
from vramscope.profiler.analytic.readers.hf_config import read_hf_config
from vramscope.profiler.analytic.readers.hf_values import HfConfig
from vramscope.profiler.analytic.readers.modules import Buffer, Tied, named_leaves

Config = dict[str, Any]

TEXT: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 200,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: Config = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1,
    "head_dim": 16,
}
LATENT: Config = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "index_n_heads": 2,
    "index_head_dim": 8,
}
DELTA: Config = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
SEQ2SEQ: Config = {
    "d_model": 64,
    "vocab_size": 200,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
T5: Config = {
    "d_model": 64,
    "vocab_size": 200,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "d_kv": 8,
    "d_ff": 96,
    "num_heads": 4,
}
ENCODER: Config = {k: v for k, v in TEXT.items() if k != "num_key_value_heads"}
VISION: Config = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 56,
    "patch_size": 14,
}
QWEN_VISION: Config = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": 14,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
}
TIED: Config = {"tie_word_embeddings": True}
UNTIED: Config = {"tie_word_embeddings": False}
BIASES: Config = {
    "attention_bias": True,
    "mlp_bias": True,
    "use_bias": True,
    "use_qkv_bias": True,
}
WIDE: Config = {**TIED, **BIASES, "head_dim": 32}
PARTS = {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "pos_att_type": ["c2p", "p2c"]}
RELATIVE: Config = {"relative_attention": True, **PARTS}


def both(text: Config, vision: Config, **more: Any) -> Config:
    """A configuration with two nested ones."""
    return {"text_config": text, "vision_config": vision, **more}


GEMMA4: Config = {
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 50,
}
OMNI: Config = {
    "thinker_config": {
        "audio_config": {
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 40,
            "downsample_hidden_size": 8,
            "output_dim": 64,
        },
        "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [1]},
        "text_config": {**TEXT, **EXPERTS},
    }
}
LLAMA_LIKE = [
    "llama",
    "granite",
    "smollm3",
    "helium",
    "mistral",
    "ministral3",
    "qwen2",
    "qwen3",
    "seed_oss",
    "ernie4_5",
    "arcee",
    "gemma",
    "gemma2",
    "gemma3_text",
    "olmo",
    "olmo2",
    "olmo3",
    "exaone4",
    "cohere",
    "cohere2",
    "glm",
    "glm4",
    "starcoder2",
    "nemotron",
    "phi",
    "phi3",
    "stablelm",
    "internlm3",
    "cwm",
    "vaultgemma",
    "nanochat",
    "jais2",
    "apertus",
]
MASKED = ["bert", "roberta", "xlm-roberta", "camembert", "electra", "mpnet", "albert", "modernbert"]
ENCODER_DECODERS = [
    "bart",
    "mbart",
    "pegasus",
    "blenderbot",
    "blenderbot-small",
    "m2m_100",
    "whisper",
]
CASES: list[tuple[str, str, Config]] = [
    *((name, "ForCausalLM", TEXT | v) for name in LLAMA_LIKE for v in (UNTIED, WIDE)),
    ("llama", "Model", TEXT),
    ("llama", "ForSequenceClassification", {**TEXT, "num_labels": 5}),
    ("qwen2", "ForTokenClassification", TEXT),
    ("gemma3_text", "ForCausalLM", {**TEXT, "num_hidden_layers": 8}),
    ("gemma3_text", "ForCausalLM", {**TEXT, "sliding_window_pattern": 2}),
    ("cohere", "ForCausalLM", {**TEXT, "use_qk_norm": True}),
    ("phi3", "ForCausalLM", {**TEXT, "partial_rotary_factor": 0.75}),
    ("stablelm", "ForCausalLM", {**TEXT, "use_parallel_residual": True, "qk_layernorm": True}),
    ("gpt2", "LMHeadModel", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 80}),
    ("gpt2", "LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "add_cross_attention": True}),
    ("gpt_bigcode", "ForCausalLM", {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    ("gpt_bigcode", "ForCausalLM", {"n_embd": 64, "n_layer": 2, "multi_query": False, "n_head": 4}),
    ("gpt_neo", "ForCausalLM", {"hidden_size": 64, "num_heads": 4, "max_position_embeddings": 32}),
    ("gptj", "ForCausalLM", {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}),
    ("codegen", "ForCausalLM", {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}),
    ("gpt_neox", "ForCausalLM", ENCODER),
    ("gpt_neox", "ForCausalLM", {**ENCODER, "rotary_pct": 0.5, **TIED}),
    *(
        ("opt", "ForCausalLM", {**ENCODER, "ffn_dim": 96, **v})
        for v in ({}, {"word_embed_proj_dim": 32}, {"do_layer_norm_before": False})
    ),
    ("bloom", "ForCausalLM", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 200}),
    *(
        ("falcon", "ForCausalLM", {**ENCODER, **v})
        for v in (
            {},
            {"new_decoder_architecture": True, "num_kv_heads": 2},
            {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
            {"alibi": True, "multi_query": False},
            {"parallel_attn": False, "bias": True},
        )
    ),
    ("mpt", "ForCausalLM", {"d_model": 64, "n_layers": 2, "n_heads": 4, "expansion_ratio": 3}),
    ("persimmon", "ForCausalLM", ENCODER),
    *(
        (name, "ForCausalLM", {**TEXT, **EXPERTS, **v})
        for name in (
            "mixtral",
            "qwen2_moe",
            "qwen3_moe",
            "olmoe",
            "phimoe",
            "granitemoe",
            "gpt_oss",
            "minimax_m2",
            "ernie4_5_moe",
            "glm4_moe",
            "dots1",
            "solar_open",
        )
        for v in ({}, {"decoder_sparse_step": 2, "mlp_only_layers": [3], **BIASES})
    ),
    *(
        (name, "ForCausalLM", {**TEXT, **EXPERTS, **LATENT, **v})
        for name in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite")
        for v in ({}, {"first_k_dense_replace": 1})
    ),
    ("deepseek_v3", "ForCausalLM", {**TEXT, **EXPERTS, **LATENT, "q_lora_rank": None}),
    ("glm_moe_dsa", "ForCausalLM", {**TEXT, **EXPERTS, **LATENT, "index_topk_freq": 2}),
    ("minimax_m2", "ForCausalLM", {**TEXT, **EXPERTS, "rotary_dim": 8}),
    *(
        ("gemma4_text", "ForCausalLM", {**TEXT, **GEMMA4, **v})
        for v in (
            {},
            {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "num_hidden_layers": 12},
            {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
            {"hidden_size_per_layer_input": 0},
        )
    ),
    ("hunyuan_v1_dense", "ForCausalLM", {**TEXT, **WIDE}),
    ("mamba", "ForCausalLM", {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}),
    ("falcon_mamba", "ForCausalLM", {"hidden_size": 64, "num_hidden_layers": 2, "use_bias": True}),
    (
        "mamba2",
        "ForCausalLM",
        {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16},
    ),
    (
        "gemma4",
        "ForConditionalGeneration",
        both(
            {**TEXT, **GEMMA4},
            {**VISION, "head_dim": 8, "position_embedding_size": 16},
            audio_config={"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        ),
    ),
    ("qwen3_omni_moe", "ForConditionalGeneration", {**OMNI, "enable_audio_output": False}),
    ("llama4_text", "ForCausalLM", {**TEXT, **EXPERTS, "interleave_moe_layer_step": 2}),
    *(
        (name, "ForCausalLM", {**TEXT, **EXPERTS, **DELTA})
        for name in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
    ),
    *((name, "ForMaskedLM", {**ENCODER, **v}) for name in MASKED for v in ({}, UNTIED)),
    *(
        (name, ending, ENCODER)
        for name in ["bert", "roberta", "electra", "albert", "deberta-v2", "modernbert"]
        for ending in ("Model", "ForSequenceClassification", "ForTokenClassification")
    ),
    ("bert", "ForPreTraining", ENCODER),
    ("bert", "LMHeadModel", {**ENCODER, "is_decoder": True, "add_cross_attention": True}),
    ("electra", "ForPreTraining", {**ENCODER, "embedding_size": 32}),
    ("distilbert", "ForMaskedLM", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96}),
    ("distilbert", "ForSequenceClassification", {"dim": 64, "n_layers": 2, "n_heads": 4}),
    *(
        (name, "ForMaskedLM", {**ENCODER, **v})
        for name in ("deberta", "deberta-v2")
        for v in ({}, RELATIVE, {**RELATIVE, "position_biased_input": False, "type_vocab_size": 2})
    ),
    ("deberta-v2", "ForMaskedLM", {**ENCODER, **RELATIVE, "conv_kernel_size": 3}),
    ("deberta-v2", "ForMaskedLM", {**ENCODER, **RELATIVE, "share_att_key": True}),
    *(
        (name, "ForConditionalGeneration", {**T5, **v})
        for name in ("t5", "mt5", "umt5")
        for v in ({}, UNTIED, {"feed_forward_proj": "gated-gelu"})
    ),
    ("t5", "EncoderModel", T5),
    *((name, "ForConditionalGeneration", SEQ2SEQ) for name in ENCODER_DECODERS),
    ("bart", "ForConditionalGeneration", {**SEQ2SEQ, **UNTIED}),
    ("bart", "ForSequenceClassification", SEQ2SEQ),
    ("marian", "MTModel", SEQ2SEQ),
    *((name, "ForImageClassification", VISION) for name in ("vit", "deit", "dinov2")),
    ("vit", "Model", VISION),
    ("dinov2", "Model", {**VISION, "use_swiglu_ffn": True}),
    ("swin", "ForImageClassification", {"depths": [2, 1], "num_heads": [2, 4], "embed_dim": 16}),
    (
        "convnext",
        "ForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2},
    ),
    *((name, "Model", both(ENCODER, VISION)) for name in ("clip", "siglip")),
    ("clip_vision_model", "VisionModelWithProjection", VISION),
    ("clip_text_model", "TextModel", ENCODER),
    *(
        (name, "ForConditionalGeneration", both({"model_type": "llama", **TEXT, **v}, VISION))
        for name in ("llava", "llava_next", "idefics3", "smolvlm")
        for v in (UNTIED, TIED)
    ),
    ("llava_onevision", "ForConditionalGeneration", both(TEXT, VISION)),
    *(
        (name, "ForConditionalGeneration", both({**TEXT, **EXPERTS, **DELTA}, QWEN_VISION, **v))
        for name in ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
        for v in (UNTIED, TIED)
    ),
    ("glm4v", "ForConditionalGeneration", both(TEXT, {**QWEN_VISION, "image_size": 56})),
    (
        "qwen2_vl",
        "ForConditionalGeneration",
        {**TEXT, **TIED, "vision_config": {**QWEN_VISION, "embed_dim": 32, "hidden_size": 64}},
    ),
    ("gemma3", "ForConditionalGeneration", both(TEXT, VISION)),
    ("paligemma", "ForConditionalGeneration", both(TEXT, VISION, projection_dim=64)),
    ("mistral3", "ForConditionalGeneration", both(TEXT, {**VISION, "head_dim": 8})),
    ("internvl", "ForConditionalGeneration", both(TEXT, VISION)),
    ("qwen2_audio", "ForConditionalGeneration", {"text_config": TEXT, "audio_config": SEQ2SEQ}),
    (
        "mllama",
        "ForConditionalGeneration",
        both({**TEXT, "cross_attention_layers": [1]}, {**VISION, "vision_output_dim": 96}),
    ),
    (
        "llama4",
        "ForConditionalGeneration",
        both(
            {**TEXT, **EXPERTS, "intermediate_size_mlp": 80},
            {**VISION, "projector_input_dim": 64, "projector_output_dim": 64},
            pad_token_id=0,
        ),
    ),
]


def live(model_type: str, ending: str, config: Config) -> tuple[Any, list[Any], list[Any]]:
    """The class, its parameters (name, shape, whether a second name) and its buffers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    built = transformers.AutoConfig.for_model(model_type, **config)
    cls = _class_of(transformers, model_type, ending)
    with torch.device("meta"):
        model = cls(built)
    seen: set[int] = set()
    parameters = []
    for name, p in model.named_parameters(remove_duplicate=False):
        parameters.append((name, tuple(p.shape), id(p) in seen))
        seen.add(id(p))
    buffers = [(name, b.numel(), b.nbytes) for name, b in model.named_buffers()]
    return cls, parameters, buffers


def _class_of(transformers: Any, model_type: str, ending: str) -> Any:
    from transformers.models.auto import modeling_auto

    for name, table in vars(modeling_auto).items():
        if name.endswith("MAPPING_NAMES") and model_type in table:
            found = table[model_type]
            for cls in [found] if isinstance(found, str) else found:
                if cls.endswith(ending) and (ending != "Model" or "LMHead" not in cls):
                    return getattr(transformers, cls)
    return getattr(transformers, OTHERS[model_type, ending])


OTHERS = {
    ("t5", "EncoderModel"): "T5EncoderModel",
    ("clip_vision_model", "VisionModelWithProjection"): "CLIPVisionModelWithProjection",
    ("clip_text_model", "TextModel"): "CLIPTextModel",
}


@pytest.mark.parametrize(
    ("model_type", "ending", "config"),
    CASES,
    ids=[f"{n}-{e}-{i}" for i, (n, e, _) in enumerate(CASES)],
)
def test_tensors_are_those_of_the_live_model(model_type: str, ending: str, config: Config) -> None:
    cls, parameters, buffers = live(model_type, ending, config)
    body = FAMILIES[model_type].named(cls.__name__)
    assert body is not None
    leaves = list(named_leaves(body(HfConfig(config, model_type))))
    ours = [(n, x.shape, isinstance(x, Tied)) for n, x in leaves if not isinstance(x, Buffer)]
    assert sorted(p[:2] for p in ours) == sorted(p[:2] for p in parameters)
    assert sorted(p[1:] for p in ours) == sorted(p[1:] for p in parameters)
    found = [(n, x.numel, x.numel * x.item_bytes) for n, x in leaves if isinstance(x, Buffer)]
    assert sorted(found) == sorted(buffers)


def test_every_architecture_has_a_case() -> None:
    untried = {
        "ministral",  # transformers' own default has no rotary base
        "dbrx",  # transformers' own nested configuration has no rotary base
        "pixtral",
        "internvl_vision",
        "siglip_text_model",
        "siglip_vision_model",
        "qwen2_vl_text",
        "qwen2_5_vl_text",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "glm4v_text",
        "mllama_text_model",
        "qwen3_omni_moe_text",
        "qwen3_omni_moe_thinker",
    }
    assert set(FAMILIES) - {name for name, _, _ in CASES} == untried


def test_defaults_are_those_of_the_installed_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    from vramscope.profiler.analytic.readers.hf_values import _tables

    for model_type in FAMILIES:
        built = type(transformers.AutoConfig.for_model(model_type))
        table = _tables()[model_type]
        for key, value in table["defaults"].items():
            default = built.__dataclass_fields__[key].default
            plain = list(default) if isinstance(default, tuple) else default
            if isinstance(plain, int | str | list | float) or plain is None:
                assert plain == value, (model_type, key)


def test_counts_and_what_is_taken_where_the_file_is_silent() -> None:
    config = {"model_type": "llama", **TEXT, **TIED, "architectures": ["LLaMAForCausalLM"]}
    model = read_hf_config(config)
    assert model.tensors.tied_numel == 200 * 64
    assert model.tensors.buffer_numel == 16
    assert model.class_name == "LLaMAForCausalLM"
    assert any("float32" in note for note in model.notes)


def test_dtype_is_read_and_can_be_set() -> None:
    config = {"model_type": "t5", **T5, "torch_dtype": "bfloat16"}
    half = read_hf_config(config).tensors
    whole = read_hf_config(config, dtype="float32").tensors
    held = [sum(t.held_bytes * n for t, n in x.counted()) for x in (half, whole)]
    assert held[1] == 2 * held[0]


def quantised(**said: Any) -> Config:
    return {"model_type": "llama", **TEXT, "torch_dtype": "bfloat16", "quantization_config": said}


MATRICES = [(64, 64), (32, 64), (32, 64), (64, 64), (96, 64), (96, 64), (64, 96)]
LINEAR = 4 * sum(rows * columns for rows, columns in MATRICES)
PLAIN = 2 * (2 * 200 * 64 + 9 * 64)
"""Bytes of the embedding, the head and the norms."""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            {"quant_method": "fp8", "weight_block_size": [64, 64]},
            LINEAR + 4 * 4 * sum(-(-r // 64) * -(-c // 64) for r, c in MATRICES),
        ),
        (
            {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            LINEAR // 2 + 4 * sum(4 * (r * c // 64) + 64 for r, c in MATRICES),
        ),
        (
            {"load_in_8bit": True, "load_in_4bit": False},
            LINEAR + 4 * sum(4 * r for r, _ in MATRICES),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 32},
            4
            * sum(
                4 * (c // 8) * r + 4 * (c // 32) * (r // 8) + 2 * (c // 32) * r + 4 * c
                for r, c in MATRICES
            ),
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 32},
            4
            * sum(
                4 * (c // 8) * r + 4 * (c // 32) * (r // 8) + 2 * (c // 32) * r for r, c in MATRICES
            ),
        ),
    ],
)
def test_quantised_checkpoints_take_what_their_tensors_take(said: Config, expected: int) -> None:
    model = read_hf_config(quantised(**said))
    held = sum(t.held_bytes * n for t, n in model.tensors.counted())
    assert held == expected + PLAIN
    assert model.tensors.trainable_numel == 0
    assert model.tensors.numel == read_hf_config({"model_type": "llama", **TEXT}).tensors.numel


def test_modules_that_are_not_converted_stay_as_they_are() -> None:
    said = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    all_of_it = read_hf_config(quantised(**said)).tensors
    kept = read_hf_config(quantised(**said, modules_to_not_convert=["mlp"])).tensors
    held = [sum(t.held_bytes * n for t, n in x.counted()) for x in (all_of_it, kept)]
    assert held[1] - held[0] == 4 * (3 * 96 * 64 - 3 * 4 * 2)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "kimi", "auto_map": {"AutoModel": "x.y"}}, ["kimi", "auto_map"]),
        ({"model_type": "nobody"}, ["nobody", "known are", "llama"]),
        ({}, ["None", "known are"]),
        ({"model_type": "llama", "hidden_size": "wide"}, ["hidden_size", "wide", "whole number"]),
        ({"model_type": "llama", "hidden_size": None}, ["hidden_size", "llama"]),
        ({"model_type": "llama", "attention_bias": "no"}, ["attention_bias", "'no'", "true"]),
        (
            {"model_type": "bert", "architectures": ["BertForDance"]},
            ["BertForDance", "ForMaskedLM"],
        ),
        (quantised(quant_method="aqlm"), ["aqlm", "gptq"]),
        (quantised(quant_method="fp8", weight_block_size=128), ["weight_block_size=128"]),
        (quantised(quant_method="gptq", bits="four"), ["bits='four'", "whole number"]),
        ({"model_type": "llama", "num_attention_heads": 0}, ["num_attention_heads=0"]),
        ({"model_type": "vit", "patch_size": 0}, ["patch_size=0", "above 0"]),
        ({"model_type": "qwen3_next", "layer_types": ["full_attention"]}, ["list", "too short"]),
        ({"model_type": "llava", "text_config": {"model_type": ["x"]}}, ["text_config", "x"]),
        ({"model_type": "llama", "torch_dtype": "int7"}, ["torch_dtype", "int7", "bfloat16"]),
        (
            {"model_type": "llava", "text_config": {"model_type": "nobody"}},
            ["text_config", "nobody"],
        ),
        (
            {"model_type": "llava", "vision_config": {"model_type": "vit"}},
            ["vision_config", "vit", "clip_vision_model"],
        ),
    ],
)
def test_what_is_not_known_is_refused_in_words(config: Config, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_hf_config(config)
    for word in words:
        assert word in str(caught.value)
