"""Whether what a census counted can have changed since: a cheap look at every step."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch

# Of a larger model this many parameters are looked at in a step, once the loop is steady.
_PART = 64
# A loop is steady when so many looks at everything in a row have found nothing new.
_STEADY = 16

_T = TypeVar("_T")


class Watch:
    """Looks whether gradients, states or buffers have come or gone.

    Everything is looked at until the loop is steady. From then on a step that is like the one
    before it is looked at in part, another part each time: the cost does not grow with the
    model. A change that only such a look finds, unannounced, ends the trust for good.

    Args:
        optimizers: By weak reference.
    """

    def __init__(self, optimizers: Sequence[weakref.ref[torch.optim.Optimizer]]) -> None:
        self._optimizers = optimizers
        self._others: Sequence[weakref.ref[torch.Tensor]] = ()
        self._buffered: Sequence[weakref.ref[torch.nn.Module]] = ()
        self.restructured = False
        """Whether the last look found other parameters or optimizers than before."""
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._structure: list[Hashable] = []
        self._looks: list[list[object]] = []
        self._likeness: Hashable = None
        self._steady = 0
        self._trusting = True
        self._turn = 0

    def begin(
        self,
        others: Sequence[weakref.ref[torch.Tensor]],
        buffered: Sequence[weakref.ref[torch.nn.Module]] = (),
    ) -> None:
        """Notes how things are now.

        Args:
            others: Parameters that have gradients and no optimizer.
            buffered: Modules that have buffers.
        """
        self._others, self._buffered = others, buffered
        self._note_all(self._look_at_structure())

    def changed(self, likeness: Hashable) -> bool:
        """Whether anything has come or gone since the last look, as far as it was looked at.

        Args:
            likeness: Equal for steps that are alike; ``None``: look at everything.
        """
        alike = likeness is not None and likeness == self._likeness
        self._likeness = likeness
        structure = self._look_at_structure()
        self.restructured = structure != self._structure
        if self.restructured:
            self._steady = 0
            self._note_all(structure)
            return True
        if not (alike and self._trusting and self._steady >= _STEADY):
            before = self._looks
            self._looks = [self._look(part) for part in range(len(before))]
            self._steady = self._steady + 1 if self._looks == before else 0
            return self._steady == 0
        self._turn = (self._turn + 1) % len(self._looks)
        if self._look(self._turn) == self._looks[self._turn]:
            return False
        self._trusting = len(self._looks) == 1
        self._note_all(structure)
        return True

    def _note_all(self, structure: list[Hashable]) -> None:
        self._structure = structure
        self._parameters = [
            weakref.ref(parameter)
            for optimizer in alive(self._optimizers)
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        self._parameters += self._others
        most = max(len(self._parameters), len(self._buffered), 1)
        parts = -(-most // _PART)
        self._looks = [self._look(part) for part in range(parts)]

    def _look_at_structure(self) -> list[Hashable]:
        found: list[Hashable] = []
        for optimizer in alive(self._optimizers):
            found.append(len(optimizer.state))
            for group in optimizer.param_groups:
                parameters = group["params"]
                found.append(len(parameters))
                if parameters:
                    found += (parameters[0].dtype, parameters[0].device)
        return found

    def _look(self, part: int) -> list[object]:
        begin, end = part * _PART, (part + 1) * _PART
        parameters = alive(self._parameters[begin:end])
        gradients = [
            gradient if gradient is None else gradient.layout
            for gradient in [parameter.grad for parameter in parameters]
        ]
        buffers = [
            buffer if buffer is None else buffer.numel()
            for module in alive(self._buffered[begin:end])
            for buffer in module._buffers.values()
        ]
        optimizers = alive(self._optimizers)
        entries = [_entries(islice(o.state.values(), begin, end)) for o in optimizers]
        return [gradients, buffers, entries]


def _entries(states: Iterable[Any]) -> object:
    """Entries of all states together; where one cannot be counted, what equals nothing."""
    try:
        return sum(map(len, states))
    except TypeError:
        return object()


def alive(references: Iterable[weakref.ref[_T]]) -> list[_T]:
    """What the references refer to, as far as it still lives."""
    return [referent for reference in references if (referent := reference()) is not None]
