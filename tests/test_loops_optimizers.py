"""Optimizers of every kind in real loops on the CPU: state to the byte, and what is a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.analytic import predict
from vramscope.profiler.frameworks.live import read_scenario
from vramscope.storage.reader import RunReader
from vramscope.storage.records import Event, Phase, StepRecord

CPU = torch.device("cpu")
FIRST = ProfilerConfig(detail_first=1, detail_every=0, predict=False)
EVERY_STEP = ProfilerConfig(detail_every=1, predict=False)
SIDE = 1024
LINEAR = 4 * (SIDE * SIDE + SIDE)

Make = Callable[[Any], torch.optim.Optimizer]


@dataclass
class Recorded:
    """What the store holds of a run."""

    steps: list[StepRecord]
    events: list[Event]

    @property
    def state(self) -> list[int | None]:
        return [s.end.optimizer_state for s in self.steps]


def read(path: Path) -> Recorded:
    with RunReader(path) as reader:
        run = reader.runs().rows[0].info.id
        device = reader.devices(run)[0].id
        assert device is not None
        return Recorded(list(reader.iter_steps(run, device)), list(reader.events(run)))


def train(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    config: ProfilerConfig = FIRST,
) -> Recorded:
    weight = next(model.parameters())
    x = torch.ones(1, weight.shape[-1], dtype=weight.dtype)
    with MemoryProfiler(model, optimizer, store=path, config=config):
        for _ in range(steps):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return read(path)


def storages(tensors: Iterator[torch.Tensor]) -> int:
    """Bytes of unique storages, counted here, independently."""
    found = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(found.values())


def state_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (v for v in state.values() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), LINEAR),
        (lambda p: torch.optim.Adam(p), 8_396_808),
        (lambda p: torch.optim.NAdam(p), 2 * LINEAR + 16),
        (lambda p: torch.optim.Adadelta(p), 2 * LINEAR + 8),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3 * LINEAR + 8),
        (lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9), 3 * LINEAR + 8),
        (lambda p: torch.optim.Adagrad(p), LINEAR + 8),
        (lambda p: torch.optim.ASGD(p), LINEAR + 24),
        (lambda p: torch.optim.Adafactor(p), 12_296),
    ],
    ids=[
        "SGD",
        "SGD-momentum",
        "Adam",
        "NAdam",
        "Adadelta",
        "AdamW-amsgrad",
        "RMSprop-centered-momentum",
        "Adagrad",
        "ASGD",
        "Adafactor",
    ],
)
def test_state_is_what_each_optimizer_keeps_and_making_it_is_no_event(
    store_path: Path, make: Make, state: int
) -> None:
    model = nn.Linear(SIDE, SIDE)
    recorded = train(store_path, model, make(model.parameters()), 3)
    assert recorded.state == [state] * 3
    assert [s.end.parameters for s in recorded.steps] == [LINEAR] * 3
    assert [s.end.gradients for s in recorded.steps] == [LINEAR] * 3
    assert recorded.events == []


def test_muon_keeps_one_moment_of_the_matrices_and_leaves_the_rest_to_another(
    store_path: Path,
) -> None:
    model = nn.Linear(64, 64)
    muon = torch.optim.Muon([model.weight])
    adam = torch.optim.AdamW([model.bias])
    with MemoryProfiler(model, [muon, adam], store=store_path, config=FIRST):
        for _ in range(2):
            model(torch.ones(1, 64)).sum().backward()
            muon.step()
            adam.step()
    assert read(store_path).state == [4 * 64 * 64 + 2 * 4 * 64 + 4] * 2


@pytest.mark.parametrize("skipped", [0, 2])
def test_state_made_at_the_first_step_is_there_from_its_end_on_and_is_no_leak(
    store_path: Path, skipped: int
) -> None:
    model = nn.Linear(SIDE, SIDE)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    with MemoryProfiler(model, optimizer, store=store_path, config=FIRST):
        for step in range(14):
            loss = model(torch.ones(1, SIDE)).sum() * (float("inf") if step < skipped else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    recorded = read(store_path)
    assert recorded.state == [0] * skipped + [8_396_808] * (14 - skipped)
    assert recorded.events == []


def test_state_that_exists_before_the_first_step_is_part_of_its_forward(store_path: Path) -> None:
    model = nn.Linear(SIDE, SIDE)
    train(store_path, model, torch.optim.Adagrad(model.parameters()), 1)
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info.id
        device = reader.devices(run)[0].id
        assert device is not None
        forward = reader.phases(run, device, 1)[0]
    assert forward.phase is Phase.FORWARD
    assert forward.peak.optimizer_state == 4_198_408


class Rebinds(torch.optim.Optimizer):
    """AdamW as people write it by hand: new moments at every step, the old ones let go."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            gradient = parameter.grad
            state["m"] = 0.9 * state.get("m", torch.zeros_like(parameter)) + 0.1 * gradient
            state["v"] = 0.99 * state.get("v", torch.zeros_like(parameter)) + 0.01 * gradient**2
            parameter -= 1e-3 * state["m"] / (state["v"].sqrt() + 1e-8)


