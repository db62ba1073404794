"""What fits: the largest batch or sequence in so many bytes, and the changes that make room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
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


@lru_cache(maxsize=256)
def needed_bytes(scenario: Scenario) -> int | None:
    """Upper end of the predicted peak of what torch allocates; ``None`` where it is not known."""
    return predict(scenario).peak_high


def largest(scenario: Scenario, growing: Growing, budget_bytes: int) -> int | None:
    """The largest micro-batch or sequence whose predicted peak is within a budget.

    Learned positions end where their table ends, whatever fits.

    Args:
        scenario: With a batch; all else stays as it is.
        growing: What to make larger.
        budget_bytes: What torch may allocate.

    Returns:
        Samples or tokens; 0 if not even one fits, ``None`` if the peak cannot be predicted.
    """
    batch = scenario.batch
    present = None if batch is None else getattr(batch, growing)
    if batch is None or present is None:
        return None

    def needed(value: int) -> int:
        changed = replace(batch, **{growing: value})
        return needed_bytes(scenario.replace(batch=changed)) or 0

    least = needed_bytes(scenario.replace(batch=replace(batch, **{growing: 1})))
    if least is None or least > budget_bytes:
        return None if least is None else 0
    most = _most(scenario, growing)
    too_much = max(present, 2)
    while too_much < most and needed(too_much) <= budget_bytes:
        too_much *= 2
    if too_much >= most and needed(most) <= budget_bytes:
        return most
    return _last_within(needed, 1, min(too_much, most), budget_bytes)


def _most(scenario: Scenario, growing: Growing) -> int:
    architecture = scenario.architecture
    if growing == "sequence" and architecture is not None and architecture.is_gpt:
        return architecture.positions
    return _MOST


def _last_within(needed: Callable[[int], int], fits: int, too_much: int, budget: int) -> int:
    """The last value that fits: by proportion, and every third time in the middle."""
    turn = 0
    while too_much - fits > 1:
        turn += 1
        share = (budget - needed(fits)) / (needed(too_much) - needed(fits))
        guess = fits + int((share if turn % 3 else 0.5) * (too_much - fits))
        guess = min(max(guess, fits + 1), too_much - 1)
        if needed(guess) <= budget:
            fits = guess
        else:
            too_much = guess
    return fits


def way_to_fit(scenario: Scenario, budget_bytes: int) -> WayToFit | None:
    """Changes that make a scenario fit: as few as possible, and of the last ones the cheapest.

    While no single change is enough, the one that saves most is made. What is trained stays.

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
