"""What further families keep for backward, against saved-tensor hooks on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from vramscope.profiler.analytic import (
    BatchShape,
    DecoderArchitecture,
    Scenario,
    from_hf_config,
    parameters_of,
    predict,
)
from vramscope.profiler.analytic.activations import record

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
def test_what_gemma_keeps(kept_bytes: Callable[..., int], precision: str, attention: str) -> None:
    config = transformers.GemmaConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=80,
        vocab_size=150,
        use_cache=False,
        attn_implementation=attention,
    )
    model = transformers.GemmaForCausalLM(config).train()
    half, autocast = precision == "bfloat16", precision == "autocast"
    model = model.bfloat16() if half else model
    tokens = torch.randint(0, 150, (2, 24))
    context = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext()

    def forward() -> Any:
        with context:
            return model(input_ids=tokens, labels=tokens).loss

    scenario = Scenario(
        architecture=from_hf_config(config.to_dict()),
        weight_dtype="bfloat16" if half else "float32",
        autocast="bfloat16" if autocast else None,
        batch=BatchShape(micro_batch=2, sequence=24),
        attention=attention,  # type: ignore[arg-type]
        device="cpu",
    )
    recording = record(scenario)
    assert recording.saved_bytes + recording.copy_bytes == kept_bytes(model, forward)
    assert scenario.inventory.numel == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_bert_keeps(kept_bytes: Callable[..., int], attention: str, dropout: float) -> None:
    config = transformers.BertConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=80,
        vocab_size=150,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=attention,
    )
    model = transformers.BertForSequenceClassification(config).train()
    tokens, labels = torch.randint(0, 150, (2, 24)), torch.tensor([0, 1])
    arch = DecoderArchitecture(
        family="bert",
        layers=2,
        hidden=48,
        heads=4,
        intermediate=80,
        vocabulary=150,
        positions=512,
        activation="gelu",
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        residual_dropout=dropout,
        embedding_dropout=dropout,
        attention_dropout=dropout,
    )
    scenario = Scenario(
        architecture=arch,
        tensors=parameters_of(1000),
        batch=BatchShape(micro_batch=2, sequence=24),
        attention=attention,  # type: ignore[arg-type]
        device="cpu",
    )
    kept = kept_bytes(model, lambda: model(input_ids=tokens, labels=labels).loss)
    assert record(scenario).saved_bytes == pytest.approx(kept, abs=8 * 2 * 48 + 200)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_what_a_vision_transformer_keeps(kept_bytes: Callable[..., int], attention: str) -> None:
    config = transformers.ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=80,
        image_size=32,
        patch_size=8,
        attn_implementation=attention,
    )
    model = transformers.ViTForImageClassification(config).train()
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 1])
    arch = DecoderArchitecture(
        family="vit",
        layers=2,
        hidden=48,
        heads=4,
        intermediate=80,
        vocabulary=1,
        positions=17,
        activation="gelu",
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        patch_values=3 * 8 * 8,
    )
    scenario = Scenario(
        architecture=arch,
        tensors=parameters_of(1000),
        batch=BatchShape(micro_batch=2, sequence=17),
        attention=attention,  # type: ignore[arg-type]
        device="cpu",
    )
    kept = kept_bytes(model, lambda: model(pixel_values=images, labels=labels).loss)
    assert record(scenario).saved_bytes == pytest.approx(kept, abs=100)


def test_an_encoder_needs_its_tensors() -> None:
    arch = DecoderArchitecture(
        family="bert", layers=1, hidden=8, heads=1, intermediate=8, vocabulary=9, positions=4
    )
    with pytest.raises(ValueError, match="must be given with architecture"):
        Scenario(architecture=arch)


def test_training_a_mixture_of_experts_is_refused_by_name() -> None:
    arch = DecoderArchitecture(
        family="llama",
        layers=1,
        hidden=8,
        heads=1,
        intermediate=8,
        vocabulary=9,
        positions=4,
        experts=4,
        active_experts=2,
    )
    prediction = predict(Scenario(architecture=arch, batch=BatchShape(micro_batch=1, sequence=4)))
    assert prediction.peak_phase is None
    assert any("mixture of experts" in note for note in prediction.not_modelled)