@pytest.mark.parametrize("config", [FIRST, EVERY_STEP], ids=["always-on", "detail"])
def test_state_that_is_rebound_at_every_step_keeps_its_size(
    store_path: Path, config: ProfilerConfig
) -> None:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    optimizer = Rebinds(model.parameters())
    recorded = train(store_path, model, optimizer, 14, config)
    assert recorded.state == [2 * storages(model.parameters())] * 14
    assert [s.end.temporaries for s in recorded.steps] == [recorded.steps[0].end.temporaries] * 14
    assert recorded.events == []


@pytest.mark.parametrize(
    ("make", "copies", "model_copies"),
    [
        (lambda p: torch.optim.Adam(p, foreach=True), 0, 1),
        (lambda p: torch.optim.Adagrad(p, foreach=True), 0, 2),
        (lambda p: torch.optim.Adam(p, foreach=False), 3, 0),
        (lambda p: torch.optim.Adam(p, fused=True), 0, 0),
    ],
    ids=["foreach", "foreach-Adagrad", "for-loop", "fused"],
)
def test_what_an_optimizer_makes_and_drops_within_its_step(
    store_path: Path, make: Make, copies: int, model_copies: int
) -> None:
    """foreach: of the whole model at once; for-loop: of one parameter at a time; fused: nothing."""
    model = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(4)))
    train(store_path, model, make(model.parameters()), 2, EVERY_STEP)
    one = 4 * 128 * 128
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info.id
        device = reader.devices(run)[0].id
        assert device is not None
        (stepping,) = [p for p in reader.phases(run, device, 2) if p.phase is Phase.OPTIMIZER]
    idle = 128 * 4 + 4  # the loss and the output, still held by the loop
    made = stepping.peak.temporaries
    assert made is not None
    assert abs(made - (copies * one + model_copies * 4 * one)) <= 4 * idle


def test_pure_16_bit_training_keeps_16_bit_moments_and_no_master(store_path: Path) -> None:
    model = nn.Linear(SIDE, SIDE).bfloat16()
    recorded = train(store_path, model, torch.optim.AdamW(model.parameters()), 2)
    last = recorded.steps[-1]
    assert last.end.parameters == last.end.gradients == 2_099_200
    assert last.end.optimizer_state == 4_198_408
    assert not last.master_weights


def test_the_optimizer_inside_backward_leaves_state_and_no_gradients(store_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    everything = storages(model.parameters())
    with MemoryProfiler(model, optimizers.values(), store=store_path, config=EVERY_STEP):
        for _ in range(3):
            model(torch.ones(2, 32)).sum().backward()
    recorded = read(store_path)
    assert len(recorded.steps) == 3
    assert recorded.state == [2 * everything + 4 * 6] * 3
    assert [s.end.gradients for s in recorded.steps] == [0] * 3
    assert max(s.peak.gradients or 0 for s in recorded.steps) < everything
    assert [s.micro_steps for s in recorded.steps] == [1] * 3


def test_a_wrapper_that_lets_every_fourth_call_through(store_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Linear(10, 10)
    inner = torch.optim.AdamW(model.parameters())
    model, wrapper = accelerator.prepare(model, inner)
    calls = 0
    with MemoryProfiler(model, wrapper, store=store_path, config=FIRST):
        for _ in range(8):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(2, 10)).sum())
                wrapper.step()
                wrapper.zero_grad()
                calls += 1
    recorded = read(store_path)
    assert calls == 8
    assert [s.micro_steps for s in recorded.steps] == [4, 4]
    assert recorded.state == [888, 888]


def test_five_critic_steps_and_one_of_the_generator_are_one_step(store_path: Path) -> None:
    critic, generator = nn.Linear(16, 1), nn.Linear(4, 16)
    adam_critic = torch.optim.Adam(critic.parameters())
    adam_generator = torch.optim.Adam(generator.parameters())
    with MemoryProfiler(
        [critic, generator], [adam_critic, adam_generator], store=store_path, config=FIRST
    ):
        for _ in range(3):
            for _ in range(5):
                adam_critic.zero_grad()
                critic(generator(torch.randn(8, 4)).detach()).mean().backward()
                adam_critic.step()
            adam_generator.zero_grad()
            (-critic(generator(torch.randn(8, 4))).mean()).backward()
            adam_generator.step()
    recorded = read(store_path)
    assert [s.step for s in recorded.steps] == [1, 2, 3]
    both = storages(iter([*state_of(adam_critic), *state_of(adam_generator)]))
    assert recorded.state == [both] * 3
    assert both == 2 * 4 * (17 + 80) + 4 * 4


