"""The hook on real training loops on the CPU: what it records, and that it leaves no trace."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optim
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.demo.gpt import GPT, GPTConfig
from vramscope.storage.reader import RunReader
from vramscope.storage.records import EventKind, Phase, RunStatus, StepRecord

EVERY_STEP = ProfilerConfig(detail_every=1, predict=False)
RARELY = ProfilerConfig(detail_first=1, detail_every=0, predict=False)


def small_gpt(dropout: float = 0.0) -> GPT:
    torch.manual_seed(1)
    return GPT(GPTConfig(n_layer=2, n_embd=64, n_head=4, block_size=32, dropout=dropout))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 256, (4, 32)), torch.randint(0, 256, (4, 32))


def nbytes(tensors: Iterator[torch.Tensor]) -> int:
    """Bytes of unique storages, counted here, independently."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (v for v in state.values() if isinstance(v, torch.Tensor))


@dataclass
class Recorded:
    """What the store holds of a run."""

    steps: list[StepRecord]
    status: RunStatus
    message: str | None
    events: list[tuple[EventKind, str]]
    path: Path
    run_id: str


def read(path: Path) -> Recorded:
    with RunReader(path) as reader:
        info = reader.runs().rows[0].info
        device = reader.devices(info.id)[0]
        assert device.id is not None
        return Recorded(
            steps=list(reader.iter_steps(info.id, device.id)),
            status=info.status,
            message=info.status_message,
            events=[(e.kind, e.message) for e in reader.events(info.id)],
            path=path,
            run_id=info.id,
        )


@pytest.fixture(autouse=True)
def no_trace_left() -> Iterator[None]:
    """No hook of torch's is left behind, whatever the test did."""
    from torch.amp.grad_scaler import GradScaler
    from torch.nn.modules import module

    def hooks() -> tuple[object, ...]:
        return (
            len(optim._global_optimizer_pre_hooks),
            len(optim._global_optimizer_post_hooks),
            len(module._global_forward_hooks),
            len(module._global_forward_pre_hooks),
            torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
            GradScaler.step,
            len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
        )

    before = hooks()
    yield
    assert hooks() == before


