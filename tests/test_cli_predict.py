from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from vramscope.app.cli.scenario_flags import PRECISIONS, ScenarioFlags
from vramscope.profiler.analytic import DecoderArchitecture, Scenario, from_hf_config
from vramscope.storage.records import MEMORY_LINES

CONFIG: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def architecture() -> DecoderArchitecture:
    return from_hf_config(CONFIG)


def test_a_table_by_class_and_phase(config: Path, vramscope: Callable[..., Any]) -> None:
    shown = vramscope("predict", "--model", config, "--micro-batch", 2, "--sequence", 64)
    assert shown.code == 0
    head = next(line for line in shown.out.splitlines() if "forward" in line).split()
    assert head[-5:] == ["forward", "backward", "optimizer", "step", "end"]
    assert "Optimizer state" in shown.out
    assert "Sizes in MiB (2²⁰ bytes)" in shown.out
    assert "Peak: " in shown.out


def test_json_gives_bytes_by_class(config: Path, vramscope: Callable[..., Any]) -> None:
    arguments = ("--model", config, "--optimizer", "sgd", "--momentum", 0.9, "--device", "cpu")
    document = json.loads(vramscope("predict", *arguments, "--json").out)
    end = document["phases"]["idle"]
    assert set(end) == set(MEMORY_LINES)
    assert end["parameters"] == end["gradients"] == end["optimizer_state"]
    assert document["method"] == "analytic"
    assert document["scenario"]["optimizers"] == [{"name": "sgd", "momentum": 0.9}]


def test_terms_hold_formula_and_source(config: Path, vramscope: Callable[..., Any]) -> None:
    shown = vramscope("predict", "--model", config, "--terms").out
    assert "Formula" in shown
    assert "Source" in shown
    assert "torch" in shown


def test_a_scenario_file_is_read_and_changed(
    config: Path, vramscope: Callable[..., Any], tmp_path: Path
) -> None:
    scenario = Scenario(architecture=architecture(), weight_dtype="bfloat16")
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario.to_mapping()))
    plain = json.loads(vramscope("predict", path, "--json").out)
    full = json.loads(vramscope("predict", path, "--precision", "fp32", "--json").out)
    ratio = full["phases"]["idle"]["parameters"] / plain["phases"]["idle"]["parameters"]
    assert ratio == pytest.approx(2, rel=0.01)


def test_the_schema_accepts_what_the_command_reads(vramscope: Callable[..., Any]) -> None:
    schema = json.loads(vramscope("predict", "--schema").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(Scenario(architecture=architecture()).to_mapping(), schema)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dtype", "int3"), ("weight_dtype", "int3", "nf4")),
        (("--optimizer", "adamax"), ("adamax", "adamw8bit")),
        (("--zero-stage", "0", "--devices", "1", "--attention", "eager"), ()),
    ],
)
def test_a_wrong_value_names_the_field_and_what_is_allowed(
    arguments: tuple[str, ...], words: tuple[str, ...], config: Path, vramscope: Callable[..., Any]
) -> None:
    shown = vramscope("predict", "--model", config, *arguments)
    assert shown.code == (11 if words else 0)
    assert "Traceback" not in shown.err
    for word in words:
        assert word in shown.err


