"""Fixtures that many tests share: believable runs, written through the real writer."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url
from vramscope.storage import schema
from vramscope.storage.engine import normalise_url
from vramscope.storage.records import (
    DeviceInfo,
    Event,
    EventKind,
    MemoryClass,
    MemoryUse,
    ModuleRecord,
    PeakGroup,
    Phase,
    PhaseRecord,
    PredictionMethod,
    PredictionRecord,
    PredictionTerm,
    RunInfo,
    RunStatus,
    StepRecord,
    TimelinePoint,
)
from vramscope.storage.upgrade import upgrade
from vramscope.storage.writer import RunWriter

# A shell that starts us in the background has Ctrl-C ignored, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run to be written into a store: a GPT with AdamW, as small or as large as asked for."""

    id: str = "3f2a9c01b7d4"
    name: str = "gpt-small adamw fp32"
    status: RunStatus | None = RunStatus.COMPLETED
    """``None`` leaves the run open, as while it trains."""
    message: str | None = None
    steps: int = 300
    first_step: int = 1
    micro_steps: int = 2
    kind: str = "cpu"
    devices: int = 1
    capacity: int | None = None
    parameters: int = 52 * MIB
    activations: int = 180 * MIB
    detail_every: int = 50
    predicted_error: float = 0.02
    predicts: bool = True
    unknown: bool = False
    modules: int = 4
    notes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    oom_message: str = "Tried to allocate 1.50 GiB"
    timeline: bool = True
    """Detail steps have a timeline and the groups of tensors at their peak."""
    oom_at: int | None = None
    step_s: float = 0.21
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC) - timedelta(minutes=3))
    settings: dict[str, Any] = field(default_factory=dict)


def _books(plan: RunPlan, device: int, instant: str, wave: float) -> MemoryUse:
    """The books at one instant: ``forward``, ``backward``, ``optimizer`` or ``end``."""
    if plan.unknown:
        return MemoryUse(allocated=plan.parameters * 4)
    skew = 1 + 0.06 * device
    activations = {"forward": 1.0, "backward": 0.86, "optimizer": 0, "end": 0}[instant]
    use = {
        MemoryClass.PARAMETERS: plan.parameters,
        MemoryClass.GRADIENTS: plan.parameters,
        MemoryClass.OPTIMIZER_STATE: 2 * plan.parameters + 4096,
        MemoryClass.ACTIVATIONS: int(plan.activations * activations * skew * wave),
        MemoryClass.BUFFERS: 64 * 1024,
        MemoryClass.TEMPORARIES: 0 if instant == "end" else plan.parameters // 9,
    }
    if plan.kind == "cuda":
        use[MemoryClass.AUTOCAST_CACHE] = plan.parameters // 4 if activations else 0
    unattributed = 0 if instant == "end" else plan.parameters // 120
    allocated = sum(use.values()) + unattributed
    reserved = None
    if plan.kind == "cuda":
        full = 4.4 * plan.parameters + plan.activations * skew * 1.12
        reserved = max(int(full), allocated + 8 * MIB)
    return MemoryUse(
        **{str(k): v for k, v in use.items()},
        unattributed=unattributed,
        allocated=allocated,
        reserved=reserved,
    )


def _wave(step: int) -> float:
    """How much a step's activations differ from the usual; one step stands out."""
    return 1 + 0.035 * math.sin(step / 9) + (0.22 if step == 211 else 0)


def _step(plan: RunPlan, device: int, step: int, start_ns: int) -> StepRecord:
    wave = _wave(step)
    first = step == plan.first_step
    detail = step < plan.first_step + 3 or step % plan.detail_every == 0
    peak = _books(plan, device, "forward", wave)
    if first and not plan.unknown:
        # Adam makes its state at the end of the first step.
        shift = peak.optimizer_state or 0
        peak = replace(peak, optimizer_state=0, allocated=(peak.allocated or 0) - shift)
    return StepRecord(
        device=device,
        step=step,
        started_ns=start_ns + int((step - plan.first_step) * plan.step_s * 1e9),
        duration_s=plan.step_s * (1 + 0.05 * math.sin(step)),
        micro_steps=plan.micro_steps,
        skipped=step == 17,
        detail=detail,
        complete=step != plan.oom_at,
        carried=not detail and plan.kind == "cpu",
        end=_books(plan, device, "end", wave),
        peak=peak,
        peak_phase=Phase.FORWARD,
        peak_module="transformer.h.0.mlp" if detail and not plan.unknown else None,
        **_driver(plan, peak),
    )


