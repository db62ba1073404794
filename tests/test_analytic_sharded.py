"""FSDP, tensor and pipeline parallelism, steps in backward, partitioned states, textbook tables."""

from __future__ import annotations

import time
from typing import Any

import pytest
from vramscope.profiler.analytic import (
    BatchShape,
    DecoderArchitecture,
    OptimizerSpec,
    Parallelism,
    Prediction,
    Scenario,
    TensorBlock,
    TensorInventory,
    TensorSpec,
    parameters_of,
    predict,
)
from vramscope.profiler.analytic.kernels import Shape, kernel_peak
from vramscope.profiler.analytic.offload import Offload
from vramscope.profiler.analytic.textbook import (
    deepspeed_estimate,
    double_quantisation_saves,
    largest_model,
    layer_activations,
    zero_model_states,
)
from vramscope.storage.records import MemoryClass, Phase


def decoder(**changes: Any) -> DecoderArchitecture:
    values: dict[str, Any] = {
        "family": "llama",
        "layers": 4,
        "hidden": 256,
        "heads": 4,
        "intermediate": 512,
        "vocabulary": 1024,
        "positions": 512,
        "activation": "silu",
        "tied": False,
    }
    return DecoderArchitecture(**{**values, **changes})


def training(**changes: Any) -> Scenario:
    values: dict[str, Any] = {
        "architecture": decoder(),
        "batch": BatchShape(micro_batch=2, sequence=128),
    }
    return Scenario(**{**values, **changes})


def held(prediction: Prediction, memory_class: MemoryClass, phase: Phase = Phase.IDLE) -> int:
    value = getattr(prediction.phases[phase], memory_class.value)
    assert value is not None
    return int(value)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_fsdp_divides_parameters_gradients_and_state(ranks: int) -> None:
    sharded = predict(training(parallelism=Parallelism(strategy="fsdp", world_size=ranks)))
    whole = predict(training())
    for memory_class in (
        MemoryClass.PARAMETERS,
        MemoryClass.GRADIENTS,
        MemoryClass.OPTIMIZER_STATE,
    ):
        assert held(sharded, memory_class) * ranks == pytest.approx(
            held(whole, memory_class), rel=0.01
        )


def test_replicas_shard_over_fewer_ranks() -> None:
    hybrid = predict(training(parallelism=Parallelism(strategy="fsdp", world_size=8, replicas=4)))
    two = predict(training(parallelism=Parallelism(strategy="fsdp", world_size=2)))
    assert held(hybrid, MemoryClass.PARAMETERS) == held(two, MemoryClass.PARAMETERS)


def test_gathered_weights_are_the_root_and_two_blocks() -> None:
    prediction = predict(
        training(parallelism=Parallelism(strategy="fsdp", world_size=2, fsdp_version=1))
    )
    terms = {t.name.split(" (only")[0]: t.bytes for t in prediction.terms}
    block = 4 * (4 * 256 * 256 + 3 * 256 * 512 + 2 * 256)
    assert terms["gathered weights of blocks"] == 2 * block
    assert terms["gathered weights: embedding, last norm, head"] == 4 * (2 * 1024 * 256 + 256)


def test_no_sync_keeps_whole_gradients_between_micro_steps() -> None:
    sharded = Parallelism(strategy="fsdp", world_size=4, fsdp_version=1)
    once = predict(training(parallelism=sharded))
    often = predict(training(parallelism=sharded, accumulation=4))
    assert held(often, MemoryClass.GRADIENTS) > 2 * held(once, MemoryClass.GRADIENTS)


def test_tensor_parallelism_halves_matrices_and_keeps_norms_whole() -> None:
    half = predict(training(parallelism=Parallelism(tensor_parallel=2)))
    whole = predict(training())
    norms = 4 * 256 * (2 * 4 + 1)
    expected = (held(whole, MemoryClass.PARAMETERS) - norms) // 2 + norms
    assert held(half, MemoryClass.PARAMETERS) == expected


def test_the_first_stage_holds_its_layers_and_the_embedding() -> None:
    staged = predict(training(parallelism=Parallelism(pipeline_parallel=2)))
    block = 4 * (4 * 256 * 256 + 3 * 256 * 512 + 2 * 256)
    assert held(staged, MemoryClass.PARAMETERS) == 2 * block + 4 * 1024 * 256


@pytest.mark.parametrize("kind", ["context_parallel", "sequence_parallel"])
def test_shared_sequences_halve_activations(kind: str) -> None:
    shared = Parallelism(strategy="fsdp", world_size=2, **{kind: 2})  # type: ignore[arg-type]
    alone = Parallelism(strategy="fsdp", world_size=2)
    half = held(predict(training(parallelism=shared)), MemoryClass.ACTIVATIONS, Phase.FORWARD)
    whole = held(predict(training(parallelism=alone)), MemoryClass.ACTIVATIONS, Phase.FORWARD)
    assert half == pytest.approx(whole / 2, rel=0.02)


def test_selective_checkpointing_lies_between_none_and_full() -> None:
    kept = [
        held(predict(training(checkpointing=policy)), MemoryClass.ACTIVATIONS, Phase.FORWARD)
        for policy in ("full", "selective", "none")
    ]
    assert kept == sorted(kept)
    assert len(set(kept)) == 3


def test_compiled_blocks_keep_less() -> None:
    kept = [
        held(predict(training(compiled=compiled)), MemoryClass.ACTIVATIONS, Phase.FORWARD)
        for compiled in (False, True)
    ]
    assert kept[1] < kept[0]


