"""``vramscope run``: an unchanged script with the profiler attached."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from vramscope.storage.engine import ENVIRONMENT_VARIABLE, normalise_url

from . import options
from .errors import ScriptNotFound
from .stores import check_recordable

EXAMPLES = (
    "vramscope run train.py",
    "vramscope run --name first-try train.py --lr 3e-4 --epochs 2",
    "torchrun --no-python --nproc-per-node 2 vramscope run train.py",
)


def run(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", help="A Python file that trains, left as it is.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Passed on to the script untouched."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The run's name. Left out: the script's."),
    ] = None,
    detail_every: Annotated[
        int,
        typer.Option(
            "--detail-every",
            metavar="N",
            min=0,
            help="Follow every N-th step allocation by allocation; 0 for the first ones only.",
        ),
    ] = 50,
    snapshot_on_oom: Annotated[
        Path | None,
        typer.Option(
            "--snapshot-on-oom",
            metavar="FOLDER",
            help="Save torch's allocator snapshot there when memory runs out, if the script "
            "records its history.",
        ),
    ] = None,
    db: options.Db = None,
) -> None:
    """Run an unchanged training script and record its memory.

    Options stand before SCRIPT; all that follows it goes to the script. The script's exit code
    is the command's, and its errors are shown as without vramscope.
    """
    url = normalise_url(db)
    _check(script)
    check_recordable(url)
    launch = [sys.executable, "-m", "vramscope.profiler.launch"]
    launch += ["--name", name] if name is not None else []
    launch += ["--detail-every", str(detail_every)]
    launch += ["--snapshot-on-oom", str(snapshot_on_oom)] if snapshot_on_oom else []
    sys.stdout.flush()
    sys.stderr.flush()
    # The URL goes through the environment: among the arguments every user of the machine could
    # read its password. Our process becomes the script's, so signals and exit codes are its own.
    os.execve(
        sys.executable,
        [*launch, str(script), *(arguments or ())],
        {**os.environ, ENVIRONMENT_VARIABLE: url},
    )


def _check(script: Path) -> None:
    if script.is_file() and os.access(script, os.R_OK):
        return
    if script.is_dir():
        reason = "is a folder; name the Python file in it"
    elif script.exists():
        reason = "cannot be read"
    else:
        reason = f"is not there (looked from {Path.cwd()})"
    raise ScriptNotFound(f"The script {script} {reason}.")
