"""Which module a saved tensor belongs to, by autograd sequence numbers; no hook on any tensor.

While a detail step's forward runs, each module's call is noted with the sequence number before
and after it. A graph node belongs to the innermost module whose range holds its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)


class ModuleNames(NamedTuple):
    """Whose call made which autograd nodes."""

    ranges: tuple[tuple[int, int, str], ...]
    """First sequence number, the one after the last, and the module's path."""

    def module_of(self, sequence: int) -> str:
        """Path of the innermost module whose call made this node; ``""`` outside any."""
        best = ""
        width: int | None = None
        for first, end, path in self.ranges:
            if first <= sequence < end and (width is None or end - first <= width):
                best, width = path, end - first
        return best


class ModuleRanges:
    """Notes module calls of one step while it is installed.

    Args:
        models: Root modules; with several, paths are prefixed with their class's name.
    """

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._paths: dict[int, str] = {}
        for model in models:
            prefix = f"{type(model).__name__}." if len(models) > 1 else ""
            for path, module in model.named_modules():
                self._paths.setdefault(id(module), (prefix + path).rstrip("."))
        self._open: list[tuple[int, int]] = []
        self._ranges: list[tuple[int, int, str]] = []
        self._handles: list[Any] = []

    def install(self) -> None:
        """Begins to note."""
        self._handles = [
            register_module_forward_pre_hook(self._enters),
            register_module_forward_hook(self._leaves, always_call=True),
        ]

    def remove(self) -> None:
        """Stops noting; what was noted stays."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _enters(self, module: torch.nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() == -1:
            self._open.append((id(module), torch._C._autograd._get_sequence_nr()))

    def _leaves(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return
        while self._open:
            key, first = self._open.pop()
            if key == id(module):
                path = self._paths.get(key)
                if path is not None:
                    end = torch._C._autograd._get_sequence_nr()
                    self._ranges.append((first, end, path))
                return

    def began(self) -> int:
        """Sequence number at which the innermost call that runs began; -1 outside any."""
        return self._open[-1][1] if self._open else -1

    def names(self) -> ModuleNames:
        """What was noted so far."""
        return ModuleNames(tuple(self._ranges))
