"""Parameters, gradients, optimizer state: the published conversions, and ZeRO to the digit."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from vramscope.profiler.analytic import (
    BatchShape,
    OptimizerSpec,
    Parallelism,
    Prediction,
    Scenario,
    TensorInventory,
    TensorSpec,
    fold,
    parameters_of,
    predict,
)
from vramscope.profiler.analytic.dtypes import quantisation_storages, weight_bytes
from vramscope.profiler.analytic.optimizers import eight_bit_storages
from vramscope.profiler.analytic.terms import unsplit_bytes
from vramscope.storage.records import MemoryClass, Phase

SEVEN_BILLION = 7_000_559_616


@pytest.mark.parametrize(
    ("dtype", "gib"),
    [("float32", 26.08), ("bfloat16", 13.04), ("int8", 6.52), ("nf4", 3.26), ("fp4", 3.26)],
)
def test_seven_billion_parameters(dtype: str, gib: float) -> None:
    assert round(weight_bytes(SEVEN_BILLION, dtype) / 2**30, 2) == gib


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [
        (OptimizerSpec(name="adamw"), 8),
        (OptimizerSpec(name="adam", amsgrad=True), 12),
        (OptimizerSpec(name="sgd", momentum=0.9), 4),
        (OptimizerSpec(name="sgd"), 0),
    ],
)
def test_training_state_in_fp32(optimizer: OptimizerSpec, bytes_per_parameter: int) -> None:
    idle = predict(Scenario(tensors=parameters_of(SEVEN_BILLION), optimizers=(optimizer,))).phases[
        Phase.IDLE
    ]
    one = 4 * SEVEN_BILLION + unsplit_bytes(4 * SEVEN_BILLION)
    assert idle.parameters == one
    assert idle.gradients == one
    assert idle.optimizer_state == bytes_per_parameter // 4 * one


@pytest.mark.parametrize(
    ("mebibytes", "kept"),
    [(8, 0), (9.5, 0), (10, 0), (10.5, 0), (11, 1), (43, 1), (129.5, 0.5), (270, 0)],
)
def test_a_block_keeps_what_is_too_small_to_split_off(mebibytes: float, kept: float) -> None:
    assert unsplit_bytes(int(mebibytes * 2**20)) == kept * 2**20


def test_eight_bit_adam_is_two_bytes_a_parameter_and_named_constants() -> None:
    prediction = predict(
        Scenario(
            tensors=parameters_of(SEVEN_BILLION), optimizers=(OptimizerSpec(name="adamw8bit"),)
        )
    )
    terms = {t.name: t.bytes for t in prediction.terms}
    moments = terms["first moment, 8-bit"] + terms["second moment, 8-bit"]
    assert moments == 2 * SEVEN_BILLION
    assert terms["scales of the first moment"] == 4 * -(-SEVEN_BILLION // 256)
    assert terms["code books of the 8-bit states"] == 2048


@pytest.mark.parametrize(
    ("numel", "expected"),
    # Read off bitsandbytes 0.50 tensors.
    [(4095, 8 * 4095), (4096, 2 * (4096 + 64)), (262144, 2 * (262144 + 4096)), (257, 2056)],
)
def test_eight_bit_state_of_one_tensor(numel: int, expected: int) -> None:
    kept = eight_bit_storages(TensorSpec(shape=(numel,)), paged=False)
    assert sum(s.nbytes for s in kept) == expected


@pytest.mark.parametrize(
    ("double", "expected"), [(False, 16384 // 2 + 4 * 256 + 64), (True, 8192 + 256 + 4 + 64 + 1028)]
)
def test_four_bit_weight_with_its_constants(double: bool, expected: int) -> None:
    constants = quantisation_storages(128, 128, "nf4", double_quantization=double)
    assert weight_bytes(128 * 128, "nf4") + sum(constants.values()) == expected


def toy() -> TensorInventory:
    """Embedding, four blocks of norm and MLP, head: 784,872 parameters."""
    shapes: list[tuple[int, ...]] = [(1000, 128)]
    for _ in range(4):
        shapes += [(128,), (128,), (512, 128), (512,), (128, 512), (128,)]
    shapes += [(1000, 128), (1000,)]
    return TensorInventory(blocks=fold([TensorSpec(shape=s, dtype="float32") for s in shapes]))


def in_half(inventory: TensorInventory) -> TensorInventory:
    specs = [TensorSpec(shape=t.shape, dtype="bfloat16") for t in inventory.ordered()]
    return TensorInventory(blocks=fold(specs))


def zero(stage: int, world: int, *, half: bool, accumulation: int = 1) -> Prediction:
    return predict(
        Scenario(
            tensors=in_half(toy()) if half else toy(),
            optimizers=(OptimizerSpec(implementation="for-loop"),),
            accumulation=accumulation,
            device="cpu",
            parallelism=Parallelism(
                strategy="zero",
                zero_stage=stage,  # type: ignore[arg-type]
                world_size=world,
                reduce_bucket_elements=200_000,
                persistence_threshold=10_000,
            ),
        )
    )


@pytest.mark.parametrize(
    ("half", "stage", "world", "expected"),
    # Bytes a parameter at the end of backward, measured with DeepSpeed 0.19 on a CPU, rank 0:
    # parameters, gradients, master weights, optimizer state.
    [
        (True, 1, 2, (2.000, 1.166, 2.000, 4.000)),
        (True, 2, 2, (2.000, 1.166, 2.000, 4.000)),
        (True, 3, 2, (1.012, 1.000, 2.000, 4.000)),
        (True, 1, 4, (2.000, 0.662, 1.000, 2.000)),
        (True, 3, 4, (0.512, 0.500, 1.000, 2.000)),
        (False, 1, 2, (4.000, 2.333, 2.000, 4.000)),
        (False, 3, 2, (2.023, 2.000, 2.000, 4.000)),
        (False, 1, 4, (4.000, 1.324, 1.000, 2.000)),
        (False, 3, 4, (1.023, 1.000, 1.000, 2.000)),
    ],
)
def test_zero_matches_deepspeed(
    half: bool, stage: int, world: int, expected: tuple[float, ...]
) -> None:
    prediction = zero(stage, world, half=half)
    backward = prediction.phases[Phase.BACKWARD]
    assert backward.optimizer_state is not None
    parts = (
        backward.parameters,
        backward.gradients,
        prediction.master_weights,
        backward.optimizer_state - prediction.master_weights,
    )
    numel = toy().numel
    assert numel == 784_872
    assert [round((p or 0) / numel, 3) for p in parts] == pytest.approx(expected, abs=0.6e-3)


@pytest.mark.parametrize(
    ("half", "world", "step_peak"), [(True, 2, 14.0), (False, 2, 16.0), (True, 4, 8.0)]
)
def test_zero_step_peak(half: bool, world: int, step_peak: float) -> None:
    allocated = zero(1, world, half=half).phases[Phase.OPTIMIZER].allocated
    assert allocated is not None
    assert allocated / toy().numel == pytest.approx(step_peak, abs=0.005)


def test_zero_1_keeps_whole_gradients_between_micro_steps() -> None:
    forward = zero(1, 2, half=True, accumulation=2).phases[Phase.FORWARD]
    assert forward.gradients == 2 * toy().numel
    assert forward.communication == 2 * 200_000


def test_ranks_of_zero_differ_by_whole_parameters() -> None:
    def gradients(rank: int) -> int | None:
        scenario = Scenario(
            tensors=toy(),
            parallelism=Parallelism(strategy="zero", zero_stage=2, world_size=4, rank=rank),
        )
        return predict(scenario).phases[Phase.BACKWARD].gradients

    assert gradients(0) != gradients(1)


def test_master_weights_are_four_bytes_of_optimizer_state() -> None:
    prediction = predict(
        Scenario(
            tensors=in_half(toy()), master_weights=True, device="cpu", optimizers=(OptimizerSpec(),)
        )
    )
    numel = toy().numel
    idle = prediction.phases[Phase.IDLE]
    steps = 4 * sum(1 for _ in toy().ordered())
    assert prediction.master_weights == 4 * numel
    assert idle.parameters == 2 * numel
    assert idle.optimizer_state == 12 * numel + steps


def test_ddp_buckets_are_as_large_as_the_gradients_unless_they_are_views() -> None:
    def ddp(view: bool) -> Prediction:
        parallelism = Parallelism(strategy="ddp", world_size=2, bucket_view=view)
        return predict(Scenario(tensors=toy(), device="cpu", parallelism=parallelism))

    assert ddp(False).phases[Phase.IDLE].communication == 4 * toy().numel
    assert ddp(True).phases[Phase.IDLE].communication == 0
    assert ddp(True).phases[Phase.FORWARD].gradients == 4 * toy().numel


def test_peak_is_the_largest_phase_and_terms_add_up_to_it() -> None:
    prediction = predict(gpt_scenario())
    allocated = {p: use.allocated or 0 for p, use in prediction.phases.items()}
    assert prediction.peak_phase is not None
    assert prediction.peak.allocated == max(allocated.values()) == allocated[prediction.peak_phase]
    at_peak = [t for t in prediction.terms if "(only in" not in t.name]
    for memory_class in MemoryClass:
        of_class = sum(t.bytes for t in at_peak if t.memory_class is memory_class)
        assert of_class == prediction.peak.of(memory_class)
    assert prediction.peak.attributed == prediction.peak.allocated
    assert all(t.formula and t.source for t in prediction.terms)


def gpt_scenario(**changes: object) -> Scenario:
    return Scenario.from_mapping(
        {
            "architecture": {
                "family": "gpt2",
                "layers": 48,
                "hidden": 1600,
                "heads": 25,
                "intermediate": 6400,
                "vocabulary": 50257,
                "positions": 1024,
                "activation": "gelu_new",
                "attention_bias": True,
                "output_bias": True,
                "mlp_bias": True,
                "norm_bias": True,
                "residual_dropout": 0.1,
            },
            "batch": {"micro_batch": 4, "sequence": 1024},
            **changes,
        }
    )


def test_classes_on_cuda_are_rounded_to_blocks() -> None:
    tensors = parameters_of(3 * 100, count=3)
    cuda = predict(Scenario(tensors=tensors)).phases[Phase.IDLE]
    cpu = predict(Scenario(tensors=tensors, device="cpu")).phases[Phase.IDLE]
    assert (cpu.parameters, cuda.parameters) == (1200, 3 * 512)


def test_step_counters_are_on_the_device_only_where_they_are() -> None:
    def state(device: str, **changes: object) -> int | None:
        optimizer = OptimizerSpec(**changes)  # type: ignore[arg-type]
        scenario = Scenario(
            tensors=parameters_of(256, count=2),
            optimizers=(optimizer,),
            device=device,  # type: ignore[arg-type]
        )
        return predict(scenario).phases[Phase.IDLE].optimizer_state

    assert state("cpu") == 8 * 256 + 2 * 4
    assert state("cuda") == 4 * 512
    assert state("cuda", implementation="fused") == 4 * 512 + 2 * 512
    assert state("cuda", capturable=True) == 4 * 512 + 2 * 512


def test_unknown_optimizer_leaves_its_state_unknown() -> None:
    prediction = predict(
        Scenario(
            tensors=parameters_of(100),
            optimizers=(OptimizerSpec(name="other", class_name="Muon"),),
        )
    )
    idle = prediction.phases[Phase.IDLE]
    assert idle.optimizer_state is None
    assert idle.allocated is None
    assert any("Muon" in note for note in prediction.not_modelled)


def test_unknown_activations_are_none_and_said() -> None:
    prediction = predict(Scenario(tensors=parameters_of(100), activations_unknown="it is a toy"))
    assert prediction.phases[Phase.FORWARD].activations is None
    assert prediction.phases[Phase.IDLE].allocated is not None
    assert prediction.peak_phase is None
    assert prediction.peak_low is not None
    assert "activations: it is a toy" in prediction.not_modelled


def test_record_carries_the_scenario() -> None:
    record = predict(gpt_scenario()).to_record(2)
    assert record.device == 2
    assert Scenario.from_mapping(dict(record.scenario)) == gpt_scenario()


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_prediction_takes_less_than_50_ms(checkpointing: str) -> None:
    scenario = gpt_scenario(checkpointing=checkpointing)
    predict(scenario.replace(batch=BatchShape(micro_batch=2, sequence=512)))
    times = []
    for _ in range(5):
        started = time.process_time()
        predict(scenario)
        times.append(time.process_time() - started)
    assert min(times) < 0.05


def test_importing_the_formulas_loads_no_torch() -> None:
    code = (
        "import sys, vramscope.profiler.analytic as a; "
        "a.predict(a.Scenario(tensors=a.parameters_of(10))); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
