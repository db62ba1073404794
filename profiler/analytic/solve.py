"""What fits: the largest batch or sequence in so many bytes, and the changes that make room."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Literal

from .estimate import predict
from .remedies import PRICES, Remedy, remedies
from .scenario import Scenario

Growing = Literal["micro_batch", "sequence"]
"""What can be made larger until nothing more fits."""

_MOST = 2**24
_MOST_CHANGES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class WayToFit:
    """Changes, one after the other, with which a scenario fits, or comes nearest to it."""

    steps: tuple[Remedy, ...]
    peak_bytes: int
    """Predicted peak with all of them."""
    fits: bool


def needed_bytes(scenario: Scenario) -> int | None:
    """Upper end of the predicted peak of what torch allocates; ``None`` where it is not known."""
    return predict(scenario).peak_high


def largest(scenario: Scenario, growing: Growing, budget_bytes: int) -> int | None:
    """The largest micro-batch or sequence whose predicted peak is within a budget.

    Args:
        scenario: With a batch; all else stays as it is.
        growing: What to make larger.
        budget_bytes: What torch may allocate.

    Returns:
        Samples or tokens; 0 if not even one fits, ``None`` if the peak cannot be predicted.
    """
    batch = scenario.batch
    if batch is None or getattr(batch, growing) is None:
        return None

    def needed(value: int) -> int | None:
        changed = replace(batch, **{growing: value})
        return needed_bytes(scenario.replace(batch=changed))

    least = needed(1)
    if least is None or least > budget_bytes:
        return None if least is None else 0
    too_much = 2
    while too_much < _MOST and (needed(too_much) or 0) <= budget_bytes:
        too_much *= 2
    return bisect_right(range(1, too_much), budget_bytes, key=lambda value: needed(value) or 0)


def way_to_fit(scenario: Scenario, budget_bytes: int) -> WayToFit | None:
    """Changes that make a scenario fit: as few as possible, and of the last ones the cheapest.

    While no single change is enough, the one that saves most is made.

    Returns:
        ``None`` where the peak cannot be predicted.
    """
    peak = needed_bytes(scenario)
    if peak is None:
        return None
    steps: list[Remedy] = []
    while peak > budget_bytes and len(steps) < _MOST_CHANGES:
        found = remedies(scenario)
        if not found:
            break
        enough = [remedy for remedy in found if remedy.peak_bytes <= budget_bytes]
        best = (
            min(enough, key=lambda remedy: (PRICES.index(remedy.price), -remedy.saved_bytes))
            if enough
            else found[0]
        )
        steps.append(best)
        scenario, peak = best.scenario, best.peak_bytes
    return WayToFit(steps=tuple(steps), peak_bytes=peak, fits=peak <= budget_bytes)