def _driver(plan: RunPlan, peak: MemoryUse) -> dict[str, int]:
    """What the driver says: a context and its own reserve beside what the allocator holds."""
    if plan.kind != "cuda" or plan.unknown:
        return {}
    return {
        "device_used": (peak.reserved or 0) + 620 * MIB,
        "process_used": (peak.reserved or 0) + 487 * MIB,
        "outside_allocator": 487 * MIB,
        "other_processes": 0,
        "driver_reserved": 133 * MIB,
    }


def _phases(plan: RunPlan, device: int, step: int) -> list[PhaseRecord]:
    names = [Phase.FORWARD, Phase.BACKWARD] * plan.micro_steps + [Phase.OPTIMIZER]
    spent = {Phase.FORWARD: 0.031, Phase.BACKWARD: 0.062, Phase.OPTIMIZER: 0.009}
    return [
        PhaseRecord(
            device=device,
            step=step,
            sequence=n,
            phase=phase,
            duration_s=spent[phase],
            peak=_books(plan, device, phase.value, 1.0),
        )
        for n, phase in enumerate(names)
    ]


def _timeline(plan: RunPlan, device: int, step: int) -> list[TimelinePoint]:
    """Each phase in 12 instants: activations build up in forward and come down in backward."""
    names = [Phase.FORWARD, Phase.BACKWARD] * plan.micro_steps + [Phase.OPTIMIZER]
    points = []
    for n, phase in enumerate(names):
        for i in range(12):
            part = {Phase.FORWARD: (i + 1) / 12, Phase.BACKWARD: (11 - i) / 12}.get(phase, 0.0)
            instant = "optimizer" if phase is Phase.OPTIMIZER else "forward"
            points.append(
                TimelinePoint(
                    device=device,
                    step=step,
                    sequence=len(points),
                    offset_s=(n * 12 + i) * plan.step_s / (12 * len(names)),
                    phase=phase,
                    use=_books(plan, device, instant, part * _wave(step)),
                )
            )
    return points


