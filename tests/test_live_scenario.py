"""What is read off live models and optimizers, and that predicted state equals what they hold."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vramscope.profiler.analytic import BatchShape, OptimizerSpec, Scenario, predict
from vramscope.profiler.demo.gpt import GPT, GPTConfig
from vramscope.profiler.frameworks.live import (
    batch_shape,
    read_scenario,
    read_settings,
    unwrap_model,
)
from vramscope.profiler.frameworks.live_optimizer import unwrap_optimizers
from vramscope.storage.records import MemoryClass, Phase

CPU = torch.device("cpu")


def gpt(**changes: Any) -> GPT:
    return GPT(GPTConfig(n_layer=2, n_head=2, n_embd=32, vocab_size=64, block_size=16, **changes))


def read(model: Any, *optimizers: Any, **options: Any) -> Scenario:
    models = model if isinstance(model, list) else [model]
    return read_scenario(models, optimizers, device=CPU, **options)


def storages(tensors: Iterable[torch.Tensor]) -> int:
    found = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(found.values())


def state_of(optimizers: Iterable[torch.optim.Optimizer]) -> int:
    return storages(
        value
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def plain(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 5, bias=False)
    ).to(dtype)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p),
    "amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_predicted_to_the_byte(name: str, dtype: torch.dtype) -> None:
    model = plain(dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    idle = predict(read(model, optimizer)).phases[Phase.IDLE]
    for _ in range(2):
        model(torch.randn(4, 7, dtype=dtype)).sum().backward()
        optimizer.step()
    assert idle.parameters == storages(model.parameters())
    assert idle.gradients == storages(p.grad for p in model.parameters() if p.grad is not None)
    assert idle.optimizer_state == state_of([optimizer])
    assert idle.buffers == storages(model.buffers())


def test_autocast_leaves_state_as_it_is() -> None:
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    idle = predict(read(model, optimizer, autocast_dtype=torch.bfloat16)).phases[Phase.IDLE]
    x = torch.randint(0, 64, (2, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x, x)[1]
    assert loss is not None
    loss.backward()
    optimizer.step()
    assert idle.gradients == storages(p.grad for p in model.parameters() if p.grad is not None)
    assert idle.optimizer_state == state_of([optimizer])


def test_tied_matrix_counts_once() -> None:
    model = gpt()
    scenario = read(model)
    assert scenario.inventory.numel == sum(p.numel() for p in model.parameters())
    assert scenario.architecture is not None
    assert scenario.architecture.tied


def test_view_of_a_counted_storage_adds_a_gradient_but_no_weights() -> None:
    model = nn.Module()
    model.whole = nn.Parameter(torch.zeros(10, 3))
    model.part = nn.Parameter(model.whole.data[:4])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    idle = predict(read(model, optimizer)).phases[Phase.IDLE]
    assert idle.parameters == 4 * 30
    assert idle.gradients == 4 * (30 + 12)
    assert idle.optimizer_state == 4 * (30 + 12)


def test_frozen_and_unowned_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([*model[0].parameters(), *model[1].parameters()])
    idle = predict(read(model, optimizer)).phases[Phase.IDLE]
    assert idle.parameters == 4 * 60
    assert idle.gradients == 4 * 40
    assert idle.optimizer_state == 2 * 4 * 20 + 2 * 4


def test_meta_parameters_hold_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    assert predict(read(model)).phases[Phase.IDLE].parameters == 4 * 20


def test_two_models_and_two_optimizers() -> None:
    models = [plain(), plain()]
    optimizers = [
        torch.optim.SGD(models[0].parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam(models[1].parameters()),
    ]
    scenario = read(models, *optimizers)
    idle = predict(scenario).phases[Phase.IDLE]
    numel = sum(p.numel() for p in models[0].parameters())
    steps = 4 * len(list(models[1].parameters()))
    assert [o.name for o in scenario.optimizers] == ["sgd", "adam"]
    assert idle.optimizer_state == 4 * numel + 8 * numel + steps
    assert "2 models" in (scenario.activations_unknown or "")


def test_parameter_groups_step_one_after_another() -> None:
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 32, bias=False))
    groups = [
        {"params": model[0].parameters(), "weight_decay": 0.1},
        {"params": model[1].parameters(), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, foreach=True)
    step = predict(read(model, optimizer)).phases[Phase.OPTIMIZER]
    assert step.temporaries == 4 * 16 * 32


def test_default_implementation_depends_on_the_device() -> None:
    optimizer = torch.optim.AdamW(plain().parameters())
    assert read(plain(), optimizer).optimizers[0].implementation == "for-loop"


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Like accelerate's: an Optimizer that keeps the real one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups


def test_wrapped_optimizer_counts_once() -> None:
    inner = torch.optim.AdamW(plain().parameters())
    wrapped = AcceleratedOptimizer(AcceleratedOptimizer(inner))
    assert unwrap_optimizers([inner, wrapped, wrapped]) == [inner]


def test_real_accelerate_optimizer_is_unwrapped() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = plain()
    optimizer = torch.optim.AdamW(model.parameters())
    prepared = accelerate.Accelerator(cpu=True).prepare(optimizer)
    assert unwrap_optimizers([prepared]) == [optimizer]


def test_eight_bit_optimizer_is_known_by_its_module() -> None:
    kind = type(
        "PagedAdamW8bit", (torch.optim.Optimizer,), {"__module__": "bitsandbytes.optim.adamw"}
    )
    optimizer = kind(plain().parameters(), {"weight_decay": 0.01})
    spec = read(plain(), optimizer).optimizers[0]
    assert (spec.name, spec.paged) == ("adamw8bit", True)


def test_unknown_optimizer_is_named() -> None:
    model = plain()
    scenario = read(model, torch.optim.Adagrad(model.parameters()))
    assert scenario.optimizers == (
        OptimizerSpec(name="other", class_name="Adagrad", implementation="foreach"),
    )
    prediction = predict(scenario)
    assert prediction.phases[Phase.IDLE].optimizer_state is None
    assert any("Adagrad" in note for note in prediction.not_modelled)


class DistributedDataParallel(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.gradient_as_bucket_view = True


class OptimizedModule(nn.Module):
    """What ``torch.compile`` returns."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


