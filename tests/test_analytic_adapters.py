"""Adapters: their parameters, and what a forward pass keeps beside frozen weights, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from vramscope.profiler.analytic import BatchShape, DecoderArchitecture, Scenario, predict
from vramscope.profiler.analytic.activations import record
from vramscope.profiler.analytic.adapters import LoraSpec
from vramscope.storage.records import Phase

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

ATTENTION = ("q_proj", "v_proj")
EVERYTHING = (*ATTENTION, "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SIZES: dict[str, Any] = {"layers": 2, "hidden": 48, "heads": 4, "intermediate": 80}


def architecture(family: str = "llama", **changes: Any) -> DecoderArchitecture:
    values: dict[str, Any] = {
        "family": family,
        **SIZES,
        "vocabulary": 150,
        "positions": 64,
        "activation": "silu",
        "tied": False,
    }
    return DecoderArchitecture(**{**values, **changes})


def adapted(targets: tuple[str, ...], dtype: str, dropout: float) -> Any:
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=48,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=80,
        vocab_size=150,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype))
    lora = peft.LoraConfig(r=4, target_modules=list(targets), lora_dropout=dropout)
    model = peft.get_peft_model(model, lora)
    model.enable_input_require_grads()
    return model.train()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("targets", [ATTENTION, EVERYTHING])
def test_what_an_adapted_model_keeps(
    kept_bytes: Callable[..., int], targets: tuple[str, ...], dtype: str, dropout: float
) -> None:
    model = adapted(targets, dtype, dropout)
    tokens = torch.randint(0, 150, (2, 24))
    scenario = Scenario(
        architecture=architecture(),
        weight_dtype=dtype,  # type: ignore[arg-type]
        batch=BatchShape(micro_batch=2, sequence=24),
        lora=LoraSpec(rank=4, targets=targets, dropout=dropout),
        device="cpu",
    )
    assert record(scenario).saved_bytes == kept_bytes(
        model, lambda: model(input_ids=tokens, labels=tokens).loss
    )
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert scenario.inventory.trainable_numel == trained


def test_only_adapters_have_gradients_and_state() -> None:
    scenario = Scenario(
        architecture=architecture(),
        weight_dtype="bfloat16",
        batch=BatchShape(micro_batch=1, sequence=16),
        lora=LoraSpec(rank=4, targets=("q_proj",)),
        device="cpu",
    )
    idle = predict(scenario).phases[Phase.IDLE]
    trained = 2 * 2 * 4 * 48  # two layers, A and B
    assert idle.gradients == 4 * trained
    assert idle.optimizer_state == 8 * trained + 4 * 4


def test_dora_and_whole_modules_are_counted() -> None:
    plain = Scenario(architecture=architecture(), lora=LoraSpec(rank=2, targets=("q_proj",)))
    more = plain.replace(
        lora=LoraSpec(rank=2, targets=("q_proj",), dora=True, trained_whole=("lm_head",))
    )
    extra = more.inventory.trainable_numel - plain.inventory.trainable_numel
    assert extra == 2 * 48 + 150 * 48


def test_unknown_targets_are_named_and_leave_the_state_open() -> None:
    scenario = Scenario(
        architecture=architecture(),
        batch=BatchShape(micro_batch=1, sequence=8),
        lora=LoraSpec(targets=("q_proj", "mystery")),
    )
    prediction = predict(scenario)
    assert any("lora.targets=mystery" in note for note in prediction.not_modelled)
    assert prediction.peak_phase is None


def test_four_bit_weights_are_written_out_for_each_product() -> None:
    scenario = Scenario(
        architecture=architecture(hidden=512, intermediate=2048),
        weight_dtype="nf4",
        batch=BatchShape(micro_batch=1, sequence=8),
        lora=LoraSpec(rank=4),
        checkpointing="full",
    )
    backward = predict(scenario).phases[Phase.BACKWARD]
    assert backward.temporaries is not None
    assert backward.temporaries >= 2 * 512 * 2048
    assert backward.parameters is not None
    plain = predict(scenario.replace(weight_dtype="bfloat16")).phases[Phase.BACKWARD]
    assert backward.parameters < (plain.parameters or 0)
