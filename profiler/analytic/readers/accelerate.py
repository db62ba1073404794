"""An accelerate configuration as fields of a scenario.

Source of keys, their legacy spellings and what they do: accelerate 1.15
``commands/config/config_args.py``, ``utils/dataclasses.py`` and ``utils/launch.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from .deepspeed import PLACES, read_deepspeed
from .settings import Block, Known, Settings

IGNORED = frozenset(
    {
        "compute_environment",
        "debug",
        "downcast_bf16",
        "enable_cpu_affinity",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "rdzv_backend",
        "same_network",
        "tpu_env",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "tpu_name",
        "tpu_zone",
        "commands",
        "command_file",
        "mpirun_config",
        "gpu_ids",
        "num_cpu_threads_per_process",
        "max_restarts",
        "monitor_interval",
        "deepspeed_hostfile",
        "ipex_config",
        "tpu_commands",
    }
)
SHARDING = {
    "full_shard": ("full", False),
    "shard_grad_op": ("gradients", False),
    "no_shard": ("none", False),
    "hybrid_shard": ("full", True),
    "hybrid_shard_zero2": ("gradients", True),
    "1": ("full", False),
    "2": ("gradients", False),
    "3": ("none", False),
    "4": ("full", True),
    "5": ("gradients", True),
    "true": ("full", False),
    "false": ("gradients", False),
}
"""What FSDP frees, and whether it is replicated between machines."""
WRAPPING = {
    "transformer_based_wrap": "blocks",
    "size_based_wrap": "size",
    "no_wrap": "model",
    "0": "blocks",
    "1": "size",
    "2": "model",
}
PREFETCH = {
    "backward_pre": "pre",
    "backward_post": "post",
    "no_prefetch": "none",
    "none": "none",
    "1": "pre",
    "2": "post",
    "3": "none",
}
KINDS = {
    "no": "none",
    "multi_gpu": "ddp",
    "multi_cpu": "ddp",
    "multi_npu": "ddp",
    "multi_mlu": "ddp",
    "multi_sdaa": "ddp",
    "multi_musa": "ddp",
    "multi_xpu": "ddp",
    "multi_hpu": "ddp",
    "fsdp": "fsdp",
    "deepspeed": "zero",
    "megatron_lm": "megatron",
    "tp": "tp",
}


def is_accelerate(data: object) -> bool:
    """Whether a mapping looks like an accelerate configuration."""
    keys = {"distributed_type", "compute_environment", "fsdp_config", "deepspeed_config"}
    return isinstance(data, Mapping) and bool(keys & set(data))


def read_accelerate(
    config: Mapping[str, Any], folder: Path, known: Known | None = None
) -> Settings:
    """The settings of an accelerate configuration.

    Args:
        config: The file's mapping.
        folder: Where the file lies; a DeepSpeed file is looked for beside it.
        known: What is known from elsewhere.

    Raises:
        ValueError: Names the field, the value and what is allowed.
    """
    block = Block(config)
    if str(block.get("compute_environment") or "").upper() == "AMAZON_SAGEMAKER":
        raise ValueError(
            "compute_environment='AMAZON_SAGEMAKER': SageMaker's launcher is not known here"
        )
    kind = _kind(block)
    known = _known(block, kind, known or Known())
    if kind == "zero":
        made = _deepspeed(block, folder, known)
    else:
        made = Settings(parallelism={"strategy": "none" if kind == "none" else "ddp"})
        _mixed_precision(known, made, kind)
        if kind == "fsdp":
            _fsdp(block, made, known)
        if kind == "megatron":
            _megatron(block, made)
        if kind == "tp":
            _tensor_only(block, made)
        _spread(block, known, made)
    _mesh(block, known, made)
    if block.flag("use_cpu") or block.get("distributed_type") == "MULTI_CPU":
        made.fields["device"] = "cpu"
    _leftovers(block, made)
    return made


def _kind(block: Block) -> str:
    value = block.get("distributed_type")
    if value in (None, False):
        # YAML reads an unquoted NO as false.
        return "none"
    key = str(value).removeprefix("DistributedType.").lower()
    if key in ("xla", "tpu"):
        raise block.wrong("distributed_type", value, "something other than a TPU: not modelled")
    if key not in KINDS:
        raise block.wrong("distributed_type", value, f"one of {', '.join(KINDS).upper()}")
    return KINDS[key]


def _known(block: Block, kind: str, known: Known) -> Known:
    """With the file's own number of processes and precision, where nothing else is said."""
    processes = block.number("num_processes", least=1)
    devices = known.devices or processes or (1 if kind == "none" else None)
    said = block.get("mixed_precision")
    if said is None and block.flag("fp16"):
        said = "fp16"
    precision = "no" if said is False else None if said is None else str(said).lower()
    if precision not in (None, "no", "fp16", "bf16", "fp8"):
        raise block.wrong("mixed_precision", said, "one of no, fp16, bf16, fp8")
    return replace(known, devices=devices, precision=known.precision or precision)