def test_wrappers_are_opened() -> None:
    model = gpt()
    compiled = OptimizedModule(DistributedDataParallel(model))
    assert unwrap_model(compiled) is model
    scenario = read(compiled, torch.optim.SGD(model.parameters()), world_size=2)
    assert scenario.architecture is not None
    assert scenario.parallelism.strategy == "ddp"
    assert scenario.parallelism.bucket_view


def test_a_users_own_attribute_module_is_not_opened() -> None:
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    assert unwrap_model(model) is model


class DeepSpeedEngine(nn.Module):
    """The getters that are read off DeepSpeed's engine."""

    dp_world_size = 4

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.optimizer = SimpleNamespace(bit16_groups=[list(module.parameters())])
        self._config = SimpleNamespace(
            zero_config=SimpleNamespace(param_persistence_threshold=10, max_live_parameters=99)
        )

    def zero_optimization_stage(self) -> int:
        return 2

    def zero_reduce_bucket_size(self) -> int:
        return 1000

    def zero_overlap_comm(self) -> bool:
        return True


def test_deepspeed_engine_gives_its_stage_and_groups() -> None:
    model = gpt().bfloat16()
    flat = torch.optim.AdamW([nn.Parameter(torch.zeros(3))])
    scenario = read(DeepSpeedEngine(model), flat, world_size=4, rank=1)
    parallelism = scenario.parallelism
    assert (parallelism.strategy, parallelism.zero_stage) == ("zero", 2)
    assert (parallelism.world_size, parallelism.rank) == (4, 1)
    assert parallelism.overlap_comm
    assert parallelism.reduce_bucket_elements == 1000
    assert all(t.optimizer == 0 for t, _ in scenario.inventory.counted())
    assert predict(scenario).phases[Phase.BACKWARD].communication == 2 * 2 * 1000


