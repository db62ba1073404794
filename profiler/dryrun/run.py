"""``dry_run``: the real model, optimizer and loop, run on tensors that hold nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from vramscope.storage.records import Record

from ..bookkeeper import Bookkeeper
from ..hooks import Hooks
from ..storages import fakes_counted
from .cuda import as_on_cuda
from .fakes import build_fake
from .follower import FAKE, StepFollower
from .libraries import libraries_see_real_tensors
from .result import DryRun
from .values import KnownValues

_M = TypeVar("_M", bound=nn.Module)
_Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
BLOCK_BYTES = {"cpu": 1, "cuda": 512}
"""What an allocation is rounded up to, by kind of device."""
CUBLAS_WORKSPACE = 8_519_680
"""Bytes: torch's default ``CUBLAS_WORKSPACE_CONFIG`` of ``:4096:2:16:8`` (32 MiB on Hopper)."""


def dry_run(
    build_model: Callable[[], _M],
    step: Callable[..., object],
    *,
    build_optimizer: Callable[[Iterable[nn.Parameter]], _Optimizers] | None = None,
    prepare: Callable[[_M], object] | None = None,
    device: Literal["cuda", "cpu"] = "cuda",
    steps: int = 2,
    warm_start: bool = False,
    workspace_bytes: int = CUBLAS_WORKSPACE,
) -> DryRun:
    """Runs a training loop without memory and without a GPU, and says what it would hold.

    Model, optimizer and step run as they are, on fake CPU tensors; only what a GPU keeps or
    chooses differently is put in its place (see ``docs/dryrun.md``)::

        def step(model, optimizer):
            tokens = torch.randint(0, 50_000, (8, 1024))
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        print(dry_run(build, step, build_optimizer=AdamW).step.peak.allocated)

    Args:
        build_model: Makes the model, cast to its type; called with ``meta`` as the default device.
        step: One step of the loop; called with the model and, if there is one, the optimizer.
            Tensors that it makes are fake, wherever it asks for them to be.
        build_optimizer: Makes the optimizer (or several) from the parameters to train; left out,
            a step is whatever ``step`` does: inference.
        prepare: Called with the model once its tensors are fake, before there is an optimizer:
            ``fully_shard`` belongs here.
        device: Whose semantics: what autograd saves, how optimizers step, how blocks are rounded.
        steps: How often to call ``step``. From the second step on optimizer state exists.
        warm_start: Step the optimizer once beforehand, so that its state exists at the first step
            already: with ``steps=1`` half the time, where nothing else is kept between steps.

        workspace_bytes: Scratch memory that cuBLAS keeps for each thread that multiplies matrices:
            that of the loop and, for backward, autograd's. Only for ``cuda``.

    Returns:
        The records of a measured run, of the last step.

    Raises:
        ValueError: ``device`` or ``steps`` is none of what is allowed, or ``step`` did not step
            the optimizer.
    """
    if device not in BLOCK_BYTES:
        raise ValueError(f"device must be one of {', '.join(BLOCK_BYTES)}; got {device!r}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    with fakes_counted(), libraries_see_real_tensors():
        model = build_fake(build_model, fakes)
        values = KnownValues(fakes)
        with _semantics(device), fakes, values:
            if prepare is not None:
                prepare(model)
            made = [] if build_optimizer is None else build_optimizer(_trainable(model))
            optimizers = [made] if isinstance(made, torch.optim.Optimizer) else list(made)
            if warm_start:
                _make_state(model, optimizers)
            scratch = workspace_bytes if device == "cuda" else 0
            follower = StepFollower(
                model, optimizers, BLOCK_BYTES[device], lambda: [scratch] * len(values.products)
            )
            with _followed(model, follower):
                arguments = (model,) if build_optimizer is None else (model, made)
                for _ in range(steps):
                    follower.begin()
                    step(*arguments)
                    follower.finish()
    if not follower.steps:
        raise ValueError("step has not stepped the optimizer: there is no step to tell of")
    return DryRun(_records(follower), device)


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _make_state(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    for parameter in _trainable(model):
        parameter.grad = torch.empty_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    for parameter in _trainable(model):
        parameter.grad = None


def _semantics(device: str) -> contextlib.AbstractContextManager[Any]:
    return as_on_cuda() if device == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def _followed(model: nn.Module, follower: StepFollower) -> Iterator[None]:
    faults: list[Exception] = []
    hooks = Hooks(follower, faults.append)
    hooks.install()
    hooks.watch(model)
    try:
        yield
        if faults:
            raise faults[0]
    finally:
        follower.abandon()
        hooks.remove()


def _records(follower: StepFollower) -> list[Record]:
    books = Bookkeeper()
    books.add_device(FAKE, 0, None)
    records: list[Record] = []
    for facts in follower.steps:
        records = list(books.records(facts))
    return records
