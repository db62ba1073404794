"""The signals: every place where torch tells us what the loop is doing. All of them come off again.

====================  ================================================================
forward               pre and post hook of the root modules, silent while compiling
backward              ``torch.autograd._engine_run_backward``, wrapped as torch itself does
optimizer             torch's global optimizer step hooks
skipped step          ``GradScaler.step``, wrapped
DeepSpeed             an engine's ``backward`` and ``_take_model_step``, wrapped on the engine
====================  ================================================================
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.autograd
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .endings import is_out_of_memory
from .frameworks.deepspeed import is_engine, optimizer_of
from .frameworks.wrappers import unwrapped
from .storages import is_traced


class SignalListener(Protocol):
    """Who hears the signals."""

    def forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A root module is called."""

    def forward_ends(self, module: torch.nn.Module) -> None:
        """A root module has returned or raised."""

    def backward_begins(self, roots: Sequence[Any]) -> None:
        """The autograd engine starts from these tensors."""

    def backward_ends(self, *, accumulates: bool) -> None:
        """The engine is done."""

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        """An optimizer's step starts."""

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """A gradient scaler did not let the optimizer step."""

    def out_of_memory(self, error: BaseException) -> None:
        """Forward or backward ran out of memory; the error goes on to the user."""


class ModuleHook:
    """What hangs on a module: it holds nothing of ours, and a copy of the module hears nothing."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = weakref.WeakMethod(call)

    def __call__(self, *args: Any) -> None:
        """Passes the signal on, as long as somebody hears it."""
        if not torch.compiler.is_compiling():
            call = self._call()
            if call is not None:
                call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copied or stored module has in its place what takes anything and does nothing."""
        return getattr, (contextlib.nullcontext(), "__exit__")