def test_stepping_in_backward_leaves_one_gradient() -> None:
    lomo = predict(training(optimizers=(OptimizerSpec(name="lomo"),)))
    assert held(lomo, MemoryClass.GRADIENTS) == 0
    assert held(lomo, MemoryClass.OPTIMIZER_STATE) == 0
    assert held(lomo, MemoryClass.GRADIENTS, Phase.BACKWARD) == 4 * 1024 * 256


STATE = [
    ("adagrad", 4.0),
    ("lion", 4.0),
    ("lamb", 8.0),
    ("muon", 4.0),
    ("lomo", 0.0),
    ("adafactor", 4 * (1 / 1024 + 1 / 512)),
    ("adamw4bit", 2 * (0.5 + 4 / 128)),
    ("lion8bit", 1 + 4 / 256),
]


@pytest.mark.parametrize(("name", "each"), STATE)
def test_bytes_of_state_an_element(name: str, each: float) -> None:
    matrix = TensorInventory(blocks=(TensorBlock(tensors=(TensorSpec(shape=(512, 1024)),)),))
    spec = OptimizerSpec(name=name)  # type: ignore[arg-type]
    prediction = predict(Scenario(tensors=matrix, optimizers=(spec,)))
    codes = 2048 if name.endswith("8bit") else 0
    assert held(prediction, MemoryClass.OPTIMIZER_STATE) == pytest.approx(
        each * 512 * 1024 + codes, abs=1024
    )


def test_paged_state_is_not_on_the_device() -> None:
    spec = OptimizerSpec(name="adamw", paged=True)
    prediction = predict(Scenario(tensors=parameters_of(1_000_000), optimizers=(spec,)))
    assert held(prediction, MemoryClass.OPTIMIZER_STATE) == 0


def test_partitioned_states_are_whole_parameters() -> None:
    four = TensorInventory(blocks=(TensorBlock(tensors=(TensorSpec(shape=(1000,)),), repeat=4),))
    scenario = Scenario(
        tensors=four,
        optimizers=(OptimizerSpec(partitioned=True, implementation="fused"),),
        parallelism=Parallelism(strategy="ddp", world_size=2),
        device="cpu",
    )
    assert held(predict(scenario), MemoryClass.OPTIMIZER_STATE) == 2 * (2 * 4000 + 4)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_zero_table_of_seven_and_a_half_billion_on_64_ranks(stage: Any, gigabytes: float) -> None:
    nbytes = zero_model_states(7.5e9, 64, stage).nbytes
    assert nbytes / 1e9 == pytest.approx(gigabytes, rel=0.005)


def test_published_formulas() -> None:
    assert (
        layer_activations(tokens=2048, samples=1, hidden=12288, heads=96).nbytes
        == (34 + 80) * 2048 * 12288
    )
    assert round(double_quantisation_saves().nbytes, 3) == 0.373
    assert largest_model(32e9, 64, 0, 1).nbytes == 2e9
    assert deepspeed_estimate(1e9, 8, 2, "none").nbytes == 6e9
    assert deepspeed_estimate(1e9, 8, 3, "optimizer", 1e7).nbytes == 4e7 + 2.5e8


def test_cross_entropy_alone_holds_its_logits_five_times() -> None:
    logits = 4096 * 1000 * 4
    shape = Shape(rows=4096, width=1000, item_bytes=4)
    plain = kernel_peak("cross_entropy", "huggingface", shape, "A100").nbytes
    assert plain == 5 * logits + 8 * 4096
    assert kernel_peak("cross_entropy", "liger", shape, "A100").nbytes == logits + 8 * 4096
    with pytest.raises(ValueError, match="known are cross_entropy"):
        kernel_peak("jsd", "liger", shape, None)


ELEMENTS = 784_872
"""Parameters of the model that DeepSpeed's offload was run with."""


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_with_the_optimizer_on_the_host_holds_weights_and_two_buffers(stage: Any) -> None:
    """2.0 B a parameter on the device, and two buffers of the largest parameter."""
    largest = TensorSpec(shape=(128_000,), dtype="bfloat16")
    rest = TensorSpec(shape=(ELEMENTS - 128_000,), dtype="bfloat16")
    scenario = Scenario(
        tensors=TensorInventory(blocks=(TensorBlock(tensors=(largest, rest)),)),
        parallelism=Parallelism(strategy="zero", zero_stage=stage, world_size=2),
        offload=Offload(optimizer="cpu"),
        device="cpu",
    )
    idle = predict(scenario).phases[Phase.IDLE]
    assert idle.parameters == pytest.approx(2.0 * ELEMENTS, rel=1e-4)
    assert idle.communication == 2 * 2 * max(128_000, ELEMENTS - 128_000)
    assert (idle.gradients, idle.optimizer_state) == (0, 0)


def test_fsdp_with_parameters_on_the_host_holds_what_is_gathered() -> None:
    sharded = Parallelism(strategy="fsdp", world_size=2)
    scenario = training(parallelism=sharded, offload=Offload(parameters="cpu"))
    idle = predict(scenario).phases[Phase.IDLE]
    assert (idle.parameters, idle.gradients, idle.optimizer_state) == (0, 0, 0)
    assert held(predict(scenario), MemoryClass.COMMUNICATION, Phase.FORWARD) > 0


def test_a_seventy_billion_model_is_predicted_in_50_ms() -> None:
    large = decoder(layers=80, hidden=8192, heads=64, intermediate=28672, vocabulary=128_256)
    scenario = training(architecture=large, parallelism=Parallelism(strategy="fsdp", world_size=64))
    predict(scenario.replace(batch=BatchShape(micro_batch=1, sequence=256)))
    times = []
    for _ in range(5):
        started = time.process_time()
        predict(scenario)
        times.append(time.process_time() - started)
    assert min(times) < 0.05
