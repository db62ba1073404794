"""``vramscope export``: one run as a file to keep, send or read with other tools."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from vramscope.storage.reader import RunReader

from ..reports import PlotlyMissingError, csv_export, html_report, json_export
from ..reports.progress import Progress
from . import options, terminal
from .errors import ExtraMissing
from .files import open_output

EXAMPLES = (
    "vramscope export demo-adamw -o demo.html",
    "vramscope export 3f9a --format json | jq '.steps[-1].peak'",
    "vramscope export 3f9a --format csv -o steps.csv",
)


class Format(StrEnum):
    """The formats of an export."""

    JSON = "json"
    CSV = "csv"
    HTML = "html"


def export(
    run: options.Run,
    export_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            "-f",
            help="Left out: what the output file's ending says, else json.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, whole or not at all. Left out: standard output.",
            show_default=False,
        ),
    ] = None,
    db: options.Db = None,
) -> None:
    """Export one run as JSON, CSV or an HTML report.

    JSON keeps to the contract of docs/export.md; CSV has a row a step and device. The
    HTML report is one file that opens without a network. Home folders in paths become ~.
    """
    chosen = export_format or _format_of(output)
    if chosen is Format.HTML and output is None and _is_terminal():
        raise typer.BadParameter("an HTML report does not read well here: name a file with -o")
    with RunReader(db) as reader:
        found = reader.run(run)
        total = sum(
            last.step + 1
            for device in reader.devices(found.id)
            if device.id is not None and (last := reader.last_step(found.id, device.id))
        )
        with (
            terminal.progress("Exporting steps", total, show=output is not None) as progress,
            open_output(output) as stream,
        ):
            for piece in _pieces(chosen, reader, found.id, progress):
                stream.write(piece)
    if output is not None and str(output) != "-":
        terminal.err().print(f"Wrote {output}", soft_wrap=True)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _format_of(output: Path | None) -> Format:
    ending = "" if output is None else output.suffix.lower().removeprefix(".")
    endings = {"htm": Format.HTML, **{known.value: known for known in Format}}
    return endings.get(ending, Format.JSON)


def _pieces(chosen: Format, reader: RunReader, run_id: str, progress: Progress) -> Iterator[str]:
    if chosen is Format.JSON:
        return json_export(reader, run_id, progress=progress)
    if chosen is Format.CSV:
        return csv_export(reader, run_id, progress=progress)
    try:
        return iter((html_report(reader, run_id),))
    except PlotlyMissingError as error:
        raise ExtraMissing(str(error)) from error