def test_two_optimizers_that_hold_the_same_state_count_it_once(store_path: Path) -> None:
    model = nn.Linear(10, 10)
    first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    second.state = first.state
    with MemoryProfiler(model, [first, second], store=store_path, config=FIRST):
        for _ in range(2):
            model(torch.ones(1, 10)).sum().backward()
            first.step()
            second.step()
    assert read(store_path).state == [440, 440]


class Paged(torch.optim.SGD):
    """Momentum in managed memory, as bitsandbytes marks it: a CPU tensor that ``is_paged``."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)
        self._managed: dict[nn.Parameter, bytearray] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if "state1" not in state:
                managed = self._managed[parameter] = bytearray(parameter.nbytes)
                moment = torch.frombuffer(managed, dtype=torch.float32).view_as(parameter)
                moment.is_paged = True  # type: ignore[attr-defined]
                state["state1"] = moment
                state["qmap"] = torch.zeros(256)
            state["state1"].mul_(0.9).add_(parameter.grad)
            parameter.sub_(state["state1"], alpha=0.1)


@pytest.mark.parametrize("config", [FIRST, EVERY_STEP], ids=["always-on", "detail"])
def test_paged_state_is_shown_beside_the_devices_bytes_and_not_in_them(
    store_path: Path, config: ProfilerConfig
) -> None:
    model = nn.Linear(64, 64)
    recorded = train(store_path, model, Paged(model.parameters()), 3, config)
    size = 4 * (64 * 64 + 64)
    assert [s.paged for s in recorded.steps] == [size] * 3
    assert recorded.state == [2 * 4 * 256] * 3
    for step in recorded.steps:
        assert step.end.allocated == step.end.attributed
        assert step.end.temporaries is not None
        assert step.end.temporaries < 4096
        assert step.peak.temporaries is not None
        assert step.peak.temporaries < 4096


def test_where_nothing_is_paged_nothing_is_said_of_it(store_path: Path) -> None:
    model = nn.Linear(4, 4)
    recorded = train(store_path, model, torch.optim.Adam(model.parameters()), 1)
    assert [s.paged for s in recorded.steps] == [None]


def vgg16(scale: int) -> nn.Module:
    """VGG16's parameters (138,357,544 at scale 1); ``scale`` divides every width."""
    widths = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    layers: list[nn.Module] = []
    before = 3
    for width in widths:
        layers.append(nn.Conv2d(before, width // scale, 3, padding=1))
        before = width // scale
    layers += [
        nn.Linear(before * 49, 4096 // scale),
        nn.Linear(4096 // scale, 4096 // scale),
        nn.Linear(4096 // scale, 1000 // scale),
    ]
    return nn.ModuleList(layers)


def test_adam_instead_of_momentum_is_one_more_copy_of_the_parameters_predicted() -> None:
    with torch.device("meta"):
        model = vgg16(1)
    model = model.to_empty(device=CPU)  # never written to, so it takes no memory
    count = sum(p.numel() for p in model.parameters())
    assert count == 138_357_544

    def state(optimizer: torch.optim.Optimizer) -> int:
        scenario = read_scenario([model], [optimizer], device=CPU, batch=None, autocast_dtype=None)
        predicted = predict(scenario).phases[Phase.IDLE].optimizer_state
        assert predicted is not None
        return predicted

    momentum = state(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    adam = state(torch.optim.Adam(model.parameters()))
    steps = 4 * len(list(model.parameters()))
    assert adam - momentum - steps == 553_430_176


def test_adam_instead_of_momentum_is_one_more_copy_of_the_parameters_measured(
    store_path: Path, tmp_path: Path
) -> None:
    def end(make: Make, path: Path) -> dict[str, int | None]:
        model = vgg16(16)
        optimizer = make(model.parameters())
        with MemoryProfiler(model, optimizer, store=path, config=FIRST):
            for _ in range(2):
                optimizer.zero_grad()
                sum(p.sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
                optimizer.step()
        return dict(read(path).steps[-1].end.items())

    momentum = end(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), store_path)
    adam = end(lambda p: torch.optim.Adam(p), tmp_path / "adam.db")
    model = vgg16(16)
    more = storages(model.parameters()) + 4 * len(list(model.parameters()))
    differing = {
        name: (adam[name] or 0) - (momentum[name] or 0)
        for name in momentum
        if adam[name] != momentum[name]
    }
    assert differing == {"optimizer_state": more, "allocated": more}
