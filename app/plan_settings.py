"""The settings of a plan as words to choose from: pure, between a scenario and its controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from vramscope.profiler.analytic import BatchShape, LoraSpec, Scenario, TensorInventory
from vramscope.profiler.analytic.optimizers import OptimizerName

from .plan_presets import PRESETS, preset_of

AS_GIVEN = "as given"
"""What a control says, perhaps after a name, whose setting is none of its choices."""

_DEFAULT_SEQUENCE = 2048
_FLOATS = ("float32", "bfloat16", "float16")
_EVERY = ("all-linear",)


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting with a few values that have words.

    ``read`` gives the present word, one that ends in :data:`AS_GIVEN` where there is none;
    ``write`` makes the scenario with another word, and raises ``ValueError`` where that cannot be.
    """

    name: str
    label: str
    help: str
    words: Callable[[Scenario], tuple[str, ...]]
    read: Callable[[Scenario], str]
    write: Callable[[Scenario, str], Scenario]


@dataclass(frozen=True, slots=True)
class Number:
    """A setting that is a whole number of at least 1; ``read`` gives ``None`` where it has none."""

    name: str
    label: str
    help: str
    most: int
    read: Callable[[Scenario], int | None]
    write: Callable[[Scenario, int], Scenario]


# -- model ------------------------------------------------------------------------------------


def model_name(scenario: Scenario) -> str:
    """The model in a few words: a well-known one's name, else its class or its size."""
    known = preset_of(scenario.architecture) if scenario.tensors is None else None
    if known is not None:
        return known
    numel = scenario.inventory.numel
    amount = f"{numel / 1e9:.1f} B" if numel >= 1e9 else f"{numel / 1e6:.0f} M"
    return f"{scenario.model_class or 'own model'}, {amount} parameters"


def with_preset(scenario: Scenario, name: str) -> Scenario:
    """The same training of a well-known model."""
    made = scenario.replace(
        architecture=PRESETS[name],
        tensors=None,
        activations_unknown=None,
        model_class=None,
        notes=(),
    )
    return _with_batch(made)


def _with_batch(scenario: Scenario) -> Scenario:
    if scenario.batch is not None and scenario.batch.sequence is not None:
        return scenario
    architecture = scenario.architecture
    longest = _DEFAULT_SEQUENCE if architecture is None else architecture.positions
    samples = 1 if scenario.batch is None else scenario.batch.micro_batch
    batch = BatchShape(micro_batch=samples, sequence=min(_DEFAULT_SEQUENCE, longest))
    return scenario.replace(batch=batch)


# -- precision --------------------------------------------------------------------------------

_PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {"weight_dtype": "float32"},
    "fp32, autocast bf16": {"weight_dtype": "float32", "autocast": "bfloat16"},
    "fp32, autocast fp16": {"weight_dtype": "float32", "autocast": "float16"},
    "bf16, fp32 master": {"weight_dtype": "bfloat16", "master_weights": True},
    "bf16": {"weight_dtype": "bfloat16"},
    "fp16, fp32 master": {"weight_dtype": "float16", "master_weights": True},
    "fp16": {"weight_dtype": "float16"},
    "int8": {"weight_dtype": "int8"},
    "NF4": {"weight_dtype": "nf4"},
    "NF4, double quantised": {"weight_dtype": "nf4", "double_quantization": True},
}
_PLAIN: Mapping[str, Any] = {
    "autocast": None,
    "master_weights": False,
    "double_quantization": False,
}


def _kept_in(scenario: Scenario) -> str | None:
    """What the weights are kept in; ``None`` where it is several types."""
    if scenario.tensors is None:
        return scenario.weight_dtype
    found = {t.dtype for t, _ in scenario.tensors.counted()}
    return str(found.pop()) if len(found) == 1 else None


def _precision_words(scenario: Scenario) -> tuple[str, ...]:
    own = scenario.tensors is None
    return tuple(w for w, s in _PRECISIONS.items() if own or s["weight_dtype"] in _FLOATS)


