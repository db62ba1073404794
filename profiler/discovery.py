"""Finds the model and the optimizer of a script that was not written for us.

Optimizers are seen as they are made, root modules as they are first called. The first root
module whose parameters an optimizer holds begins the run, before its first forward has run.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import Optimizer

from .config import ProfilerConfig
from .frameworks.deepspeed import is_engine, optimizer_of
from .frameworks.wrappers import unwrapped
from .session import MemoryProfiler, is_attached

# Once so many steps have passed, the loop's modules are known and calls are no longer watched.
_WATCHED_STEPS = 3


class Discovery:
    """Attaches a profiler to the first training loop that it meets.

    Args:
        run_name: As for :class:`~vramscope.profiler.MemoryProfiler`.
        store: As for :class:`~vramscope.profiler.MemoryProfiler`.
        config: As for :class:`~vramscope.profiler.MemoryProfiler`.
        optimizers: Those that were made before.
    """

    def __init__(
        self,
        *,
        run_name: str | None = None,
        store: str | Path | None = None,
        config: ProfilerConfig | None = None,
        optimizers: Iterable[Optimizer] = (),
    ) -> None:
        self._arguments: dict[str, Any] = {
            "run_name": run_name,
            "store": store,
            "config": config,
        }
        self._made = [weakref.ref(optimizer) for optimizer in optimizers]
        self._depth = 0
        self._handles: list[Any] = []
        self._init = Optimizer.__init__
        self.profiler: MemoryProfiler | None = None
        """The profiler, once a loop was found."""

    def install(self) -> None:
        """Begins to look."""
        original, made = self._init, self._made

        @functools.wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            made.append(weakref.ref(optimizer))

        self._patched = init
        Optimizer.__init__ = init  # type: ignore[assignment, method-assign]
        self._handles = [
            register_module_forward_pre_hook(self._called),
            register_module_forward_hook(self._returned, always_call=True),
        ]

    def remove(self) -> None:
        """Stops looking; a profiler that was attached stays attached."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if Optimizer.__init__ is getattr(self, "_patched", None):
            Optimizer.__init__ = self._init  # type: ignore[method-assign]

    def finish(self) -> None:
        """Stops looking, and closes the run that was found."""
        self.remove()
        if self.profiler is not None:
            self.profiler.finish(None)

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return
        self._depth += 1
        if self._depth == 1 and torch.is_grad_enabled():
            try:
                self._meet(module, args)
            except Exception as fault:
                self.remove()
                warnings.warn(
                    f"vramscope records nothing; training goes on. {type(fault).__name__}: {fault}",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return
        self._depth = max(0, self._depth - 1)
        known = self.profiler is not None and self.profiler.steps >= _WATCHED_STEPS
        if self._depth == 0 and known:
            self.remove()

    def _meet(self, module: torch.nn.Module, args: Any) -> None:
        parameters = {id(p) for p in module.parameters()}
        if not parameters:
            return
        # An engine's optimizer works on flat copies: no parameter would tell.
        engines = [optimizer_of(module)] if is_engine(module) else []
        optimizers = [o for o in engines if o is not None] or self._optimizers_of(parameters)
        if not optimizers:
            return
        if self.profiler is None and is_attached(module):
            self.remove()  # the script carries a profiler of its own
        elif self.profiler is None:
            self.profiler = MemoryProfiler(module, optimizers, **self._arguments)
            self.profiler.attach()
            # torch had listed this call's hooks before ours was among them.
            self.profiler.heard_late(module, args)
        elif self.profiler.adopt([module], optimizers):
            self.profiler.heard_late(module, args)

    def _optimizers_of(self, parameters: set[int]) -> list[Optimizer]:
        found: list[Optimizer] = []
        for reference in self._made:
            made = reference()
            if made is None:
                continue
            inner = unwrapped(made)
            held = (id(p) for group in inner.param_groups for p in group["params"])
            if all(inner is not known for known in found) and any(h in parameters for h in held):
                found.append(inner)
        return found
