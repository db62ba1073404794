"""``vramscope demo``: train a small model with the profiler attached, and watch it live."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from vramscope.storage.engine import normalise_url, redacted

from ..serve import ADDRESS
from . import options, terminal
from .errors import ProcessFailed
from .processes import Child, dashboard, stay_until_stopped, wait_until_it_answers
from .stores import check_recordable
from .tables import say

EXAMPLES = (
    "vramscope demo",
    "vramscope demo --port 8600 --steps 50",
    "vramscope demo --no-ui --db demo.db",
)


def demo(
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Steps of the first run; the second is shorter.")
    ] = 300,
    ui: Annotated[bool, typer.Option("--ui/--no-ui", help="Serve the dashboard meanwhile.")] = True,
    port: options.Port = 8501,
    db: options.Db = None,
) -> None:
    """Train a small GPT and watch its memory in the dashboard.

    It trains twice, on a GPU where there is one. The second run has other settings,
    so that there is something to compare. The dashboard stays up when training is done; Ctrl-C
    stops everything that the command has started.
    """
    url = normalise_url(db)
    check_recordable(url)
    if not ui:
        with _training(url, steps) as training:
            _finish(training.wait())
        return
    console = terminal.out()
    served = dashboard(url, port)
    with served, _training(url, steps) as training:
        wait_until_it_answers(served, port)
        say(
            console,
            f"Dashboard  http://{ADDRESS}:{port}",
            f"Store      {redacted(url)}",
            "Ctrl-C stops both.",
        )
        _finish(training.wait())
        stay_until_stopped(
            served, f"Training is done; http://{ADDRESS}:{port} stays up until Ctrl-C."
        )


def _training(url: str, steps: int) -> Child:
    arguments = ["-m", "vramscope.profiler.demo", "--steps", str(steps)]
    arguments += ["--second-steps", str(max(1, steps // 3))]
    return Child([sys.executable, *arguments], {**os.environ, "VRAMSCOPE_DB": url})


def _finish(code: int) -> None:
    if code != 0:
        raise ProcessFailed(f"The demo's training ended with exit code {code}; see above.")
