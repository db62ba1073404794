"""The table of sub-commands, and what belongs to no single one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import compare, db, demo, export, plan, predict, run, runs, show, ui
from .errors import Interrupted


class Commands(TyperGroup):
    """The group of all commands; Ctrl-C in any of them becomes an error of our tree."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("Interrupted.") from None

    def list_commands(self, ctx: Any) -> list[str]:
        """The names in the order in which they were added, not by the alphabet."""
        return list(self.commands)


app = typer.Typer(
    name="vramscope",
    cls=Commands,
    help="Every byte on the GPU has a name, and a prediction beside it.",
    epilog="Documentation: docs/cli.md. Exit codes: there too.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_db = typer.Typer(
    name="db",
    help="Look after a store's schema.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"vramscope {version('vramscope')}")
        raise typer.Exit


@app.callback()
def _vramscope(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and end."
        ),
    ] = False,
) -> None:
    """Every byte on the GPU has a name, and a prediction beside it."""


def _add(
    group: typer.Typer,
    name: str,
    function: Callable[..., None],
    examples: Sequence[str],
    **settings: Any,
) -> None:
    shown = "\n".join(f"  {example}" for example in examples).replace("[", r"\[")
    help_text = _unwrapped(function.__doc__ or "").replace("[", r"\[")
    group.command(name, help=help_text, epilog=f"Examples\n{shown}", **settings)(function)


def _unwrapped(text: str) -> str:
    """A docstring with each paragraph on one line, for a terminal of any width to wrap."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


_add(app, "demo", demo.demo, demo.EXAMPLES)
_add(
    app,
    "run",
    run.run,
    run.EXAMPLES,
    # All that follows SCRIPT is the script's, whatever it looks like.
    context_settings={"allow_interspersed_args": False},
)
_add(app, "ui", ui.ui, ui.EXAMPLES)
_add(app, "runs", runs.runs, runs.EXAMPLES)
_add(app, "show", show.show, show.EXAMPLES)
_add(app, "predict", predict.predict_command, predict.EXAMPLES)
_add(app, "plan", plan.plan_command, plan.EXAMPLES)
_add(app, "compare", compare.compare, compare.EXAMPLES)
_add(app, "export", export.export, export.EXAMPLES)
_add(_db, "upgrade", db.upgrade, db.UPGRADE_EXAMPLES)
_add(_db, "status", db.status, db.STATUS_EXAMPLES)
app.add_typer(_db)
