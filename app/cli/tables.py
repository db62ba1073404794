"""Tables of sizes: one unit a table, named under it; unknown is an em-dash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..format import GIB, UNKNOWN, Unit, decimals_for, plain, unit_for


@dataclass(frozen=True, slots=True)
class Scale:
    """How the sizes of one table are written."""

    unit: Unit
    decimals: int

    @classmethod
    def of(cls, sizes: Iterable[int | None]) -> Scale:
        """The scale in which the largest of these sizes reads best."""
        largest = max((abs(size) for size in sizes if size is not None), default=GIB.bytes)
        unit = unit_for(largest)
        return cls(unit, max(decimals_for(largest, unit), 1 if unit.bytes > 1 else 0))

    def number(self, size: int | None, *, signed: bool = False) -> str:
        """A size without its unit; what is not 0 never reads as 0."""
        if size is None:
            return UNKNOWN
        value = abs(size) / self.unit.bytes
        smallest = 10.0**-self.decimals
        sign = "−" if size < 0 else "+" if signed and size > 0 else ""
        if size and value < smallest / 2:
            return f"{sign}<{smallest:.{self.decimals}f}"
        return f"{sign}{value:,.{self.decimals}f}"

    @property
    def caption(self) -> str:
        """Which unit the sizes are in, for under the table."""
        power = {"KiB": "2¹⁰", "MiB": "2²⁰", "GiB": "2³⁰", "TiB": "2⁴⁰"}.get(self.unit.name)
        return f"Sizes in {self.unit.name} ({power} bytes)" if power else "Sizes in bytes"


def table(title: str, columns: Sequence[str], *, texts: int = 1, caption: str = "") -> Table:
    """An empty table.

    Args:
        title: Stands above it, left.
        columns: The headings.
        texts: How many columns at the left hold text; the others hold numbers.
        caption: Stands under it.
    """
    made = Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        caption=Text(caption, style="dim") if caption else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for place, name in enumerate(columns):
        made.add_column(
            name,
            justify="left" if place < texts else "right",
            no_wrap=place >= texts,
            overflow="fold",
        )
    return made


def add(made: Table, *cells: str | Text, style: str | None = None) -> None:
    """Add a row; strings are shown as they are, without control characters."""
    made.add_row(
        *(cell if isinstance(cell, Text) else Text(plain(cell, 400)) for cell in cells),
        style=style,
    )


def say(console: Console, *lines: str) -> None:
    """Print lines of text as they are, each on its own."""
    for line in lines:
        console.print(Text(line))