@pytest.mark.parametrize("content", ["", "[1]", "{", "model_type: nobody\n", "bogus: 1\n"])
def test_a_file_that_is_no_scenario_is_named(
    content: str, vramscope: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(content)
    shown = vramscope("predict", path)
    assert shown.code == 11
    assert str(path) in shown.err
    assert shown.err.count("\n") <= 6


def test_a_missing_file_is_named(vramscope: Callable[..., Any], tmp_path: Path) -> None:
    shown = vramscope("predict", tmp_path / "none.yaml")
    assert shown.code == 11
    assert "none.yaml" in shown.err


def write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_a_model_and_a_launchers_file_are_one_setup(
    config: Path, vramscope: Callable[..., Any], tmp_path: Path
) -> None:
    zero = {"stage": 3, "reduce_bucket_size": "auto"}
    launcher = write(tmp_path / "ds.json", {"zero_optimization": zero, "bf16": {"enabled": True}})
    document = json.loads(vramscope("predict", config, launcher, "--devices", 4, "--json").out)
    parallelism = document["scenario"]["parallelism"]
    assert (parallelism["world_size"], parallelism["reduce_bucket_elements"]) == (4, 256 * 256)
    assert document["scenario"]["weight_dtype"] == "bfloat16"
    shown = vramscope("predict", "--model", config, launcher, "--devices", 4).out
    assert "reduce_bucket_size: auto" in shown


def test_devices_are_shared_by_tensor_parallelism(
    config: Path, vramscope: Callable[..., Any], tmp_path: Path
) -> None:
    mesh = {"parallelism_config_dp_shard_size": 4, "parallelism_config_tp_size": 2}
    launcher = write(
        tmp_path / "accelerate.json",
        {"distributed_type": "FSDP", "num_processes": 8, "parallelism_config": mesh},
    )
    shown = vramscope("predict", config, launcher, "--devices", 8, "--json")
    document = json.loads(shown.out)
    parallelism = document["scenario"]["parallelism"]
    assert (parallelism["world_size"], parallelism["tensor_parallel"]) == (4, 2)


def test_the_models_counts_are_told(vramscope: Callable[..., Any], tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    path = write(tmp_path / "config.json", {"model_type": "bert", "vocab_size": 100, **sizes})
    document = json.loads(vramscope("predict", path, "--json").out)["model"]
    twice = document["parameters_with_tied_counted_twice"] - document["parameters"]
    assert twice == 100 * 64 + 100
    assert document["buffers"] == 2 * 512
    assert f"{document['parameters']:,} parameters" in vramscope("predict", path).out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"zero_optimization": {"stage": 7}}, ("stage=7", "0, 1, 2, 3")),
        ({"model_type": "llama"}, ("each gives a model",)),
    ],
)
def test_a_wrong_second_file_is_named(
    content: dict[str, Any],
    words: tuple[str, ...],
    config: Path,
    vramscope: Callable[..., Any],
    tmp_path: Path,
) -> None:
    other = write(tmp_path / "other.json", content)
    shown = vramscope("predict", config, other)
    assert shown.code == 11
    for word in ("other.json", *words):
        assert word in shown.err


def test_a_dry_run_takes_one_file(config: Path, vramscope: Callable[..., Any]) -> None:
    shown = vramscope("predict", config, config, "--dry-run")
    assert shown.code == 2
    assert "one file" in shown.err


BASE = Scenario(architecture=architecture())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (ScenarioFlags(), {}),
        (
            ScenarioFlags(precision="bf16-mixed"),
            {"weight_dtype": "float32", "autocast": "bfloat16"},
        ),
        (
            ScenarioFlags(precision="bf16", master_weights=True),
            {"weight_dtype": "bfloat16", "master_weights": True},
        ),
        (ScenarioFlags(precision="bf16", dtype="nf4"), {"weight_dtype": "nf4"}),
        (ScenarioFlags(dtype="bf16"), {"weight_dtype": "bfloat16"}),
        (ScenarioFlags(accumulation=4, checkpointing="full"), {"accumulation": 4}),
    ],
)
def test_flags_change_the_scenario(flags: ScenarioFlags, expected: dict[str, object]) -> None:
    changed = flags.apply(BASE)
    for field, value in expected.items():
        assert getattr(changed, field) == value


@pytest.mark.parametrize(
    ("flags", "strategy", "devices", "stage"),
    [
        (ScenarioFlags(devices=4), "ddp", 4, 0),
        (ScenarioFlags(devices=8, zero_stage=3), "zero", 8, 3),
        (ScenarioFlags(zero_stage=2), "zero", 1, 2),
        (ScenarioFlags(devices=1), "none", 1, 0),
    ],
)
def test_devices_and_stage_choose_the_strategy(
    flags: ScenarioFlags, strategy: str, devices: int, stage: int
) -> None:
    found = flags.apply(BASE).parallelism
    assert (found.strategy, found.world_size, found.zero_stage) == (strategy, devices, stage)


def test_more_devices_keep_the_files_stage() -> None:
    staged = ScenarioFlags(devices=4, zero_stage=2).apply(BASE)
    found = ScenarioFlags(devices=16).apply(staged).parallelism
    assert (found.strategy, found.world_size, found.zero_stage) == ("zero", 16, 2)


def test_the_batch_keeps_what_is_not_named() -> None:
    first = ScenarioFlags(micro_batch=8, sequence=512).apply(BASE)
    second = ScenarioFlags(sequence=1024).apply(first).batch
    assert second is not None
    assert (second.micro_batch, second.sequence) == (8, 1024)
    only = ScenarioFlags(sequence=128).apply(BASE).batch
    assert only is not None
    assert only.micro_batch == 1


def test_every_precision_is_known_to_the_scenario() -> None:
    for precision in PRECISIONS:
        ScenarioFlags(precision=precision).apply(BASE)
