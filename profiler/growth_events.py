"""What growth is told as: one frozen record of each kind, with a sentence for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vramscope.storage.records import MemoryClass

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_SINGULAR = {
    MemoryClass.OPTIMIZER_STATE: "optimizer state",
    MemoryClass.AUTOCAST_CACHE: "the autocast cache",
    MemoryClass.COMMUNICATION: "communication memory",
    MemoryClass.KV_CACHE: "the KV cache",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Something that a device's memory did, worth an event."""

    kind: Literal["leak", "spike", "jump"]
    """``leak``: the floor rises step after step. ``spike``: one step's peak, which came down.
    ``jump``: grown once, and stayed; also how a leak ended, if it did."""
    memory_class: MemoryClass | None
    """``None``: memory of no class, or the sum of all."""
    slope_bytes: float | None
    """Bytes a step; of leaks."""
    bytes: int
    """By how much the floor has grown, or how far a peak stood above the usual one."""
    first_step: int
    """The first step that was higher than those before it."""
    step: int
    """The step it is about: of a leak the newest, of a spike or jump the one it came in."""
    full_at_step: int | None
    """When the device will be full, if this goes on; of leaks."""
    message: str
    """For a person to read."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose memory it is: a class, or what has none."""

    memory_class: MemoryClass | None
    other: str = "allocated memory"
    """How memory without a class is called."""

    def __str__(self) -> str:
        if self.memory_class is None:
            return self.other
        return _SINGULAR.get(self.memory_class, self.memory_class.value)

    @property
    def plural(self) -> bool:
        """Whether the verb has no s."""
        return self.memory_class is not None and self.memory_class not in _SINGULAR


def leak(
    subject: Subject,
    *,
    slope: float,
    grown: int,
    first_step: int,
    step: int,
    full_at_step: int | None,
) -> Growth:
    """A floor that rises step after step; ``slope`` in bytes a step, ``grown`` in bytes."""
    message = (
        f"{subject} {'grow' if subject.plural else 'grows'} by {size(slope)} a step "
        f"since step {first_step:,} ({size(grown)} so far)"
    )
    if full_at_step is not None:
        message += f"; the device will be full at about step {_about(full_at_step):,}"
    return Growth(
        kind="leak",
        memory_class=subject.memory_class,
        slope_bytes=slope,
        bytes=grown,
        first_step=first_step,
        step=step,
        full_at_step=full_at_step,
        message=message,
    )


def jump(subject: Subject, *, step: int, before: int, after: int) -> Growth:
    """A level left for a higher one, in bytes."""
    message = (
        f"{subject} grew by {size(after - before)} at step {step:,}, from {size(before)} to "
        f"{size(after)}, and stayed there"
    )
    return _jump(subject, message, after - before, step, step)


def stopped(subject: Subject, *, grown: int, first_step: int, step: int) -> Growth:
    """A leak that was told has come to rest: it was growth with an end."""
    message = (
        f"{subject} stopped growing at step {step:,}, after {size(grown)} since step {first_step:,}"
    )
    return _jump(subject, message, grown, first_step, step)


def fell_back(subject: Subject, *, grown: int, first_step: int, step: int) -> Growth:
    """A leak that was told has come back: it was none."""
    message = (
        f"{subject} fell back at step {step:,}: the {size(grown)} since step {first_step:,} "
        "were no leak"
    )
    return _jump(subject, message, grown, first_step, step)


def spike(*, step: int, peak: int, usual: int) -> Growth:
    """A peak above the usual one, both in bytes."""
    over = peak - usual
    return Growth(
        kind="spike",
        memory_class=None,
        slope_bytes=None,
        bytes=over,
        first_step=step,
        step=step,
        full_at_step=None,
        message=(
            f"the peak of step {step:,} was {size(peak)}, {size(over)} above the usual "
            f"{size(usual)}, and came down again"
        ),
    )


def _jump(subject: Subject, message: str, grown: int, first_step: int, step: int) -> Growth:
    return Growth(
        kind="jump",
        memory_class=subject.memory_class,
        slope_bytes=None,
        bytes=grown,
        first_step=first_step,
        step=step,
        full_at_step=None,
        message=message,
    )


def size(value: float) -> str:
    """A size for reading, with three digits that count: ``192 KiB``, ``3.75 MiB``."""
    for unit, unit_bytes in _UNITS:
        if value >= 0.95 * unit_bytes:
            return f"{float(f'{value / unit_bytes:.3g}'):,g} {unit}"
    return f"{value:,.0f} B" if value >= 10 else f"{value:.2g} B"


def _about(step: int) -> int:
    """A step number to three digits: a forecast knows no more."""
    return int(float(f"{step:.3g}"))