def _precision(scenario: Scenario) -> str:
    present = {
        "weight_dtype": _kept_in(scenario),
        "autocast": scenario.autocast,
        "master_weights": scenario.master_weights,
        "double_quantization": scenario.double_quantization,
    }
    return next((w for w, s in _PRECISIONS.items() if {**_PLAIN, **s} == present), AS_GIVEN)


def _with_precision(scenario: Scenario, word: str) -> Scenario:
    said = {**_PLAIN, **_PRECISIONS[word]}
    if scenario.tensors is not None:
        return scenario.replace(tensors=_cast(scenario.tensors, said["weight_dtype"]), **said)
    return scenario.replace(**said)


def _cast(tensors: TensorInventory, dtype: str) -> TensorInventory:
    """Every float tensor in another type, as ``model.to(dtype)`` does; packed ones stay."""
    return replace(
        tensors,
        blocks=tuple(
            replace(
                block,
                tensors=tuple(
                    replace(t, dtype=dtype)  # type: ignore[arg-type]
                    if t.dtype in _FLOATS and not t.storage_bytes
                    else t
                    for t in block.tensors
                ),
            )
            for block in tensors.blocks
        ),
    )


# -- optimizer and what is trained ------------------------------------------------------------

_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "adamw": {"name": "adamw"},
    "adamw, fused": {"name": "adamw", "implementation": "fused"},
    "adam": {"name": "adam"},
    "sgd": {"name": "sgd"},
    "sgd, momentum 0.9": {"name": "sgd", "momentum": 0.9},
}
_OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    **_SPECIAL,
    **{
        name: {"name": name} for name in get_args(OptimizerName) if name not in ("other", *_SPECIAL)
    },
}
_STEP: Mapping[str, Any] = {"implementation": "foreach", "momentum": 0.0}


def _optimizer(scenario: Scenario) -> str:
    present = {(s.name, s.implementation, s.momentum) for s in scenario.optimizers}
    for word, said in _OPTIMIZERS.items():
        full = {**_STEP, **said}
        if present == {(full["name"], full["implementation"], full["momentum"])}:
            return word
    names = dict.fromkeys(s.class_name or s.name for s in scenario.optimizers)
    return f"{' and '.join(names)}, {AS_GIVEN}"


def _with_optimizer(scenario: Scenario, word: str) -> Scenario:
    said = {**_STEP, **_OPTIMIZERS[word], "class_name": None}
    return scenario.replace(optimizers=tuple(replace(s, **said) for s in scenario.optimizers))


_TRAINED: Mapping[str, LoraSpec | None] = {
    "the whole model": None,
    "LoRA 8, queries and values": LoraSpec(rank=8),
    "LoRA 16, every linear layer": LoraSpec(rank=16, targets=_EVERY),
    "LoRA 64, every linear layer": LoraSpec(rank=64, targets=_EVERY),
}


def _trained(scenario: Scenario) -> str:
    lora = scenario.lora
    given = "" if lora is None else f"LoRA {lora.rank}, {AS_GIVEN}"
    return next((w for w, spec in _TRAINED.items() if spec == lora), given)


def _with_trained(scenario: Scenario, word: str) -> Scenario:
    if _TRAINED[word] is not None and scenario.architecture is None:
        raise ValueError("adapters: which layers get one is not known of this model")
    return scenario.replace(lora=_TRAINED[word])


# -- batch ------------------------------------------------------------------------------------


def _with_batch_field(field: str) -> Callable[[Scenario, int], Scenario]:
    def write(scenario: Scenario, value: int) -> Scenario:
        batch = scenario.batch or BatchShape(micro_batch=1)
        return scenario.replace(batch=replace(batch, **{field: value}))

    return write


# -- devices ----------------------------------------------------------------------------------

