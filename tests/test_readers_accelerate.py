"""accelerate configurations, and files of several kinds as one scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from vramscope.profiler.analytic import Known, Scenario, predict, read_scenario_files
from vramscope.profiler.analytic.readers.accelerate import read_accelerate
from vramscope.profiler.analytic.readers.settings import Settings

Config = dict[str, Any]
HERE = Path()

LLAMA: Config = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 200,
    "torch_dtype": "bfloat16",
}


def read(config: Config, **known: Any) -> Settings:
    return read_accelerate(config, HERE, Known(**known))


def fsdp(processes: int = 8, **said: Any) -> Config:
    return {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "num_processes": processes,
        "fsdp_config": said,
    }


def test_one_device_and_an_unquoted_no() -> None:
    for kind in ("NO", False, None):
        made = read({"distributed_type": kind, "mixed_precision": False, "num_processes": 1})
        assert made.parallelism == {"strategy": "none", "world_size": 1}
        assert "autocast" not in made.fields


def test_ddp_on_several_machines() -> None:
    config = {"distributed_type": "MULTI_GPU", "num_processes": 16, "num_machines": 2}
    made = read({**config, "mixed_precision": "fp16"})
    assert made.parallelism == {"strategy": "ddp", "world_size": 16}
    assert made.fields == {"autocast": "float16"}


def test_ddp_on_cpus() -> None:
    made = read({"distributed_type": "MULTI_CPU", "num_processes": 4, "use_cpu": True})
    assert made.fields["device"] == "cpu"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            {"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_backward_prefetch": "BACKWARD_PRE"},
            {"fsdp_version": 1, "fsdp_sharding": "full", "backward_prefetch": "pre"},
        ),
        ({"sharding_strategy": 2}, {"fsdp_sharding": "gradients"}),
        ({"fsdp_sharding_strategy": "NO_SHARD"}, {"fsdp_sharding": "none"}),
        ({"fsdp_reshard_after_forward": "SHARD_GRAD_OP"}, {"fsdp_sharding": "gradients"}),
        (
            {"fsdp_version": 2, "fsdp_reshard_after_forward": False},
            {"fsdp_version": 2, "fsdp_sharding": "gradients", "backward_prefetch": "pre"},
        ),
        (
            {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_forward_prefetch": True},
            {"fsdp_units": "blocks", "forward_prefetch": True},
        ),
        (
            {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 2000},
            {"fsdp_units": "size", "fsdp_unit_elements": 2000},
        ),
        ({"min_num_params": 2000}, {"fsdp_units": "size", "fsdp_unit_elements": 2000}),
        ({"fsdp_auto_wrap_policy": "NO_WRAP"}, {"fsdp_units": "model"}),
    ],
)
def test_fsdp_of_every_version(said: Config, expected: Config) -> None:
    made = read(fsdp(**said))
    assert made.parallelism["strategy"] == "fsdp"
    assert made.parallelism["world_size"] == 8
    assert {k: made.parallelism[k] for k in expected} == expected
    assert made.fields["weight_dtype"] == "float32"


def test_fsdp_hybrid_offload_and_checkpointing() -> None:
    said = {"fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_offload_params": True}
    made = read({**fsdp(**said, fsdp_activation_checkpointing=True), "num_machines": 2})
    assert made.parallelism["replicas"] == 2
    assert made.offload == {"parameters": "cpu", "optimizer": "cpu"}
    assert made.fields["checkpointing"] == "full"


def mesh(**degrees: int) -> Config:
    return {f"parallelism_config_{name}_size": value for name, value in degrees.items()}


def test_degrees_of_a_mesh() -> None:
    config = {**fsdp(16, fsdp_version=2), "parallelism_config": mesh(dp_replicate=2, dp_shard=2)}
    config["parallelism_config"] |= mesh(tp=2, cp=2)
    made = read(config).parallelism
    assert (made["world_size"], made["replicas"]) == (8, 2)
    assert (made["tensor_parallel"], made["context_parallel"]) == (2, 2)
    assert Scenario.from_mapping({"tensors": {"blocks": []}, "parallelism": made})


def test_sequence_parallelism_under_deepspeed() -> None:
    config = {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 3},
        "mixed_precision": "bf16",
        "num_processes": 4,
        "parallelism_config": mesh(dp_shard=2, sp=2),
    }
    made = read(config)
    assert made.parallelism["zero_stage"] == 3
    assert (made.parallelism["world_size"], made.parallelism["sequence_parallel"]) == (4, 2)
    assert made.fields["weight_dtype"] == "bfloat16"


def test_megatron_and_tensor_parallelism() -> None:
    said = {"megatron_lm_tp_degree": 2, "megatron_lm_pp_degree": 2}
    made = read(
        {"distributed_type": "MEGATRON_LM", "num_processes": 8, "megatron_lm_config": said}
    ).parallelism
    assert (made["world_size"], made["tensor_parallel"], made["pipeline_parallel"]) == (2, 2, 2)
    alone = read({"distributed_type": "TP", "num_processes": 4, "tp_config": {"tp_size": 4}})
    assert (alone.parallelism["world_size"], alone.parallelism["tensor_parallel"]) == (1, 4)


def test_fp8_and_compiling_are_named() -> None:
    config = {"distributed_type": "NO", "mixed_precision": "fp8", "fp8_config": {"backend": "TE"}}
    made = read({**config, "dynamo_config": {"dynamo_backend": "INDUCTOR"}})
    assert made.fields["autocast"] == "bfloat16"
    notes = "\n".join(made.notes)
    assert "fp8" in notes
    assert "dynamo_config" in notes


def test_deepspeed_inline_with_offload() -> None:
    said = {
        "zero_stage": 2,
        "offload_optimizer_device": "cpu",
        "offload_param_device": "none",
        "gradient_accumulation_steps": 16,
    }
    config = {"distributed_type": "DEEPSPEED", "deepspeed_config": said, "num_processes": 2}
    made = read({**config, "mixed_precision": "no"})
    assert made.offload == {"optimizer": "cpu"}
    assert made.fields["accumulation"] == 16
    assert made.fields["weight_dtype"] == "float32"


def write(path: Path, config: Config) -> Path:
    path.write_text(json.dumps(config) if path.suffix == ".json" else yaml.safe_dump(config))
    return path


def test_a_deepspeed_file_is_found_beside_the_yaml(tmp_path: Path) -> None:
    write(tmp_path / "ds.json", {"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}})
    said = {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "ds.json"},
    }
    path = write(tmp_path / "a.yaml", {**said, "mixed_precision": "bf16", "num_processes": 2})
    scenario = read_scenario_files([write(tmp_path / "config.json", LLAMA), path])
    assert (scenario.parallelism.zero_stage, scenario.parallelism.world_size) == (1, 2)
    assert scenario.weight_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"distributed_type": "XLA"}, ["distributed_type='XLA'", "TPU"]),
        ({"distributed_type": "RING"}, ["distributed_type='RING'", "FSDP", "DEEPSPEED"]),
        ({"mixed_precision": "int4"}, ["mixed_precision='int4'", "bf16"]),
        ({"compute_environment": "AMAZON_SAGEMAKER"}, ["AMAZON_SAGEMAKER"]),
        ({"distributed_type": "NO", "num_processes": 4}, ["num_processes=4", "NO"]),
        (fsdp(fsdp_version=3), ["fsdp_config.fsdp_version=3", "1 or 2"]),
        (fsdp(fsdp_sharding_strategy="SOME"), ["fsdp_sharding_strategy='SOME'", "full_shard"]),
        (
            {**fsdp(8), "parallelism_config": mesh(dp_shard=2, tp=2)},
            ["dp_shard 2 × tp 2 = 4", "num_processes=8"],
        ),
        (
            {
                "distributed_type": "DEEPSPEED",
                "deepspeed_config": {"deepspeed_config_file": "absent.json"},
            },
            ["deepspeed_config_file='absent.json'", "tried"],
        ),
    ],
)
def test_wrong_values_name_field_value_and_what_is_allowed(
    config: Config, words: list[str]
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read(config)
    for word in words:
        assert word in str(caught.value)


def test_model_and_launcher_together(tmp_path: Path) -> None:
    model = write(tmp_path / "config.json", LLAMA)
    launcher = write(
        tmp_path / "ds.json",
        {
            "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
            "fp16": {"enabled": True},
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "Adam"},
        },
    )
    scenario = read_scenario_files([launcher, model], known=Known(devices=4))
    assert scenario.weight_dtype == "float16"
    assert scenario.parallelism.reduce_bucket_elements == 64 * 64
    assert scenario.batch is not None
    assert scenario.batch.micro_batch == 2
    parameters = predict(scenario).phases
    assert all(use.parameters is not None for use in parameters.values())


def test_later_files_win(tmp_path: Path) -> None:
    model = write(tmp_path / "config.json", LLAMA)
    first = write(tmp_path / "a.yaml", {"distributed_type": "MULTI_GPU", "num_processes": 2})
    second = write(tmp_path / "b.json", {"zero_optimization": {"stage": 2}})
    scenario = read_scenario_files([model, first, second], known=Known(devices=8))
    assert (scenario.parallelism.strategy, scenario.parallelism.world_size) == ("zero", 8)


def test_a_quantised_checkpoint_stays_quantised(tmp_path: Path) -> None:
    said = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    model = write(tmp_path / "config.json", {**LLAMA, "quantization_config": said})
    launcher = write(tmp_path / "ds.json", {"bf16": {"enabled": True}})
    assert read_scenario_files([model, launcher]).weight_dtype == "nf4"
    assert read_scenario_files([model], weight_dtype="bfloat16").weight_dtype == "bfloat16"


def test_a_scenario_with_a_launcher(tmp_path: Path) -> None:
    tensors = {"blocks": [{"tensors": [{"shape": [8, 8]}]}]}
    model = write(tmp_path / "scenario.yaml", {"tensors": tensors})
    launcher = write(tmp_path / "ds.json", {"bf16": {"enabled": True}})
    scenario = read_scenario_files([model, launcher])
    assert any("carry their own types" in note for note in scenario.notes)


@pytest.mark.parametrize("names", [[], ["ds.json"], ["config.json", "other.json"]])
def test_exactly_one_file_gives_the_model(names: list[str], tmp_path: Path) -> None:
    write(tmp_path / "ds.json", {"zero_optimization": {"stage": 2}})
    for name in ("config.json", "other.json"):
        write(tmp_path / name, LLAMA)
    with pytest.raises(ValueError, match="model"):
        read_scenario_files([tmp_path / name for name in names])
