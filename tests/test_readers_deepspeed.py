"""DeepSpeed configurations: precision, stages, buckets, offload, batch arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from vramscope.profiler.analytic import Known
from vramscope.profiler.analytic.readers.deepspeed import is_deepspeed, read_deepspeed

Config = dict[str, Any]


def zero(stage: int, **more: Any) -> Config:
    return {"zero_optimization": {"stage": stage, **more}}


@pytest.mark.parametrize(
    ("config", "known", "dtype"),
    [
        ({"bf16": {"enabled": True}}, Known(), "bfloat16"),
        ({"bfloat16": {"enabled": True}}, Known(), "bfloat16"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": False}}, Known(), "float16"),
        ({"fp16": {"enabled": False}}, Known(), "float32"),
        ({}, Known(), "float32"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, Known(), None),
        ({"bf16": {"enabled": "auto"}}, Known(precision="bf16"), "bfloat16"),
        ({"bf16": {"enabled": "auto"}}, Known(precision="no"), "float32"),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": True}}, Known(), "bfloat16"),
    ],
)
def test_precision(config: Config, known: Known, dtype: str | None) -> None:
    made = read_deepspeed({**zero(2), **config}, known)
    assert made.fields.get("weight_dtype") == dtype
    assert any("--precision" in note for note in made.notes) == (dtype is None)


def test_both_16_bit_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fp16\.enabled and bf16\.enabled"):
        read_deepspeed({"fp16": {"enabled": True}, "bf16": {"enabled": True}})


def test_autocast_amp_and_gradient_type() -> None:
    config = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    assert read_deepspeed(config).fields["autocast"] == "bfloat16"
    assert read_deepspeed({"amp": {"enabled": True}}).fields["autocast"] == "float16"
    made = read_deepspeed({**zero(1), "data_types": {"grad_accum_dtype": "fp32"}})
    assert made.fields["gradient_dtype"] == "float32"


@pytest.mark.parametrize(
    ("config", "stage"),
    [({}, 0), (zero(0), 0), (zero(3), 3), ({"zero_optimization": True}, 1)],
)
def test_stage_with_and_without_a_block(config: Config, stage: int) -> None:
    assert read_deepspeed(config).parallelism["zero_stage"] == stage


def test_without_zero_16_bit_weights_have_master_copies() -> None:
    assert read_deepspeed({"fp16": {"enabled": True}}).fields["master_weights"] is True
    assert "master_weights" not in read_deepspeed({**zero(2), "fp16": {"enabled": True}}).fields


def test_overlap_is_on_for_stage_3_unless_said() -> None:
    assert read_deepspeed(zero(3)).parallelism["overlap_comm"] is True
    assert read_deepspeed(zero(2)).parallelism["overlap_comm"] is False
    assert read_deepspeed(zero(3, overlap_comm=False)).parallelism["overlap_comm"] is False


def test_numbers_in_any_spelling_and_legacy_keys() -> None:
    config = zero(
        3,
        reduce_bucket_size=5e8,
        stage3_prefetch_bucket_size="1e7",
        max_live_parameters=0,
        sub_group_size=1e9,
        stage3_param_persistence_threshold=1e4,
    )
    made = read_deepspeed(config).parallelism
    assert made["reduce_bucket_elements"] == 500_000_000
    assert made["prefetch_bucket_elements"] == 10_000_000
    assert (made["max_live_parameters"], made["persistence_threshold"]) == (0, 10_000)


def test_auto_buckets_come_from_the_width_of_the_model() -> None:
    auto = dict.fromkeys(
        ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"),
        "auto",
    )
    made = read_deepspeed(zero(3, **auto), Known(hidden=100))
    assert made.parallelism["reduce_bucket_elements"] == 10_000
    assert made.parallelism["prefetch_bucket_elements"] == 9_000
    assert made.parallelism["persistence_threshold"] == 1_000
    left = read_deepspeed(zero(3, **auto))
    assert "reduce_bucket_elements" not in left.parallelism
    assert any("reduce_bucket_size: auto" in note for note in left.notes)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"cpu_offload": True}, {"optimizer": "cpu"}),
        ({"offload_optimizer": {"device": "none", "pin_memory": True}}, {}),
        (
            {"offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.5}},
            {"optimizer": "cpu", "pinned": True, "optimizer_share": 0.5},
        ),
        (
            {"offload_param": {"device": "nvme", "buffer_size": 1e8, "max_in_cpu": 1e9}},
            {
                "parameters": "nvme",
                "buffer_elements": 100_000_000,
                "max_in_cpu_elements": 1_000_000_000,
            },
        ),
    ],
)
def test_offload(block: Config, expected: Config) -> None:
    assert read_deepspeed(zero(3, **block)).offload == expected


@pytest.mark.parametrize(
    ("sizes", "devices", "micro", "accumulation", "world"),
    [
        ((64, None, None), 4, 16, 1, 4),
        ((64, 4, None), 4, 4, 4, 4),
        ((64, None, 2), 4, 8, 2, 4),
        ((None, 4, 3), 4, 4, 3, 4),
        ((None, 4, None), 4, 4, 1, 4),
        ((64, 4, 2), 8, 4, 2, 8),
        ((64, 4, 2), None, 4, 2, 8),
        (("auto", "auto", "auto"), 4, None, None, 4),
        ((None, None, None), None, None, None, 1),
    ],
)
def test_batch_arithmetic(
    sizes: tuple[Any, Any, Any], devices: int | None, micro: int, accumulation: int, world: int
) -> None:
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    config = {k: v for k, v in zip(keys, sizes, strict=True) if v is not None}
    made = read_deepspeed({**zero(1), **config}, Known(devices=devices))
    assert (made.micro_batch, made.fields.get("accumulation")) == (micro, accumulation)
    assert made.parallelism["world_size"] == world


@pytest.mark.parametrize(
    ("config", "devices", "words"),
    [
        (
            {
                "train_batch_size": 32,
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 1,
            },
            4,
            ["train_batch_size=32", "= 16", "--devices"],
        ),
        ({"train_batch_size": 10}, 4, ["train_batch_size=10", "multiple of 4"]),
        ({"train_batch_size": -1}, 1, ["train_batch_size=-1", "at least 1"]),
        ({"train_batch_size": "many"}, 1, ["train_batch_size='many'", "whole number"]),
        (zero(4), 1, ["zero_optimization.stage=4", "0, 1, 2, 3"]),
        ({"zero_optimization": "on"}, 1, ["zero_optimization='on'", "mapping"]),
        (zero(2, overlap_comm="perhaps"), 1, ["zero_optimization.overlap_comm", "perhaps"]),
        (
            zero(3, offload_param={"device": "disk"}),
            1,
            ["zero_optimization.offload_param.device='disk'", "cpu", "nvme"],
        ),
        (zero(3, mics_shard_size=3), 4, ["mics_shard_size=3", "divide", "4"]),
        ({"tensor_parallel": {"autotp_size": 3}}, 4, ["4 devices", "tensor_parallel=3"]),
    ],
)
def test_wrong_values_name_field_value_and_what_is_allowed(
    config: Config, devices: int, words: list[str]
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_deepspeed(config, Known(devices=devices))
    for word in words:
        assert word in str(caught.value)


def test_degrees_of_parallelism() -> None:
    config = {**zero(3), "sequence_parallel_size": 2, "tensor_parallel": {"autotp_size": 2}}
    made = read_deepspeed(config, Known(devices=8)).parallelism
    assert (made["world_size"], made["tensor_parallel"], made["sequence_parallel"]) == (4, 2, 2)
    hybrid = read_deepspeed(zero(3, mics_shard_size=2), Known(devices=8)).parallelism
    assert hybrid["replicas"] == 4
    second = read_deepspeed(zero(3, zero_hpz_partition_size=2), Known(devices=8)).parallelism
    assert second["hpz_partition"] == 2


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        ("AdamW", {"lr": "auto"}, {"name": "adamw", "implementation": "fused"}),
        ("Adam", {"torch_adam": True}, {"name": "adamw", "implementation": "foreach"}),
        ("SGD", {"momentum": 0.9}, {"name": "sgd", "momentum": 0.9}),
        ("OneBitAdam", {}, {"name": "other", "class_name": "OneBitAdam"}),
        ("Lamb", {"weight_decay": 0.01}, {"name": "other", "class_name": "Lamb"}),
    ],
)
def test_optimizers(kind: str, params: Config, expected: Config) -> None:
    made = read_deepspeed({"optimizer": {"type": kind, "params": params}})
    assert made.fields["optimizers"] == [expected]


def test_what_is_not_modelled_or_not_read_is_named() -> None:
    config = {
        **zero(3, zero_quantized_weights=True, new_switch=1),
        "sparse_attention": {"mode": "fixed"},
        "compile": {"disable": True},
        "activation_checkpointing": {"cpu_checkpointing": True},
        "other_thing": 1,
    }
    made = read_deepspeed(config)
    notes = "\n".join(made.notes)
    for word in ("zero_quantized_weights", "new_switch", "sparse_attention", "other_thing"):
        assert word in notes
    assert "compile" not in notes
    assert made.offload["activations"] is True


def test_what_looks_like_a_deepspeed_file() -> None:
    assert is_deepspeed(zero(1))
    assert is_deepspeed({"fp16": {"enabled": True}})
    assert not is_deepspeed({"architecture": {}})
    assert not is_deepspeed([])