_ONE: Mapping[str, Any] = {
    "strategy": "none",
    "world_size": 1,
    "rank": 0,
    "zero_stage": 0,
    "replicas": 1,
    "sequence_parallel": 1,
    "context_parallel": 1,
}
_STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "DDP": {"strategy": "ddp", "zero_stage": 0},
    "ZeRO-1": {"strategy": "zero", "zero_stage": 1},
    "ZeRO-2": {"strategy": "zero", "zero_stage": 2},
    "ZeRO-3": {"strategy": "zero", "zero_stage": 3},
    "FSDP": {"strategy": "fsdp", "zero_stage": 0},
}
ONE_DEVICE = "one device"


def _strategy(scenario: Scenario) -> str:
    present = scenario.parallelism
    if present.strategy == "none":
        return ONE_DEVICE
    said = {"strategy": present.strategy, "zero_stage": present.zero_stage}
    return next((w for w, s in _STRATEGIES.items() if s == said), AS_GIVEN)


def _strategy_words(scenario: Scenario) -> tuple[str, ...]:
    return (ONE_DEVICE,) if scenario.parallelism.world_size == 1 else tuple(_STRATEGIES)


def _with_strategy(scenario: Scenario, word: str) -> Scenario:
    said = _ONE if word == ONE_DEVICE else _STRATEGIES[word]
    return scenario.replace(parallelism=replace(scenario.parallelism, **said))


def _with_devices(scenario: Scenario, devices: int) -> Scenario:
    present = scenario.parallelism
    if devices == 1:
        return _with_strategy(scenario, ONE_DEVICE)
    strategy = "ddp" if present.strategy == "none" else present.strategy
    parallelism = replace(present, world_size=devices, strategy=strategy, rank=0)
    return scenario.replace(parallelism=parallelism)


# -- all --------------------------------------------------------------------------------------


def _always(*words: str) -> Callable[[Scenario], tuple[str, ...]]:
    return lambda scenario: words


def _field(name: str) -> Callable[[Scenario, Any], Scenario]:
    return lambda scenario, value: scenario.replace(**{name: value})


CHOICES: tuple[Choice | Number, ...] = (
    Choice(
        "precision",
        "Weights and autocast",
        "What the weights are kept in, and what autocast computes in.",
        _precision_words,
        _precision,
        _with_precision,
    ),
    Choice(
        "optimizer",
        "Optimizer",
        "Its state is kept for every parameter that is trained.",
        _always(*_OPTIMIZERS),
        _optimizer,
        _with_optimizer,
    ),
    Number(
        "micro_batch",
        "Micro-batch",
        "Samples in one forward pass on one device.",
        2**20,
        lambda s: 1 if s.batch is None else s.batch.micro_batch,
        _with_batch_field("micro_batch"),
    ),
    Number(
        "sequence",
        "Sequence",
        "Tokens in a sample.",
        2**24,
        lambda s: None if s.batch is None else s.batch.sequence,
        _with_batch_field("sequence"),
    ),
    Number(
        "accumulation",
        "Accumulation",
        "Micro-batches in a step.",
        2**20,
        lambda s: s.accumulation,
        _field("accumulation"),
    ),
    Choice(
        "checkpointing",
        "Checkpointing",
        "Full: each block keeps its input only, and is computed again in backward. Selective: "
        "products and attention's outputs are kept too.",
        _always("none", "selective", "full"),
        lambda s: s.checkpointing,
        _field("checkpointing"),
    ),
    Choice(
        "attention",
        "Attention",
        "One operator (sdpa), or written out (eager).",
        _always("sdpa", "eager"),
        lambda s: s.attention,
        _field("attention"),
    ),
    Choice(
        "trained",
        "Trained",
        "The whole model, or low-rank adapters beside frozen weights.",
        _always(*_TRAINED),
        _trained,
        _with_trained,
    ),
    Number(
        "devices",
        "Devices",
        "Data-parallel devices, each with its own samples.",
        2**16,
        lambda s: s.parallelism.world_size,
        _with_devices,
    ),
    Choice(
        "strategy",
        "Spread by",
        "What is copied to every device and what is shared out among them.",
        _strategy_words,
        _strategy,
        _with_strategy,
    ),
)
"""The controls, in the order in which they stand."""
