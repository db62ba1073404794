"""The books of one instant as rows: every class that holds something, then the totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from vramscope.storage.records import MemoryUse, PredictionMethod

from ..format import CLASS_LABELS, STACK, UNKNOWN, percent
from .tables import Scale, add

METHODS: Mapping[PredictionMethod, str] = {
    PredictionMethod.ANALYTIC: "Predicted",
    PredictionMethod.DRY_RUN: "Dry run",
}
"""Headings of predicted books."""


def lines_of(*books: MemoryUse) -> list[str]:
    """The lines that any of several books holds bytes in, in the order of the stack, and totals.

    A class that is 0 or unknown in all of them would only be in the way.
    """
    held = [line for line in STACK if any(getattr(use, line) for use in books)]
    known = any(use.reserved is not None for use in books)
    return [*held, "allocated", *(["cached", "reserved"] if known else [])]


def add_books(
    made: Table,
    columns: Sequence[MemoryUse],
    scale: Scale,
    *,
    difference: tuple[int, int] | None = None,
    share_of: int = 0,
) -> None:
    """Add a row a line of the books.

    Args:
        made: The table; its columns are the line's name, then one for each of the books, then,
            with ``difference``, the difference and its share.
        columns: The books side by side.
        scale: How sizes are written.
        difference: Positions of the books to subtract, the first less the second; the share is
            of the books at ``share_of``.
        share_of: A position.
    """
    for line in lines_of(*columns):
        values = [getattr(use, line) for use in columns]
        cells = [scale.number(value) for value in values]
        if difference is not None:
            first, second = (values[place] for place in difference)
            cells += _difference(first, second, values[share_of], scale)
        total = line == "allocated"
        if total:
            made.add_section()
        add(made, CLASS_LABELS[line], *cells, style="bold" if total else None)


def _difference(
    first: int | None, second: int | None, whole: int | None, scale: Scale
) -> list[str]:
    if first is None or second is None:
        return [UNKNOWN, UNKNOWN]
    share = percent((first - second) / whole, signed=True) if whole else UNKNOWN
    return [scale.number(first - second, signed=True), share]


def largest_of(*books: MemoryUse) -> list[int | None]:
    """Every size in several books, for choosing a scale."""
    return [value for use in books for _, value in use.items()]