def _mixed_precision(known: Known, made: Settings, kind: str) -> None:
    halves = {"fp16": "float16", "bf16": "bfloat16", "fp8": "bfloat16"}
    if known.precision in halves:
        made.fields["autocast"] = halves[known.precision]
        if kind == "fsdp":
            # Accelerate raises trained weights to float32 under FSDP's mixed precision.
            made.fields["weight_dtype"] = "float32"
    if known.precision == "fp8":
        made.notes.append("mixed_precision: fp8 matrices are not modelled; counted as bfloat16")


def _deepspeed(block: Block, folder: Path, known: Known) -> Settings:
    said = block.block("deepspeed_config")
    name = said.get("deepspeed_config_file")
    if name is not None and str(name) != "none":
        return read_deepspeed(_load(folder, str(name), said), known)
    places = {
        "offload_optimizer": said.word("offload_optimizer_device", PLACES),
        "offload_param": said.word("offload_param_device", PLACES),
    }
    stage = said.number("zero_stage")
    zero = {
        "stage": 2 if stage is None else stage,
        **{key: {"device": place} for key, place in places.items() if place not in (None, "none")},
    }
    half = known.precision if known.precision in ("fp16", "bf16") else None
    config: dict[str, Any] = {
        "zero_optimization": zero,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": said.get("gradient_accumulation_steps") or "auto",
        **({half: {"enabled": True}} if half else {}),
    }
    made = read_deepspeed(config, known)
    if known.precision == "fp8":
        made.notes.append("mixed_precision: fp8 matrices are not modelled; counted as they are")
    made.notes += [f"{key}: not read" for key in said.rest(DEEPSPEED_IGNORED)]
    return made


DEEPSPEED_IGNORED = frozenset(
    {
        "deepspeed_multinode_launcher",
        "deepspeed_hostfile",
        "deepspeed_exclusion_filter",
        "deepspeed_inclusion_filter",
        "deepspeed_moe_layer_cls_names",
        "gradient_clipping",
        "zero3_init_flag",
        "zero3_save_16bit_model",
        "offload_optimizer_nvme_path",
        "offload_param_nvme_path",
        "seq_parallel_communication_data_type",
    }
)


def _load(folder: Path, name: str, said: Block) -> Mapping[str, Any]:
    places = [Path(name).expanduser()] if Path(name).is_absolute() else [folder / name, Path(name)]
    found = next((p for p in places if p.is_file()), None)
    if found is None:
        tried = " and ".join(str(p) for p in places)
        raise said.wrong("deepspeed_config_file", name, f"a file that is there; tried {tried}")
    text = found.read_text(encoding="utf-8")
    try:
        data = json.loads(text) if found.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{found}: is not valid YAML or JSON ({error})") from None
    if not isinstance(data, Mapping):
        raise said.wrong("deepspeed_config_file", name, "a DeepSpeed configuration")
    return data


def _fsdp(block: Block, made: Settings, known: Known) -> None:
    said = block.block("fsdp_config")
    version = said.number("fsdp_version", least=1) or 1
    if version not in (1, 2):
        raise said.wrong("fsdp_version", version, "1 or 2")
    # Since 1.6 the strategy of FSDP 1 may stand under the key of FSDP 2.
    sharding = said.word("fsdp_reshard_after_forward", SHARDING)
    for name in ("fsdp_sharding_strategy", "sharding_strategy"):
        sharding = sharding or said.word(name, SHARDING)
    freed, hybrid = sharding or ("full", False)
    units = said.word("fsdp_auto_wrap_policy", WRAPPING) or said.word(
        "fsdp_transformer_auto_wrap_policy", WRAPPING
    )
    least = said.number("fsdp_min_num_params", "min_num_params")
    if units is None and said.get("fsdp_transformer_layer_cls_to_wrap"):
        units = "blocks"
    made.parallelism |= {
        "strategy": "fsdp",
        "fsdp_version": version,
        "fsdp_sharding": freed,
        "fsdp_units": units or ("size" if least else "model"),
        **({"fsdp_unit_elements": least} if least else {}),
        "forward_prefetch": bool(said.flag("fsdp_forward_prefetch")),
        "backward_prefetch": _backward_prefetch(said, version),
    }
    machines = block.number("num_machines", least=1) or 1
    if hybrid and machines > 1:
        made.parallelism["replicas"] = machines
    if said.flag("fsdp_offload_params", "offload_params"):
        made.offload |= {"parameters": "cpu", "optimizer": "cpu"}
    if said.flag("fsdp_activation_checkpointing"):
        made.fields["checkpointing"] = "full"
    made.notes += [f"{key}: not read" for key in said.rest(FSDP_IGNORED)]


