"""``MemoryProfiler``: the hook that a training loop carries."""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from vramscope.storage.errors import StorageError
from vramscope.storage.records import DeviceInfo, Event, EventKind, Phase, RunInfo, RunStatus
from vramscope.storage.writer import RunWriter

from . import identity
from .bookkeeper import Bookkeeper
from .census import Census
from .config import ProfilerConfig
from .devices import SourceFactory, Sources
from .endings import Request, dump_snapshot, ending_of, out_of_memory_behind, request_of
from .facts import StepFacts
from .frameworks.deepspeed import is_engine, optimizer_of
from .frameworks.wrappers import unwrapped
from .hooks import Hooks
from .prediction import Predictor
from .recorder import StepRecorder

_attached: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()


class MemoryProfiler:
    """Records what memory a training loop holds, by class, at every step and on every device.

    The loop's body does not change::

        with MemoryProfiler(model, optimizer, run_name="baseline"):
            train(model, optimizer)

    It changes no result, keeps no tensor alive, and never stops training: a fault of its own is
    one warning.

    Args:
        model: The root module, or several.
        optimizer: Its optimizer, or several; wrappers are looked through. Without one, a
            DeepSpeed engine's is taken, or every optimizer that steps is heard.
        run_name: A name for people; the script's name by default.
        store: URL or path of the store; ``VRAMSCOPE_DB`` or ``vramscope.db`` by default.
        config: When to follow in detail, and whether to predict.
        sources: Makes the memory source of a device; torch and NVML by default.

    Raises:
        TypeError: ``model`` or ``optimizer`` is something else.
        ValueError: The URL of the store cannot be understood.
    """

    def __init__(
        self,
        model: torch.nn.Module | Iterable[torch.nn.Module],
        optimizer: Any = None,
        *,
        run_name: str | None = None,
        store: str | Path | None = None,
        config: ProfilerConfig | None = None,
        sources: SourceFactory | None = None,
    ) -> None:
        self._models = [weakref.ref(m) for m in _modules(model)]
        self._optimizers = [weakref.ref(o) for o in _optimizers(optimizer, self._models)]
        self._config = config or ProfilerConfig()
        self._store = store
        self._name = run_name or identity.default_run_name()
        self._sources = Sources(sources)
        self._writer: RunWriter | None = None
        self._recorder: StepRecorder | None = None
        self._census: Census | None = None
        self._books = Bookkeeper()
        self._predictor: Predictor | None = None
        self._hooks: Hooks | None = None
        self._devices: dict[torch.device, int] = {}
        self._counts = 0
        self._rank, self._world_size = identity.rank_and_world()
        self.run_id: str | None = None
        """Identity of the run once attached, the same on every rank."""

    # ---- life

    def attach(self) -> MemoryProfiler:
        """Begins to record. A store that cannot be written is a warning, and nothing else.

        Raises:
            RuntimeError: This profiler, or another one on the same model, is attached already.
        """
        models, optimizers = self._living_models(), self._living_optimizers()
        self._refuse_twice(models)
        self.run_id = identity.run_id(self._world_size)
        block_bytes: dict[str, int] = {}
        self._census = Census(models, optimizers, block_bytes)
        devices = self._new_devices()
        try:
            self._writer = RunWriter(self._store, self._run_info(), [info for _, info in devices])
        except StorageError as error:
            self._sources.close()
            warnings.warn(
                f"vramscope records nothing; training goes on. {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return self
        if self._config.predict:
            self._predictor = Predictor(self._writer, self._rank, self._world_size)
        recorder = StepRecorder(
            self._census,
            self._living_models,
            self._config,
            block_bytes,
            self._keep,
            on_new_call=self._on_new_call,
            on_new_optimizer=lambda optimizer: self.adopt([], [optimizer]),
            on_step=self._after_step,
            on_out_of_memory=self._on_out_of_memory,
        )
        self._recorder = recorder
        self._books = Bookkeeper()
        for position, (device, info) in enumerate(devices):
            self._record_device(device, position, info)
        for optimizer in optimizers:
            recorder.expect(optimizer)
        self._hooks = Hooks(recorder, self._on_fault)
        self._hooks.install()
        for model in models:
            _attached[model] = self.run_id
            self._hooks.watch(model)
        atexit.register(self._at_exit)
        return self

    def close(self, status: RunStatus = RunStatus.COMPLETED, message: str | None = None) -> None:
        """Stops recording, takes every hook off, and writes what is left.

        Args:
            status: How the run ended.
            message: Why, for a person to read.
        """
        if self._hooks is None:
            return
        self._hooks.remove()
        self._hooks = None
        atexit.unregister(self._at_exit)
        for model in self._living_models():
            _attached.pop(model, None)
        if self._recorder is not None:
            self._recorder.abandon()
            self._recorder = None
        if self._writer is not None:
            self._writer.close(status, message)
            self._writer = None
        self._census = None
        self._devices.clear()
        self._counts = 0
        self._sources.close()

    def __enter__(self) -> MemoryProfiler:
        return self.attach()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish(error)

    def finish(self, error: BaseException | None) -> None:
        """Closes a run that ends by this error, or by none; the error itself is not kept."""
        status, message = ending_of(error)
        exhausted = out_of_memory_behind(error)
        if exhausted is not None and self._recorder is not None:
            self._recorder.out_of_memory(exhausted)
        self.close(status, message)

    def interrupted(self, message: str) -> None:
        """Closes a run that something outside the program ends."""
        self.close(RunStatus.INTERRUPTED, message)

    def _at_exit(self) -> None:
        """The program ends without :meth:`close`: by an error that nobody caught, or not."""
        self.finish(getattr(sys, "last_value", None))

    @property
    def steps(self) -> int:
        """Steps recorded so far, the open one included."""
        return self._recorder.step_number if self._recorder is not None else 0

    # ---- said by the user

    def step(self) -> None:
        """Says that a step ends here; from now on steps end nowhere else."""
        if self._recorder is not None:
            self._recorder.loop.step()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Says which phase the code inside is, whatever the hooks would say.

        Args:
            name: ``forward``, ``backward``, ``optimizer``, ``idle`` or ``eval``.

        Raises:
            ValueError: ``name`` is none of these.
        """
        try:
            phase = Phase(name)
        except ValueError:
            allowed = ", ".join(p.value for p in Phase)
            raise ValueError(f"phase must be one of {allowed}; got {name!r}") from None
        if self._recorder is not None:
            self._recorder.loop.say(phase)
        try:
            yield
        finally:
            if self._recorder is not None:
                self._recorder.loop.say(None)

    def note(self, text: str) -> None:
        """Keeps a remark with the run, at this step; the dashboard shows it on the chart."""
        self._note(EventKind.NOTE, text)

    def _note(self, kind: EventKind, text: str, about: Request | None = None) -> None:
        if self._writer is None or self._recorder is None:
            return
        self._writer.write(
            Event(
                kind=kind,
                at_ns=time.time_ns(),
                message=text,
                device=self._devices.get(about.device) if about and about.device else None,
                step=self._recorder.step_number or None,
                phase=self._recorder.loop.phase,
                bytes=about.bytes if about else None,
            )
        )

    # ---- inside

    def adopt(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> bool:
        """Takes further models and optimizers of the same loop in; says whether any was new."""
        if self._hooks is None or self._census is None or self._recorder is None:
            return False
        known = {id(m) for m in self._living_models()}
        new_models = [m for m in models if id(m) not in known]
        known = {id(o) for o in self._living_optimizers()}
        new_optimizers = [o for o in optimizers if id(o) not in known]
        self._models += [weakref.ref(m) for m in new_models]
        self._optimizers += [weakref.ref(o) for o in new_optimizers]
        self._census.add(new_models, new_optimizers)
        for model in new_models:
            _attached[model] = self.run_id or ""
            self._hooks.watch(model)
        for optimizer in new_optimizers:
            self._recorder.expect(optimizer)
        return bool(new_models)

    def _on_out_of_memory(self, error: BaseException) -> None:
        message = f"{type(error).__name__}: {error}"
        if self._predictor is not None:
            message += self._predictor.ways_out(
                self._living_models(), self._living_optimizers(), self._devices
            )
        self._note(EventKind.OOM, message, request_of(error))
        if self._config.snapshot_on_oom is not None:
            path = dump_snapshot(self._config.snapshot_on_oom, self.run_id or "run", self._rank)
            if path is not None:
                self._note(EventKind.NOTE, f"Allocator snapshot saved as {path}")

    def heard_late(self, module: torch.nn.Module, args: Any) -> None:
        """A root module was attached or adopted while its call had already begun."""
        if self._hooks is not None:
            self._hooks.forward_begins(module, args, {})

    def _on_new_call(self, args: Any, kwargs: Any) -> None:
        if self._predictor is not None:
            self._predictor.saw_call(args, kwargs)

    def _after_step(self, micro_steps: int) -> None:
        if self._predictor is not None and self._predictor.due:
            self._predictor.predict(
                self._living_models(),
                self._living_optimizers(),
                self._devices,
                micro_steps,
            )
        if self._census is None or self._census.counts == self._counts:
            return
        self._counts = self._census.counts
        for device, info in self._new_devices():
            if self._writer is not None and self._recorder is not None:
                self._record_device(device, self._writer.add_device(info), info)

    def _record_device(self, device: torch.device, position: int, info: DeviceInfo) -> None:
        self._devices[device] = position
        source = self._sources.of(device)
        self._books.add_device(source.device, position, info.total_bytes)
        if self._recorder is not None:
            self._recorder.add_device(source)

    def _keep(self, facts: StepFacts) -> None:
        if self._writer is not None:
            self._writer.write_later(partial(self._books.records, facts))

    def _new_devices(self) -> list[tuple[torch.device, DeviceInfo]]:
        if self._census is None:
            return []
        new = [d for d in self._census.devices() if d not in self._devices]
        return [(d, self._sources.of(d).describe(self._rank, identity.host_name())) for d in new]

    def _run_info(self) -> RunInfo:
        return RunInfo(
            id=self.run_id or "",
            name=self._name,
            started_at=datetime.now(UTC),
            world_size=self._world_size,
            environment={
                **identity.environment(),
                "nvidia_driver": self._sources.driver_version,
            },
        )

    def _refuse_twice(self, models: Sequence[torch.nn.Module]) -> None:
        if self._hooks is not None:
            raise RuntimeError(f"this profiler is attached already, to run {self.run_id}")
        for model in models:
            if model in _attached:
                raise RuntimeError(
                    f"a profiler is attached to this {type(model).__name__} already (run "
                    f"{_attached[model]}); close that one first"
                )

    def _living_models(self) -> list[torch.nn.Module]:
        return [m for m in (r() for r in self._models) if m is not None]

    def _living_optimizers(self) -> list[torch.optim.Optimizer]:
        return [o for o in (r() for r in self._optimizers) if o is not None]

    def _on_fault(self, fault: Exception) -> None:
        where = traceback.extract_tb(fault.__traceback__)[-1]
        self._note(
            EventKind.WARNING,
            f"Recording stopped: {type(fault).__name__}: {fault} "
            f"({Path(where.filename).name}:{where.lineno})",
        )
        if self._recorder is not None:
            self._recorder.abandon()


def is_attached(model: torch.nn.Module) -> bool:
    """Whether a profiler is attached to this model."""
    return model in _attached


def _modules(model: Any) -> list[torch.nn.Module]:
    models = [model] if isinstance(model, torch.nn.Module) else list(_iterable(model, "model"))
    for item in models:
        if not isinstance(item, torch.nn.Module):
            raise TypeError(
                f"model must be a torch.nn.Module or several, got {type(item).__name__}"
            )
    return models


def _optimizers(
    optimizer: Any, models: Iterable[weakref.ref[torch.nn.Module]]
) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        engines = [m for m in (r() for r in models) if m is not None and is_engine(m)]
        return [o for o in map(optimizer_of, engines) if o is not None]
    inner = unwrapped(optimizer)
    several = [inner] if isinstance(inner, torch.optim.Optimizer) else _iterable(inner, "optimizer")
    optimizers: list[torch.optim.Optimizer] = []
    for item in map(unwrapped, several):
        if not isinstance(item, torch.optim.Optimizer):
            raise TypeError(
                f"optimizer must be a torch.optim.Optimizer or several, got {type(item).__name__}"
            )
        if all(item is not known for known in optimizers):
            optimizers.append(item)
    return optimizers


def _iterable(value: Any, name: str) -> Iterable[Any]:
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"{name} cannot be a {type(value).__name__}") from None