def test_demo_is_recognised() -> None:
    model = gpt(dropout=0.1, gradient_checkpointing=True)
    scenario = read(model, torch.optim.AdamW(model.parameters()), batch=None)
    arch = scenario.architecture
    assert arch is not None
    assert (arch.family, arch.layers, arch.hidden, arch.heads) == ("nanogpt", 2, 32, 2)
    assert (arch.residual_dropout, arch.activation, arch.tied) == (0.1, "gelu", True)
    assert scenario.checkpointing == "full"


def test_vocabulary_as_wide_as_the_mlp_is_no_trap() -> None:
    model = GPT(GPTConfig(n_layer=1, n_head=2, n_embd=16, vocab_size=64, block_size=8))
    assert read(model).architecture is not None


def test_config_that_is_not_the_models_is_not_believed() -> None:
    model = gpt()
    model.blocks.append(nn.Linear(3, 3))
    scenario = read(model, batch=BatchShape(micro_batch=1, sequence=4))
    assert scenario.architecture is None
    prediction = predict(scenario)
    assert prediction.phases[Phase.FORWARD].activations is None
    assert any("config describes" in note for note in prediction.not_modelled)


def test_unknown_model_says_why() -> None:
    scenario = read(plain())
    assert scenario.architecture is None
    assert "Sequential is not a decoder" in (scenario.activations_unknown or "")


def test_hugging_face_model_is_recognised_without_a_warning() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        vocab_size=32,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scenario = read(model)
    assert scenario.architecture is not None
    assert scenario.attention == "eager"
    assert scenario.use_cache
    assert sum(scenario.inventory.buffers) == storages(model.buffers())


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((torch.zeros(3, 5, dtype=torch.long),), {}, (3, 5)),
        (
            (),
            {"labels": torch.zeros(9, 9), "input_ids": torch.zeros(2, 7, dtype=torch.long)},
            (2, 7),
        ),
        (({"input_ids": torch.zeros(2, 7, dtype=torch.long)},), {}, (2, 7)),
        ((torch.zeros(4, 6, 8),), {}, (4, 6)),
        ((torch.zeros(8, 3, 32, 32),), {}, (8, None)),
        ((torch.zeros(8, 30),), {}, (8, None)),
        ((), {}, None),
        ((torch.tensor(1.0), "text"), {"flag": True}, None),
    ],
)
def test_batch_shape(args: Any, kwargs: Any, expected: tuple[int, int | None] | None) -> None:
    found = batch_shape(args, kwargs)
    assert (found and (found.micro_batch, found.sequence)) == expected


def test_settings_are_flat_and_say_what_was_trained() -> None:
    model = gpt()
    model.wpe.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    settings = read_settings(
        [model],
        [optimizer],
        batch=BatchShape(micro_batch=4, sequence=16),
        autocast_dtype=torch.bfloat16,
        accumulation=2,
    )
    assert settings["model"] == "GPT"
    assert settings["optimizer"] == "AdamW"
    assert settings["parameters"] == sum(p.numel() for p in model.parameters())
    assert settings["trainable_parameters"] == settings["parameters"] - 16 * 32
    assert (settings["lr"], settings["autocast"], settings["dtype"]) == (
        3e-4,
        "bfloat16",
        "float32",
    )
    assert (settings["micro_batch"], settings["sequence"], settings["accumulation"]) == (4, 16, 2)
    assert settings["attention"] == "sdpa"
    assert all(v is None or isinstance(v, str | int | float | bool) for v in settings.values())


def test_reading_keeps_nothing_alive_and_changes_nothing() -> None:
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    before = [p.clone() for p in model.parameters()]
    read(model, optimizer)
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_classes_of_a_live_scenario_are_all_known() -> None:
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    prediction = predict(read(model, optimizer, batch=BatchShape(micro_batch=2, sequence=16)))
    for use in prediction.phases.values():
        assert all(use.of(c) is not None for c in MemoryClass)
        assert use.allocated == use.attributed