FSDP_IGNORED = frozenset(
    {
        "fsdp_cpu_ram_efficient_loading",
        "fsdp_ignored_modules",
        "fsdp_state_dict_type",
        "fsdp_sync_module_states",
        "fsdp_transformer_layer_cls_to_wrap",
        "transformer_layer_cls_to_wrap",
        "fsdp_use_orig_params",
        "fsdp_cls_names_to_wrap",
        "limit_all_gathers",
    }
)


def _backward_prefetch(said: Block, version: int) -> str:
    word = said.word("fsdp_backward_prefetch", PREFETCH) or said.word(
        "fsdp_backward_prefetch_policy", PREFETCH
    )
    # FSDP 2 always gathers the next unit before a unit's backward.
    return "pre" if version == 2 else word or "none"


def _megatron(block: Block, made: Settings) -> None:
    said = block.block("megatron_lm_config")
    prefix = "megatron_lm_"
    made.parallelism |= {
        "tensor_parallel": said.number(f"{prefix}tp_degree", least=1) or 1,
        "pipeline_parallel": said.number(f"{prefix}pp_degree", least=1) or 1,
        "megatron_sequence_parallel": bool(said.flag(f"{prefix}sequence_parallelism")),
    }
    if said.flag(f"{prefix}use_distributed_optimizer"):
        made.notes.append("megatron_lm_use_distributed_optimizer: not modelled")
    if said.flag(f"{prefix}recompute_activations"):
        made.notes.append("megatron_lm_recompute_activations: selective, not modelled")


def _tensor_only(block: Block, made: Settings) -> None:
    degree = block.block("tp_config").number("tp_size", least=1) or 1
    made.parallelism["tensor_parallel"] = degree


def _spread(block: Block, known: Known, made: Settings) -> None:
    """How many devices hold the same part of the model."""
    shared = made.parallelism.get("tensor_parallel", 1) * made.parallelism.get(
        "pipeline_parallel", 1
    )
    if known.devices is None:
        made.parallelism["world_size"] = 1
        made.notes.append(f"devices: no file says how many; {shared} taken")
        return
    if known.devices % shared:
        raise block.wrong(
            "num_processes", known.devices, f"a multiple of {shared} (tensor × pipeline parallel)"
        )
    world = known.devices // shared
    made.parallelism["world_size"] = world
    if world > 1 and made.parallelism["strategy"] == "none":
        raise block.wrong("num_processes", known.devices, "1 where distributed_type is NO")
    if world % made.parallelism.get("replicas", 1):
        raise block.wrong("num_machines", made.parallelism["replicas"], f"a divisor of {world}")


def _mesh(block: Block, known: Known, made: Settings) -> None:
    """Degrees of a ``parallelism_config``; they must multiply to the number of processes."""
    said = block.block("parallelism_config")
    if not said.values:
        return
    degree = {
        name: said.number(f"parallelism_config_{name}_size", f"{name}_size", least=1) or 1
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    total = 1
    for value in degree.values():
        total *= value
    if known.devices is not None and total != known.devices:
        words = " × ".join(f"{name} {value}" for name, value in degree.items() if value > 1)
        raise ValueError(
            f"parallelism_config: {words or 'all degrees 1'} = {total} processes, but there are "
            f"num_processes={known.devices}"
        )
    world = total // degree["tp"]
    made.parallelism |= {
        "world_size": world,
        "tensor_parallel": degree["tp"],
        "context_parallel": degree["cp"],
        "sequence_parallel": degree["sp"],
        "replicas": degree["dp_replicate"] if made.parallelism["strategy"] == "fsdp" else 1,
    }
    if world > 1 and made.parallelism["strategy"] == "none":
        made.parallelism["strategy"] = "ddp"


def _leftovers(block: Block, made: Settings) -> None:
    block.taken |= {"num_machines", "fsdp_config", "deepspeed_config", "megatron_lm_config"}
    if _switched_on(block.get("dynamo_config")) or _switched_on(block.get("dynamo_backend")):
        made.notes.append("dynamo_config: not modelled (compiled graphs keep other tensors)")
    if block.get("fp8_config"):
        made.notes.append("fp8_config: the fp8 recipe is not modelled")
    made.notes += [f"{key}: not read" for key in block.rest(IGNORED)]


def _switched_on(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_switched_on(v) for k, v in value.items() if "backend" in str(k))
    return value is not None and str(value).lower() not in ("no", "false", "none", "")