def _peak_groups(plan: RunPlan, device: int, step: int) -> list[PeakGroup]:
    held = [
        (MemoryClass.ACTIVATIONS, "8×256×2048", 12, plan.activations // 2),
        (MemoryClass.OPTIMIZER_STATE, "512×2048", 16, plan.parameters),
        (MemoryClass.TEMPORARIES, "", 1, 4),
    ]
    return [
        PeakGroup(
            device=device,
            step=step,
            position=n,
            memory_class=memory_class,
            shape=shape,
            dtype="float32",
            count=count,
            bytes=size,
        )
        for n, (memory_class, shape, count, size) in enumerate(held)
    ]


def _prediction(plan: RunPlan, device: int) -> PredictionRecord:
    def off(use: MemoryUse) -> MemoryUse:
        activations = int((use.activations or 0) * (1 + plan.predicted_error * 2))
        known = {
            name: value
            for name, value in use.items()
            if name not in ("unattributed", "allocated", "reserved", "activations")
        }
        total = sum(v or 0 for v in known.values()) + activations
        return MemoryUse(**known, activations=activations, unattributed=0, allocated=total)

    phases = {
        Phase.FORWARD: off(_books(plan, device, "forward", 1.0)),
        Phase.BACKWARD: off(_books(plan, device, "backward", 1.0)),
        Phase.OPTIMIZER: off(_books(plan, device, "optimizer", 1.0)),
        Phase.IDLE: off(_books(plan, device, "end", 1.0)),
    }
    count = plan.parameters // 4
    return PredictionRecord(
        device=device,
        method=PredictionMethod.ANALYTIC,
        peak=phases[Phase.FORWARD],
        peak_phase=Phase.FORWARD,
        phases=phases,
        terms=(
            PredictionTerm(
                name="weights",
                memory_class=MemoryClass.PARAMETERS,
                bytes=plan.parameters,
                formula=f"{count:,} parameters × 4 B",
                source="torch.nn.Parameter, fp32",
            ),
            PredictionTerm(
                name="Adam's two moments",
                memory_class=MemoryClass.OPTIMIZER_STATE,
                bytes=2 * plan.parameters,
                formula=f"{count:,} × (4 + 4) B",
                source="Kingma and Ba 2015, algorithm 1",
            ),
            PredictionTerm(
                name="CUDA context",
                memory_class=None,
                bytes=480 * MIB,
                formula="measured per architecture",
                source="driver",
            ),
        ),
        not_modelled=("fragmentation inside the allocator", "temporaries of foreach kernels"),
        scenario={"optimizer": "adamw"},
    )


def record_run(url: str, plan: RunPlan) -> RunWriter | None:
    """Write a run through the real writer; returns the writer when the run is left open."""
    devices = [
        DeviceInfo(
            rank=n,
            host="node-1",
            kind=plan.kind,
            index=n,
            uuid=f"GPU-{n:08d}" if plan.kind == "cuda" else None,
            name="NVIDIA H100 80GB HBM3" if plan.kind == "cuda" else None,
            total_bytes=plan.capacity,
            driver_total_bytes=plan.capacity and plan.capacity + 133 * MIB,
            unified=False if plan.kind == "cuda" else None,
        )
        for n in range(plan.devices)
    ]
    settings = {
        "model": "GPT",
        "layers": 4,
        "hidden": 512,
        "optimizer": "AdamW",
        "weight_dtype": "float32",
        "micro_batch": 8,
        "gradient_accumulation_steps": plan.micro_steps,
        "zero_stage": 0,
        "activation_checkpointing": "none",
    }
    run = RunInfo(
        id=plan.id,
        name=plan.name,
        started_at=plan.started_at,
        world_size=plan.devices,
        settings={**settings, **plan.settings},
        environment={"torch": "2.13.0", "python": "3.11.9", "host": "node-1"},
    )
    writer = RunWriter(url, run, devices)
    if plan.predicts:
        for n in range(plan.devices):
            writer.write(_prediction(plan, n))
    start_ns = int(plan.started_at.timestamp() * 1e9)
    add_steps(writer, plan, start_ns)
    for note in plan.notes:
        writer.write(Event(kind=EventKind.NOTE, at_ns=start_ns, message=note, step=5))
    for event in plan.events:
        writer.write(event)
    if plan.oom_at is not None:
        writer.write(
            Event(
                kind=EventKind.OOM,
                at_ns=start_ns,
                message=plan.oom_message,
                device=0,
                step=plan.oom_at,
                phase=Phase.FORWARD,
                bytes=int(1.5 * GIB),
            )
        )
    if plan.status is None:
        writer.flush()
        return writer
    writer.close(plan.status, plan.message)
    return None


def add_steps(writer: RunWriter, plan: RunPlan, start_ns: int) -> None:
    """Write the plan's steps with their detail phases and modules."""
    for step in range(plan.first_step, plan.first_step + plan.steps):
        for device in range(plan.devices):
            record = _step(plan, device, step, start_ns)
            writer.write(record)
            if not record.detail or plan.unknown:
                continue
            for phase in _phases(plan, device, step):
                writer.write(phase)
            if plan.timeline:
                for point in _timeline(plan, device, step):
                    writer.write(point)
                for group in _peak_groups(plan, device, step):
                    writer.write(group)
            for n in range(plan.modules):
                writer.write(
                    ModuleRecord(
                        device=device,
                        step=step,
                        module=f"transformer.h.{n}.mlp",
                        dtype="float32",
                        activations=plan.activations // (plan.modules + n),
                    )
                )


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Path of a store that does not exist yet."""
    return tmp_path / "runs.db"


@pytest.fixture
def recorded(store_path: Path) -> Callable[..., Path]:
    """Write a believable run into the test's store: ``recorded(name=…, steps=…)``."""

    def write(**changes: Any) -> Path:
        writer = record_run(str(store_path), RunPlan(**changes))
        assert writer is None, "leave a run open with record_run itself"
        return store_path

    return write


@pytest.fixture(scope="session")
def run_builders() -> tuple[type[RunPlan], Callable[..., RunWriter | None], Callable[..., None]]:
    """``(RunPlan, record_run, add_steps)`` for tests that hold a run open or share a store."""
    return RunPlan, record_run, add_steps


# --- The store itself: small records, both backends, nothing left behind. ---

POSTGRES_VARIABLE = "VRAMSCOPE_TEST_POSTGRES"


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Whatever a test starts of ours ends with it (so does any thread that would block exit)."""
    before = set(threading.enumerate())
    yield
    left = _ours(before)
    deadline = time.monotonic() + 3
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = _ours(before)
    assert not left, f"threads left behind: {left}"


def _ours(before: set[threading.Thread]) -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith("vramscope")
    ]


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place for a store on each backend: a file, and a schema of its own on a server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/store.db"
        return
    with _postgres_schema() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def ready_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store without a run on each backend; made once, since making one takes a while."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("_sqlite_template"), tmp_path / "store.db")
        return f"sqlite:///{tmp_path}/store.db"
    url: str = request.getfixturevalue("_postgres_store")
    engine = create_engine(normalise_url(url))
    with engine.begin() as connection:
        names = ", ".join(table.name for table in schema.metadata.sorted_tables)
        connection.exec_driver_sql(f"TRUNCATE {names} RESTART IDENTITY")
    engine.dispose()
    return url


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "store.db"
    path.touch()
    upgrade(path)
    return path


@pytest.fixture(scope="session")
def _postgres_store() -> Iterator[str]:
    with _postgres_schema() as url:
        upgrade(url)
        yield url


@contextmanager
def _postgres_schema() -> Iterator[str]:
    server = os.environ.get(POSTGRES_VARIABLE)
    if not server:
        pytest.skip(f"{POSTGRES_VARIABLE} is not set: give the URL of a PostgreSQL database")
    name = f"vramscope_test_{uuid.uuid4().hex[:12]}"
    engine = create_engine(normalise_url(server))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    url = make_url(server).update_query_dict({"options": f"-csearch_path={name}"})
    yield url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")
    engine.dispose()


@pytest.fixture
def make_run() -> Callable[..., RunInfo]:
    """A run with some settings: ``make_run(id=…, name=…)``."""

    def make(**changes: Any) -> RunInfo:
        values: dict[str, Any] = {
            "id": "0123456789ab",
            "name": "small run",
            "started_at": datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
            "settings": {"optimizer": "adamw", "lr": 0.1, "fused": None, "batch": 8, "amp": False},
            "environment": {"host": "node1"},
        }
        return RunInfo(**{**values, **changes})

    return make


@pytest.fixture
def make_step() -> Callable[..., StepRecord]:
    """A step by number and allocated bytes at its peak: ``make_step(3, 10 * MIB)``."""

    def make(step: int, allocated: int | None = 100, **changes: Any) -> StepRecord:
        values: dict[str, Any] = {
            "device": 0,
            "started_ns": step * 1_000_000,
            "duration_s": 0.05,
            "micro_steps": 1,
            "end": MemoryUse(parameters=10, unattributed=0, allocated=10),
            "peak": MemoryUse(activations=allocated, allocated=allocated),
        }
        return StepRecord(step=step, **{**values, **changes})

    return make


@dataclass(frozen=True)
class CommandResult:
    """How one ``vramscope`` command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def vramscope(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CommandResult]:
    """Run the command line in this process: ``vramscope("runs", "--db", path)``."""
    import signal

    from vramscope.app.cli import main

    monkeypatch.delenv("VRAMSCOPE_DB", raising=False)
    monkeypatch.setattr(signal, "signal", lambda kind, handler: None)

    def command(*arguments: object) -> CommandResult:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        code = ended.value.code
        return CommandResult(code if isinstance(code, int) else 0, captured.out, captured.err)

    return command


@pytest.fixture
def store(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The store that the dashboard's pages read in this test, and nothing of another test's."""
    import streamlit as st

    monkeypatch.setenv("VRAMSCOPE_DB", str(store_path))
    yield store_path
    st.cache_data.clear()
    st.cache_resource.clear()


@pytest.fixture
def kept_bytes() -> Callable[..., int]:
    """Bytes of the storages that autograd saves in a forward pass, the model's own left out."""
    import torch

    def count(model: torch.nn.Module, forward: Callable[[], Any]) -> int:
        own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        seen: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                seen[storage._cdata] = storage
            return tensor.detach()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            forward()
        return sum(storage.nbytes() for storage in seen.values())

    return count


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Any]]:
    """Runs a script of ``tests/ranks`` on several processes; returns what each one wrote."""

    def run(script: str, world: int, *arguments: str) -> list[Any]:
        folder = tmp_path_factory.mktemp("ranks")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(world)]
        command += [str(Path(__file__).parent / "ranks" / script), str(folder), *arguments]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("VRAMSCOPE_")}
        ended = subprocess.run(
            command,
            env={**environment, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        files = [folder / f"rank{rank}.json" for rank in range(world)]
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    return run
