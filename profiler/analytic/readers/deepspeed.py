"""A DeepSpeed configuration as fields of a scenario.

Source of defaults and of legacy spellings: DeepSpeed 0.19 ``runtime/config.py`` and
``runtime/zero/config.py``; of the values in place of ``auto``: transformers 5
``integrations/deepspeed.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .batch_arithmetic import solve_batch
from .deepspeed_keys import BUCKETS, IGNORED, NOT_MODELLED, ZERO_IGNORED, ZERO_NOT_MODELLED
from .settings import AUTO, Block, Known, Settings, dtype_of


def is_deepspeed(data: object) -> bool:
    """Whether a mapping looks like a DeepSpeed configuration."""
    keys = {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"}
    blocks = {"fp16", "bf16", "zero_allow_untested_optimizer"}
    return isinstance(data, Mapping) and (
        bool(keys & set(data)) or (bool(blocks & set(data)) and "distributed_type" not in data)
    )


def read_deepspeed(config: Mapping[str, Any], known: Known | None = None) -> Settings:
    """The settings of a DeepSpeed configuration.

    Args:
        config: The file's mapping.
        known: What is known from elsewhere; it fills in what the file leaves to the Trainer.

    Raises:
        ValueError: Names the field, the value and what is allowed.
    """
    known = known or Known()
    block = Block(config)
    made = Settings(parallelism={"strategy": "zero"})
    known = _with_devices(block, known, made)
    _precision(block, known, made)
    stage = _zero(block, known, made)
    if stage == 0 and made.fields.get("weight_dtype") in ("float16", "bfloat16"):
        made.fields["master_weights"] = True
    _degrees(block, known, made)
    _batch(block, known, made)
    _optimizer(block, made)
    _checkpointing(block, made)
    _leftovers(block, made)
    return made


def _with_devices(block: Block, known: Known, made: Settings) -> Known:
    """How many devices there are, where the three batch sizes tell and nothing else does."""
    sizes = [
        block.number(name, least=1)
        for name in (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        )
    ]
    train, micro, accumulation = sizes
    if known.devices is not None or train is None or micro is None or accumulation is None:
        return known
    data_parallel, rest = divmod(train, micro * accumulation)
    if rest or not data_parallel:
        return known
    made.notes.append(
        f"devices: {data_parallel} data-parallel, from train_batch_size={train} = {micro} × "
        f"{accumulation} × {data_parallel}"
    )
    return replace(known, devices=data_parallel * _shared(block))


def _shared(block: Block) -> int:
    """Devices that work on the same samples."""
    tensor, pipeline, sequence = _split(block)
    return tensor * pipeline * sequence


def _split(block: Block) -> tuple[int, int, int]:
    """Degrees of tensor, pipeline and sequence parallelism."""
    split = block.block("tensor_parallel")
    tensor = split.number("autotp_size") or split.block("tp").number("tp_size", least=1) or 1
    pipeline = block.block("pipeline").number("stages", least=1) or 1
    return tensor, pipeline, block.number("sequence_parallel_size", least=1) or 1


def _precision(block: Block, known: Known, made: Settings) -> None:
    half, brain = block.block("fp16"), block.block("bf16", "bfloat16")
    switches = {"fp16": half, "bf16": brain}
    on = {name: _enabled(b, name, known) for name, b in switches.items()}
    if on["fp16"] and on["bf16"]:
        raise ValueError("fp16.enabled and bf16.enabled are both true: only one may be")
    if None in on.values() and not any(on.values()):
        left = " and ".join(f"{n}.enabled" for n, v in on.items() if v is None)
        made.notes.append(f"{left}: auto, so as --precision says; weights stay as they are")
    else:
        dtype = "float16" if on["fp16"] else "bfloat16" if on["bf16"] else "float32"
        made.fields["weight_dtype"] = dtype
    _other_precision(block, made)
    if half.flag("fp16_master_weights_and_grads") or brain.flag("bf16_master_weights_and_grads"):
        made.notes.append("16-bit master weights: not modelled; counted in float32")


def _enabled(block: Block, name: str, known: Known) -> bool | None:
    """Whether a 16-bit type is on; ``None`` where that is left open."""
    if not block.values:
        return False
    if block.is_auto("enabled"):
        return None if known.precision is None else known.precision == name
    return bool(block.flag("enabled"))


def _other_precision(block: Block, made: Settings) -> None:
    autocast = block.block("torch_autocast")
    if autocast.flag("enabled"):
        made.fields["autocast"] = dtype_of(autocast.get("dtype") or "bfloat16")
    amp = block.block("amp")
    if amp.flag("enabled"):
        level = str(amp.get("opt_level") or "O1")
        made.notes.append(f"amp: Apex {level} is taken as float16 autocast")
        made.fields["autocast"] = "float16"
    kept = block.block("data_types").get("grad_accum_dtype")
    if kept:
        made.fields["gradient_dtype"] = dtype_of(kept)


def _zero(block: Block, known: Known, made: Settings) -> int:
    value = block.get("zero_optimization")
    if isinstance(value, bool):
        # Before 0.3 the key was a switch for stage 1.
        made.parallelism["zero_stage"] = int(value)
        return int(value)
    zero = block.block("zero_optimization")
    stage = zero.number("stage") or 0
    if stage not in (0, 1, 2, 3):
        raise zero.wrong("stage", stage, "one of 0, 1, 2, 3")
    made.parallelism["zero_stage"] = stage
    if not stage:
        return 0
    overlap = zero.flag("overlap_comm")
    made.parallelism["overlap_comm"] = stage == 3 if overlap is None else overlap
    _buckets(zero, known, made, stage)
    if (contiguous := zero.flag("contiguous_gradients")) is not None:
        made.parallelism["contiguous_gradients"] = contiguous
    _offload(zero, made)
    made.notes += [
        f"zero_optimization.{name}: not modelled" for name in ZERO_NOT_MODELLED if zero.get(name)
    ]
    made.notes += [f"{key}: not read" for key in zero.rest(ZERO_IGNORED)]
    return stage


def _buckets(zero: Block, known: Known, made: Settings, stage: int) -> None:
    derived = _derived(known.hidden, stage)
    for name, keys in BUCKETS.items():
        value = zero.number(*keys)
        if value is not None:
            made.parallelism[name] = value
        elif zero.is_auto(*keys):
            if name in derived:
                made.parallelism[name] = derived[name]
                made.notes.append(
                    f"zero_optimization.{keys[0]}: auto, so {derived[name]:,} from the model's "
                    f"width of {known.hidden:,}"
                )
            else:
                made.notes.append(f"zero_optimization.{keys[0]}: auto, so DeepSpeed's default")


def _derived(hidden: int | None, stage: int) -> dict[str, int]:
    """Bucket sizes in place of ``auto``, as transformers fills them in."""
    if hidden is None:
        return {}
    found = {"reduce_bucket_elements": hidden * hidden}
    if stage == 3:
        found["prefetch_bucket_elements"] = int(0.9 * hidden * hidden)
        found["persistence_threshold"] = 10 * hidden
    return found


PLACES = {"none": "none", "cpu": "cpu", "nvme": "nvme"}


def _offload(zero: Block, made: Settings) -> None:
    states, weights = zero.block("offload_optimizer"), zero.block("offload_param")
    if zero.flag("cpu_offload"):
        made.offload["optimizer"] = "cpu"
    if zero.flag("cpu_offload_params"):
        made.offload["parameters"] = "cpu"
    pinned = zero.flag("cpu_offload_use_pin_memory")
    for name, block in (("optimizer", states), ("parameters", weights)):
        place = block.word("device", PLACES)
        if place not in (None, "none"):
            made.offload[name] = place
            pinned = pinned or block.flag("pin_memory")
            _swapping(block, made)
    if pinned and made.offload:
        made.offload["pinned"] = True


def _swapping(block: Block, made: Settings) -> None:
    sizes = {
        "buffer_count": block.number("buffer_count", least=1),
        "buffer_elements": block.number("buffer_size"),
        "max_in_cpu_elements": block.number("max_in_cpu"),
    }
    made.offload |= {name: value for name, value in sizes.items() if value is not None}
    ratio = block.get("ratio")
    if isinstance(ratio, int | float) and not isinstance(ratio, bool):
        made.offload["optimizer_share"] = float(ratio)


def _degrees(block: Block, known: Known, made: Settings) -> None:
    tensor, pipeline, sequence = _split(block)
    devices = known.devices
    if devices is not None and devices % (tensor * pipeline):
        raise ValueError(
            f"{devices} devices cannot be shared by tensor_parallel={tensor} × "
            f"pipeline.stages={pipeline}"
        )
    made.parallelism |= {
        name: value
        for name, value in {
            "tensor_parallel": tensor,
            "pipeline_parallel": pipeline,
            "sequence_parallel": sequence,
        }.items()
        if value > 1
    }
    world = sequence if devices is None else devices // (tensor * pipeline)
    made.parallelism["world_size"] = world
    if devices is None:
        made.notes.append(f"devices: no file says how many; {world * tensor * pipeline} taken")
    _mics(block, made)


def _mics(block: Block, made: Settings) -> None:
    value = block.get("zero_optimization")
    if not isinstance(value, Mapping):
        return
    shard = Block(value, "zero_optimization.").get("mics_shard_size")
    world = made.parallelism["world_size"]
    if isinstance(shard, int) and shard > 0:
        if world % shard:
            raise ValueError(
                f"zero_optimization.mics_shard_size={shard}: must divide the {world} devices"
            )
        made.parallelism["replicas"] = world // shard


def _batch(block: Block, known: Known, made: Settings) -> None:
    world = made.parallelism["world_size"]
    found = solve_batch(
        train=block.number("train_batch_size", least=1),
        micro=block.number("train_micro_batch_size_per_gpu", least=1) or known.micro_batch,
        accumulation=block.number("gradient_accumulation_steps", least=1) or known.accumulation,
        data_parallel=world // made.parallelism.get("sequence_parallel", 1),
    )
    made.micro_batch = found.micro
    if found.accumulation is not None:
        made.fields["accumulation"] = found.accumulation
    for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if block.is_auto(name):
            option = "--micro-batch" if "micro" in name else "--accumulation"
            made.notes.append(f"{name}: auto, so as {option} says")


ADAM = frozenset({"adam", "adamw", "fusedadam", "cpuadam"})


def _optimizer(block: Block, made: Settings) -> None:
    spec = block.block("optimizer")
    kind = spec.get("type")
    if kind is None:
        made.notes.append("optimizer: not said; the script makes its own, AdamW is taken")
        return
    params = spec.block("params")
    decay = params.get("weight_decay")
    numbers = {"weight_decay": decay} if isinstance(decay, int | float) else {}
    name = str(kind).lower()
    if name in ADAM:
        fused = not params.flag("torch_adam")
        group = {"name": "adamw", "implementation": "fused" if fused else "foreach", **numbers}
    elif name == "sgd":
        momentum = params.get("momentum")
        group = {"name": "sgd", **numbers}
        if isinstance(momentum, int | float):
            group["momentum"] = momentum
    else:
        group = {"name": "other", "class_name": str(kind)}
    made.fields["optimizers"] = [group]


def _checkpointing(block: Block, made: Settings) -> None:
    how = block.block("activation_checkpointing")
    if not how.values:
        return
    made.notes.append(
        "activation_checkpointing: says how, not whether; give --checkpointing full where the "
        "model checkpoints"
    )
    if how.flag("cpu_checkpointing"):
        made.offload["activations"] = True
    if how.flag("partition_activations"):
        made.notes.append("activation_checkpointing.partition_activations: not modelled")


def _leftovers(block: Block, made: Settings) -> None:
    for name, what in NOT_MODELLED.items():
        value = block.get(name)
        if value in (None, AUTO) or (isinstance(value, Mapping) and _off(value)):
            continue
        made.notes.append(f"{name}: not modelled ({what})")
    made.notes += [f"{key}: not read" for key in block.rest(IGNORED)]


def _off(value: Mapping[str, Any]) -> bool:
    """Whether a block switches itself off."""
    return value.get("enabled") is False or value.get("disable") is True