class Hooks:
    """All signals of one profiler.

    A fault of the listener never reaches training: the first one is warned about, and from then
    on the hooks are silent. A loop runs in one thread: that which called the model last, with
    gradients on. What other threads do belongs to other loops.

    Args:
        listener: Who hears the signals.
        on_fault: Told once of the listener's fault.
    """

    def __init__(self, listener: SignalListener, on_fault: Callable[[Exception], None]) -> None:
        self._listener = listener
        self._on_fault = on_fault
        self._removers: list[Callable[[], object]] = []
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._active = False
        self._engine_works_back = False

    def install(self) -> None:
        """Puts the process-wide hooks in place."""
        self._active = True
        self._removers += [
            register_optimizer_step_pre_hook(self._optimizer_begins).remove,
            register_optimizer_step_post_hook(self._optimizer_ends).remove,
            self._wrap_backward(),
            self._wrap_scaler(),
        ]

    def watch(self, module: torch.nn.Module) -> None:
        """Hears the forward calls of a root module."""
        before = module.register_forward_pre_hook(
            ModuleHook(self.forward_begins), prepend=True, with_kwargs=True
        )
        after = module.register_forward_hook(ModuleHook(self._forward_ends), always_call=True)
        self._removers += [before.remove, after.remove]
        if is_engine(module):
            self._removers += self._watch_engine(module)

    def pause(self) -> None:
        """Hears nothing until :meth:`resume`; the hooks stay in place."""
        self._active = False

    def resume(self) -> None:
        """Hears again."""
        self._active = True

    def remove(self) -> None:
        """Takes every hook off."""
        self._active = False
        while self._removers:
            self._removers.pop()()

    def _hears(self) -> bool:
        return self._active and threading.get_ident() == self._thread and os.getpid() == self._pid

    def _tell(self, signal: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if not self._hears():
            return
        try:
            signal(*args, **kwargs)
        except Exception as fault:
            self._active = False
            warnings.warn(
                f"vramscope stopped recording; training goes on. {type(fault).__name__}: {fault}",
                RuntimeWarning,
                stacklevel=2,
            )
            self._on_fault(fault)

    def forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A root module is called."""
        if torch.is_grad_enabled():
            self._thread = threading.get_ident()
        self._tell(self._listener.forward_begins, module, args, kwargs)

    def _forward_ends(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        error = sys.exc_info()[1]  # torch calls this hook while an error passes, too
        if error is not None and is_out_of_memory(error):
            self._tell(self._listener.out_of_memory, error)
        self._tell(self._listener.forward_ends, module)

    def _optimizer_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._tell(self._listener.optimizer_begins, optimizer)

    def _optimizer_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._tell(self._listener.optimizer_ends, optimizer)

    def _told(self, backward: Callable[[], Any], roots: Sequence[Any], *, accumulates: bool) -> Any:
        """A backward pass with its signals around it."""
        self._tell(self._listener.backward_begins, roots)
        try:
            return backward()
        except Exception as error:
            if is_out_of_memory(error):
                self._tell(self._listener.out_of_memory, error)
            raise
        finally:
            self._tell(self._listener.backward_ends, accumulates=accumulates)

    def _wrap_backward(self) -> Callable[[], None]:
        owner: Any = torch.autograd
        engine = owner._engine_run_backward

        @functools.wraps(engine)
        def run_backward(t_outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            # Inside another backward (a reentrant checkpoint) or a compiler's trace there is
            # nothing of the loop to see.
            if (
                torch.compiler.is_compiling()
                or not self._hears()
                or self._engine_works_back
                or torch._C._current_graph_task_id() != -1
                or any(is_traced(t) for t in t_outputs)
            ):
                return engine(t_outputs, *args, **kwargs)
            accumulates = bool(kwargs.get("accumulate_grad", True))
            call = functools.partial(engine, t_outputs, *args, **kwargs)
            return self._told(call, t_outputs, accumulates=accumulates)

        ours = torch.compiler.disable(run_backward)
        return _replace(owner, "_engine_run_backward", ours)

    def _watch_engine(self, engine: Any) -> list[Callable[[], None]]:
        """An engine reduces gradients after autograd, and steps group by group: one signal each."""
        backward, take_step = engine.backward, engine._take_model_step

        @functools.wraps(backward)
        def whole_backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._hears() or self._engine_works_back:
                return backward(loss, *args, **kwargs)
            self._engine_works_back = True
            try:
                call = functools.partial(backward, loss, *args, **kwargs)
                return self._told(call, [loss], accumulates=True)
            finally:
                self._engine_works_back = False

        @functools.wraps(take_step)
        def whole_step(*args: Any, **kwargs: Any) -> Any:
            optimizer = optimizer_of(engine)
            self._tell(self._listener.optimizer_begins, optimizer)
            result = take_step(*args, **kwargs)
            stepped = engine.was_step_applied()
            end = self._listener.optimizer_ends if stepped else self._listener.optimizer_skipped
            self._tell(end, optimizer)
            return result

        return [
            _replace(engine, "backward", whole_backward),
            _replace(engine, "_take_model_step", whole_step),
        ]

    def _wrap_scaler(self) -> Callable[[], None]:
        step = GradScaler.step
        stepped: list[weakref.ref[Optimizer]] = []

        def note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            stepped.append(weakref.ref(optimizer))

        @functools.wraps(step)
        def scaled_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active or not scaler.is_enabled():
                return step(scaler, optimizer, *args, **kwargs)
            stepped.clear()
            handle = register_optimizer_step_post_hook(note)
            try:
                result = step(scaler, optimizer, *args, **kwargs)
            finally:
                handle.remove()
            if not stepped:
                self._tell(self._listener.optimizer_skipped, unwrapped(optimizer))
            stepped.clear()
            return result

        return _replace(GradScaler, "step", scaled_step)


def _replace(owner: Any, name: str, ours: Any) -> Callable[[], None]:
    """Sets an attribute; the returned function puts the old one back if ours still stands."""
    original, own = getattr(owner, name), name in vars(owner)
    setattr(owner, name, ours)

    def restore() -> None:
        if getattr(owner, name) is not ours:
            return
        if own:
            setattr(owner, name, original)
        else:  # an instance's attribute that hid its class's
            delattr(owner, name)

    return restore
