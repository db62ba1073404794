"""What a forward pass saves for backward, for dense decoder transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vramscope.storage.records import MemoryClass, Phase

from .scenario import Scenario
from .terms import Term

PASSES = frozenset({Phase.FORWARD, Phase.BACKWARD})


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """Terms of the forward and the backward pass, or why there are none."""

    terms: tuple[Term, ...] = ()
    unknown: Mapping[MemoryClass, frozenset[Phase]] = field(default_factory=dict)
    not_modelled: tuple[str, ...] = ()
    uncertain: int = 0
    """Bytes in the terms that may not be there: the training loop decides."""


def passes_of(scenario: Scenario) -> Passes:
    """Activations, weight copies and temporaries of both passes."""
    unknown = {MemoryClass.ACTIVATIONS: PASSES, MemoryClass.TEMPORARIES: PASSES}
    if scenario.autocast:
        unknown[MemoryClass.AUTOCAST_CACHE] = PASSES
    return Passes(unknown=unknown, not_modelled=("activations: not yet",))