@pytest.mark.parametrize("config", [EVERY_STEP, RARELY], ids=["detail", "always-on"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p),
        lambda p: torch.optim.AdamW(p, foreach=True),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    ],
)
def test_every_step_holds_what_the_loop_holds_to_the_byte(
    store_path: Path,
    config: ProfilerConfig,
    make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    model = small_gpt()
    optimizer = make(model.parameters())
    truth = []
    with MemoryProfiler(model, optimizer, store=store_path, config=config):
        for _ in range(4):
            _, loss = model(*batch())
            loss.backward()
            optimizer.step()
            truth.append(
                (
                    nbytes(model.parameters()),
                    nbytes(p.grad for p in model.parameters() if p.grad is not None),
                    nbytes(state_tensors(optimizer)),
                )
            )
            optimizer.zero_grad()
    steps = read(store_path).steps
    assert [(s.end.parameters, s.end.gradients, s.end.optimizer_state) for s in steps] == truth
    assert [s.end.unattributed for s in steps] == [0] * 4
    assert all(s.end.allocated == s.end.attributed for s in steps)


def test_the_peak_is_what_torchs_own_memory_events_say(store_path: Path) -> None:
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x, y = batch()

    def step() -> None:
        _, loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    held = nbytes([*model.parameters(), *state_tensors(optimizer), x, y])  # type: ignore[arg-type]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as trace:
        step()
    running, highest = 0, 0
    for event in trace.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            running += event.nbytes()
            highest = max(highest, running)
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        step()
    (recorded,) = read(store_path).steps
    assert recorded.peak.allocated is not None
    assert recorded.peak.allocated == pytest.approx(held + highest, rel=0.01)


def test_foreach_takes_one_more_copy_of_the_parameters(store_path: Path) -> None:
    model = nn.Linear(1000, 1000)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        model(torch.ones(1, 1000)).sum().backward()
        optimizer.step()
    (recorded,) = read(store_path).steps
    assert recorded.peak_phase is Phase.OPTIMIZER
    assert recorded.peak.temporaries == pytest.approx(nbytes(model.parameters()), rel=0.01)


def test_accumulated_gradients_appear_at_the_first_micro_step_and_stay(store_path: Path) -> None:
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        for _ in range(2):
            for _ in range(4):
                model(*batch())[1].backward()
            optimizer.step()
            optimizer.zero_grad()
    recorded = read(store_path)
    assert [s.micro_steps for s in recorded.steps] == [4, 4]
    with RunReader(store_path) as reader:
        phases = reader.phases(recorded.run_id, reader.devices(recorded.run_id)[0].id, 2)
    everything = nbytes(model.parameters())
    forwards = [p.peak.gradients for p in phases if p.phase is Phase.FORWARD]
    assert forwards == [0, everything, everything, everything]
    assert phases[-1].phase is Phase.OPTIMIZER
    assert phases[-1].peak.gradients == everything


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_either_way(store_path: Path, set_to_none: bool) -> None:
    model = small_gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            model(*batch())[1].backward()
            optimizer.step()
    assert [s.end.gradients for s in read(store_path).steps] == [nbytes(model.parameters())] * 3


def test_activations_equal_what_autograd_saves(store_path: Path) -> None:
    model = small_gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batch()
    known = {t.untyped_storage().data_ptr() for t in (x, y, *model.parameters())}
    saved: dict[int, tuple[torch.Tensor, int]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = (tensor.detach(), storage.nbytes())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(x, y)
    expected = sum(size for _, size in saved.values())
    saved.clear()
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        model(x, y)[1].backward()
        optimizer.step()
    recorded = read(store_path)
    with RunReader(store_path) as reader:
        device = reader.devices(recorded.run_id)[0].id
        phases = reader.phases(recorded.run_id, device, 1)
        modules = reader.modules(recorded.run_id, device, 1)
    assert phases[0].peak.activations == expected
    assert sum(m.activations for m in modules) == expected
    assert len(modules) > 8


def test_autocast_copies_are_a_class_of_their_own(store_path: Path) -> None:
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(*batch())[1]
        loss.backward()
        optimizer.step()
    recorded = read(store_path)
    with RunReader(store_path) as reader:
        phases = reader.phases(recorded.run_id, reader.devices(recorded.run_id)[0].id, 1)
    linears = sum(
        p.numel() for m in model.modules() if isinstance(m, nn.Linear) for p in m.parameters()
    )
    assert phases[0].peak.autocast_cache == 2 * linears


def test_a_step_that_the_scaler_skips_is_a_step_of_its_own(store_path: Path) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with MemoryProfiler(model, optimizer, store=store_path, config=RARELY):
        for factor in (float("inf"), 1.0, 1.0):
            loss = model(torch.ones(2, 8)).sum() * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    steps = read(store_path).steps
    assert [(s.skipped, s.micro_steps) for s in steps] == [(True, 1), (False, 1), (False, 1)]


def test_two_optimizers_make_one_step(store_path: Path) -> None:
    critic, generator = nn.Linear(16, 1), nn.Linear(4, 16)
    steps_critic = torch.optim.Adam(critic.parameters())
    steps_generator = torch.optim.Adam(generator.parameters())
    with MemoryProfiler(
        [critic, generator],
        [steps_critic, steps_generator],
        store=store_path,
        config=EVERY_STEP,
    ):
        for _ in range(2):
            fake = generator(torch.randn(8, 4))
            for _ in range(3):
                critic(fake.detach()).mean().backward()
                steps_critic.step()
                steps_critic.zero_grad()
            (-critic(fake).mean()).backward()
            steps_generator.step()
            steps_generator.zero_grad()
            steps_critic.zero_grad()
    steps = read(store_path).steps
    assert len(steps) == 2
    assert [s.end.optimizer_state for s in steps] == [
        nbytes([*state_tensors(steps_critic), *state_tensors(steps_generator)])  # type: ignore[arg-type]
    ] * 2


def test_evaluation_is_no_step(store_path: Path) -> None:
    model = small_gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=RARELY) as profiler:
        for _ in range(2):
            model(*batch())[1].backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model(*batch())
            with profiler.phase("eval"):
                model(*batch())
    assert [s.step for s in read(store_path).steps] == [1, 2]


def test_shapes_that_change_are_followed_anew(store_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = ProfilerConfig(detail_first=1, detail_every=0, predict=False)
    with MemoryProfiler(model, optimizer, store=store_path, config=config):
        for rows in [8] * 12 + [64] * 4:
            model(torch.randn(rows, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    steps = read(store_path).steps
    followed = [s.step for s in steps if s.detail]
    assert followed[0] == 1
    assert followed[-1] == 13
    last = steps[-1]
    assert last.carried
    assert last.peak.activations != steps[0].peak.activations


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_hook_changes_no_number(store_path: Path, dropout: float) -> None:
    def losses(profiled: bool) -> list[float]:
        model = small_gpt(dropout)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        config = ProfilerConfig(detail_every=5)
        profiler = MemoryProfiler(model, optimizer, store=store_path, config=config)
        if profiled:
            profiler.attach()
        torch.manual_seed(2)
        values = []
        for _ in range(50):
            loss = model(*batch())[1]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append(loss.item())
        profiler.close()
        return values

    bare = losses(False)
    assert len(set(bare)) > 40
    assert losses(True) == bare


def test_it_keeps_nothing_alive_and_grows_nothing(store_path: Path) -> None:
    model = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    threads = threading.active_count()
    profiler = MemoryProfiler(
        model, optimizer, store=store_path, config=ProfilerConfig(detail_every=2, predict=False)
    ).attach()
    dead = []
    for _ in range(20):
        x = torch.randn(4, 32)
        out = model(x)
        out.sum().backward()
        optimizer.step()
        dead += [weakref.ref(x), weakref.ref(out)]
        del x, out
    assert [reference() for reference in dead] == [None] * 40
    gone = weakref.ref(model)
    profiler.close()
    del model, optimizer
    gc.collect()
    assert gone() is None
    assert threading.active_count() == threads


def test_detaching_leaves_the_model_as_it_was(store_path: Path) -> None:
    model = nn.Linear(4, 4)
    with MemoryProfiler(model, store=store_path, config=RARELY):
        assert model._forward_pre_hooks
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("boom"), RunStatus.FAILED),
        (KeyboardInterrupt(), RunStatus.INTERRUPTED),
        (torch.OutOfMemoryError("CUDA out of memory"), RunStatus.OUT_OF_MEMORY),
        (SystemExit(3), RunStatus.FAILED),
        (SystemExit(0), RunStatus.COMPLETED),
    ],
)
@pytest.mark.parametrize("where", ["forward", "backward", "optimizer", "between"])
def test_the_users_error_passes_and_what_was_recorded_stays(
    store_path: Path, error: BaseException, status: RunStatus, where: str
) -> None:
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            if armed == "forward":
                raise error
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            if armed == "backward":
                raise error
            return grad

    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Raises.apply(super().forward(x))

    class Descent(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            if armed == "optimizer":
                raise error
            super().step()

    armed = ""
    model = Model(4, 4)
    optimizer = Descent(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    profiler = MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP)

    def train() -> None:
        nonlocal armed
        with profiler:
            step()
            step()
            armed = where
            step()
            raise error

    with pytest.raises(type(error)) as caught:
        train()
    assert caught.value is error
    recorded = read(store_path)
    assert recorded.status is status
    assert len([s for s in recorded.steps if s.complete]) == (3 if where == "between" else 2)
    if status is RunStatus.OUT_OF_MEMORY:
        assert recorded.events[0][0] is EventKind.OOM


def test_training_goes_on_after_an_error_that_was_caught(store_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        for rows in (4, 5, 4):
            try:
                model(torch.ones(2, rows)).sum().backward()
                optimizer.step()
            except RuntimeError:
                continue
    assert [s.end.unattributed for s in read(store_path).steps] == [0, 0]


def test_a_store_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taken = tmp_path / "notes.db"
    taken.write_text("a shopping list")
    with pytest.warns(RuntimeWarning, match="records nothing; training goes on"):
        profiler = MemoryProfiler(model, optimizer, store=taken).attach()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    profiler.note("ignored")
    profiler.close()
    assert taken.read_text() == "a shopping list"


def test_a_fault_of_ours_is_one_warning(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vramscope.profiler.census import Census

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
            for step in range(4):
                if step == 2:
                    monkeypatch.setattr(Census, "holdings", lambda self: 1 / 0)
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
    ours = [w for w in caught if "vramscope stopped recording" in str(w.message)]
    assert len(ours) == 1
    recorded = read(store_path)
    assert len(recorded.steps) == 2
    assert "ZeroDivisionError" in recorded.events[0][1]


def test_a_fault_while_following_an_operator_does_not_reach_it(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vramscope.profiler.tracker import AllocationTracker

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(AllocationTracker, "enter", lambda *_, **__: 1 / 0)

    def train() -> None:
        with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    with pytest.warns(RuntimeWarning, match="stopped recording"):
        train()
    assert model.weight.grad is not None


def test_the_same_model_is_not_attached_twice(store_path: Path) -> None:
    model = nn.Linear(4, 4)
    with (
        MemoryProfiler(model, store=store_path, config=RARELY) as profiler,
        pytest.raises(RuntimeError, match=f"attached to this Linear already.*{profiler.run_id}"),
    ):
        MemoryProfiler(model, store=store_path).attach()


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        (3, None, "model cannot be a int"),
        ([3], None, "model must be a torch.nn.Module or several, got int"),
        (nn.Linear(1, 1), "adam", "optimizer must be a torch.optim.Optimizer or several, got str"),
    ],
)
def test_wrong_arguments_are_named(model: object, optimizer: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        MemoryProfiler(model, optimizer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"detail_every": -1}, {"detail_first": 1.5}, {"driver_every_s": -1}]
)
def test_wrong_settings_are_named(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"ProfilerConfig.{next(iter(change))}"):
        ProfilerConfig(**change)  # type: ignore[arg-type]


def test_notes_and_unknown_phases(store_path: Path) -> None:
    model = nn.Linear(4, 4)
    with MemoryProfiler(model, store=store_path, config=RARELY) as profiler:
        profiler.note("warm-up over")
        with pytest.raises(ValueError, match="phase must be one of forward, backward"):
            profiler.phase("training").__enter__()
    assert read(store_path).events == [(EventKind.NOTE, "warm-up over")]


def test_an_optimizer_inside_a_wrapper_is_counted_once(store_path: Path) -> None:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    Accelerator(cpu=True)
    model = nn.Linear(10, 10)
    inner = torch.optim.AdamW(model.parameters())
    wrapper = AcceleratedOptimizer(inner)
    with MemoryProfiler(model, [wrapper, inner], store=store_path, config=RARELY):
        model(torch.ones(2, 10)).sum().backward()
        wrapper.step()
    assert [s.end.optimizer_state for s in read(store_path).steps] == [888]
