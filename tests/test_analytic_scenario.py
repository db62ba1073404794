"""A scenario is checked on construction, and reads and writes plain mappings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from vramscope.profiler.analytic import (
    BatchShape,
    DecoderArchitecture,
    LoraSpec,
    Offload,
    OptimizerSpec,
    Parallelism,
    Scenario,
    TensorBlock,
    TensorInventory,
    TensorSpec,
    fold,
    from_hf_config,
    parameters_of,
    predict,
    read_scenario_file,
    scenario_schema,
)
from vramscope.storage.records import MemoryClass


def gpt(**changes: Any) -> DecoderArchitecture:
    values: dict[str, Any] = {
        "family": "nanogpt",
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "intermediate": 256,
        "vocabulary": 97,
        "positions": 32,
        **changes,
    }
    return DecoderArchitecture(**values)


def full_scenario() -> Scenario:
    return Scenario(
        architecture=gpt(residual_dropout=0.1),
        tensors=parameters_of(1000, count=3),
        autocast="bfloat16",
        optimizers=(OptimizerSpec(name="sgd", momentum=0.9), OptimizerSpec(amsgrad=True)),
        batch=BatchShape(micro_batch=4, sequence=32),
        accumulation=2,
        checkpointing="full",
        attention="eager",
        device="cpu",
        parallelism=Parallelism(strategy="zero", zero_stage=2, world_size=4, rank=3),
    )


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Scenario(), ["architecture", "tensors"]),
        (lambda: gpt(layers=0), ["layers", "0", "at least 1"]),
        (lambda: gpt(layers=True), ["layers", "True", "whole number"]),
        (lambda: gpt(heads=3), ["heads=3", "divide", "64"]),
        (lambda: gpt(kv_heads=3), ["kv_heads=3", "divide"]),
        (lambda: gpt(family="eliza"), ["family", "eliza", "one of", "llama"]),
        (lambda: gpt(residual_dropout=1.5), ["residual_dropout", "1.5", "below"]),
        (lambda: BatchShape(micro_batch=0), ["micro_batch", "0", "at least 1"]),
        (lambda: BatchShape(micro_batch=1, sequence=-4), ["sequence", "-4"]),
        (lambda: OptimizerSpec(name="adamx"), ["name", "adamx", "adamw8bit"]),
        (lambda: Parallelism(strategy="zero", rank=2, world_size=2), ["rank=2", "world_size=2"]),
        (lambda: Parallelism(zero_stage=2), ["zero_stage=2", "strategy"]),
        (lambda: Parallelism(world_size=2), ["world_size=2", "ddp"]),
        (lambda: hybrid(replicas=3), ["replicas=3", "divide", "world_size=8"]),
        (lambda: hybrid(context_parallel=16), ["context_parallel=16", "world_size=8"]),
        (lambda: hybrid(fsdp_version=3), ["fsdp_version", "3", "1, 2"]),
        (lambda: Offload(optimizer="disk"), ["optimizer", "disk", "nvme"]),
        (lambda: Offload(optimizer_share=1.5), ["optimizer_share", "1.5"]),
        (lambda: LoraSpec(rank=0), ["rank", "0", "at least 1"]),
        (lambda: TensorSpec(shape=(3,), dtype="f32"), ["dtype", "f32", "float32"]),
        (lambda: TensorSpec(shape=(-1,)), ["shape", "-1", "at least 0"]),
        (
            lambda: Scenario(
                tensors=TensorInventory(
                    blocks=(TensorBlock(tensors=(TensorSpec(shape=(2,), optimizer=1),)),)
                )
            ),
            ["optimizer=1", "below 1"],
        ),
    ],
)
def test_wrong_value_names_field_value_and_what_is_allowed(build: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        build()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], ["mapping"]),
        ({"architektur": {}}, ["architektur", "architecture"]),
        ({"tensors": {"blocks": [{"tensors": [{}]}]}}, ["tensors.blocks[0].tensors[0]", "shape"]),
        (
            {"tensors": {"blocks": []}, "optimizers": [{"name": "adam"}, {"name": "x"}]},
            ["optimizers[1].name", "'x'", "one of"],
        ),
        ({"tensors": {"blocks": []}, "autocast": 16}, ["autocast=16", "bfloat16", "null"]),
        ({"tensors": {"blocks": []}, "accumulation": "2"}, ["accumulation='2'", "whole number"]),
        (
            {"tensors": {"blocks": []}, "batch": {"micro_batch": 0}},
            ["batch", "micro_batch=0", "at least 1"],
        ),
    ],
)
def test_wrong_mapping_names_the_path(data: object, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Scenario.from_mapping(data)
    for word in words:
        assert word in str(caught.value)


def test_mapping_round_trip_through_json() -> None:
    scenario = full_scenario()
    assert Scenario.from_mapping(json.loads(json.dumps(scenario.to_mapping()))) == scenario


def test_aliases_are_read() -> None:
    scenario = Scenario.from_mapping(
        {"architecture": gpt_mapping(), "weight_dtype": "fp16", "autocast": "bf16"}
    )
    assert (scenario.weight_dtype, scenario.autocast) == ("float16", "bfloat16")


def gpt_mapping() -> dict[str, object]:
    return Scenario(architecture=gpt()).to_mapping()["architecture"]  # type: ignore[return-value]


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_file_round_trip(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"scenario{suffix}"
    mapping = full_scenario().to_mapping()
    path.write_text(json.dumps(mapping) if suffix == ".json" else yaml.safe_dump(mapping))
    assert read_scenario_file(path) == full_scenario()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["not valid"]),
        ("batch: {micro_batch: 2}", ["architecture"]),
        ("[1, 2]", ["mapping"]),
    ],
)
def test_bad_file_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.yaml") as caught:
        read_scenario_file(path)
    for word in words:
        assert word in str(caught.value)


def test_missing_file_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such file"):
        read_scenario_file(tmp_path / "absent.yaml")


def test_schema_accepts_what_is_written_and_refuses_what_is_not() -> None:
    schema = scenario_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(full_scenario().to_mapping(), schema)
    for wrong in ({}, {"tensors": {"blocks": []}, "device": "tpu"}, {"tensors": {}, "x": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_every_field_has_a_sentence() -> None:
    def walk(node: Any) -> None:
        for name, entry in node.get("properties", {}).items():
            assert entry["description"], name
        for child in node.values():
            for inner in child if isinstance(child, list) else [child]:
                if isinstance(inner, dict):
                    walk(inner)

    walk(scenario_schema())


SMALL = {
    "gpt2": {
        "model_type": "gpt2",
        "n_layer": 3,
        "n_head": 4,
        "n_embd": 32,
        "n_positions": 48,
        "vocab_size": 101,
    },
    **{
        family: {
            "model_type": family,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_size": 32,
            "head_dim": 16,
            "intermediate_size": 88,
            "vocab_size": 101,
            **extra,
        }
        for family, extra in {
            "llama": {"attention_bias": True, "mlp_bias": True},
            "mistral": {},
            "qwen2": {"tie_word_embeddings": True},
            "qwen3": {"tie_word_embeddings": True, "attention_bias": True},
        }.items()
    },
}


@pytest.mark.parametrize("family", SMALL)
def test_parameters_and_buffers_of_hf_models_are_exact(family: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**SMALL[family])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    scenario = Scenario(architecture=from_hf_config(SMALL[family]))
    live = [tuple(sorted(p.shape)) for p in model.parameters()]
    assert [tuple(sorted(t.shape)) for t in scenario.inventory.ordered()] == live
    assert sum(scenario.inventory.buffers) == sum(b.nbytes for b in model.buffers())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mixtral"}, ["mixtral", "llama"]),
        ({}, ["None"]),
        ({"model_type": "llama"}, ["num_attention_heads"]),
        ({**SMALL["llama"], "hidden_act": "mish"}, ["mish", "silu"]),
        ({**SMALL["gpt2"], "add_cross_attention": True}, ["add_cross_attention"]),
        ({**SMALL["llama"], "vocab_size": "many"}, ["vocab_size", "many"]),
    ],
)
def test_unknown_hf_config_is_refused_in_words(config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        from_hf_config(config)
    for word in words:
        assert word in str(caught.value)


def write_config(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**SMALL["llama"], **changes}))
    return path


def test_hf_config_file_takes_its_dtype(tmp_path: Path) -> None:
    path = write_config(tmp_path, torch_dtype="bfloat16", architectures=["LlamaForCausalLM"])
    scenario = read_scenario_file(path)
    assert (scenario.weight_dtype, scenario.model_class) == ("bfloat16", "LlamaForCausalLM")
    assert scenario.architecture is not None


def test_bitsandbytes_keeps_the_architecture_and_other_methods_the_tensors(tmp_path: Path) -> None:
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    scenario = read_scenario_file(write_config(tmp_path, quantization_config=four))
    assert (scenario.weight_dtype, scenario.double_quantization) == ("nf4", True)
    fp8 = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    scenario = read_scenario_file(write_config(tmp_path, quantization_config=fp8))
    assert scenario.architecture is None
    assert "fp8" in (scenario.activations_unknown or "")


def test_other_architectures_give_tensors_and_say_what_is_not_modelled(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 2}))
    scenario = read_scenario_file(path)
    assert scenario.architecture is None
    assert "bert" in (scenario.activations_unknown or "")
    prediction = predict(scenario)
    assert prediction.peak.parameters == prediction.peak.gradients
    assert prediction.peak_phase is None


def hybrid(**changes: Any) -> Parallelism:
    values: dict[str, Any] = {"strategy": "fsdp", "world_size": 8, "replicas": 2, **changes}
    return Parallelism(**values)


def test_devices_and_data_parallel_ones() -> None:
    parallelism = hybrid(tensor_parallel=2, context_parallel=2, sequence_parallel=2)
    assert (parallelism.devices, parallelism.data_parallel) == (16, 2)


NOT_COVERED: list[tuple[dict[str, Any], str, MemoryClass]] = [
    (
        {"parallelism": Parallelism(strategy="ddp", world_size=2, expert_parallel=2)},
        "expert_parallel=2",
        MemoryClass.PARAMETERS,
    ),
    (
        {"parallelism": Parallelism(strategy="zero", zero_stage=3, world_size=2, hpz_partition=2)},
        "hpz_partition=2",
        MemoryClass.PARAMETERS,
    ),
    (
        {"offload": Offload(optimizer="cpu", optimizer_share=0.5)},
        "offload.optimizer_share=0.5",
        MemoryClass.OPTIMIZER_STATE,
    ),
    ({"offload": Offload(parameters="nvme")}, "offload.parameters=nvme", MemoryClass.PARAMETERS),
    ({"offload": Offload(activations=True)}, "offload.activations", MemoryClass.ACTIVATIONS),
]


@pytest.mark.parametrize(("changes", "words", "unknown"), NOT_COVERED)
def test_what_is_not_modelled_is_named_and_its_classes_are_unknown(
    changes: dict[str, Any], words: str, unknown: MemoryClass
) -> None:
    scenario = Scenario(architecture=gpt(), batch=BatchShape(micro_batch=2, sequence=16), **changes)
    assert Scenario.from_mapping(json.loads(json.dumps(scenario.to_mapping()))) == scenario
    jsonschema.validate(scenario.to_mapping(), scenario_schema())
    prediction = predict(scenario)
    assert any(note.startswith(words) or words in note for note in prediction.not_modelled)
    assert all(getattr(use, unknown.value) is None for use in prediction.phases.values())
    assert (prediction.peak_phase, prediction.peak_high) == (None, None)


def test_fold_keeps_order_and_finds_layers() -> None:
    layer = [TensorSpec(shape=(n,)) for n in (3, 3, 5, 3)]
    tensors = [TensorSpec(shape=(7,)), *layer * 6, TensorSpec(shape=(2,))]
    blocks = fold(tensors)
    assert [b.repeat for b in blocks] == [1, 6, 1]
    assert list(TensorInventory(blocks=blocks).ordered()) == tensors
