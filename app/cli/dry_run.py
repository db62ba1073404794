"""The dry run of ``vramscope predict``: in a process of its own, since it needs torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from vramscope.storage.engine import ENVIRONMENT_VARIABLE
from vramscope.storage.reader import RunReader
from vramscope.storage.records import PredictionRecord

from .errors import ExtraMissing, ProcessFailed, ScenarioNotUsable
from .scenario_flags import PRECISIONS, ScenarioFlags

_NOT_USABLE, _TRANSFORMERS_MISSING = 3, 4  # as profiler/dryrun/__main__.py ends
_LAST_LINES = 8


def dry_run(config: Path, flags: ScenarioFlags) -> PredictionRecord:
    """Run the model of a ``config.json`` without memory, and say what it would hold.

    Args:
        config: A Hugging Face ``config.json``.
        flags: How it is trained.

    Raises:
        ScenarioNotUsable: The model or a setting is none that can be run dry.
        ExtraMissing: transformers is not installed.
        ProcessFailed: The dry run broke off.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/dry-run.db"
        done = subprocess.run(
            [sys.executable, "-m", "vramscope.profiler.dryrun", str(config)],
            input=json.dumps(settings_of(flags)),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, ENVIRONMENT_VARIABLE: store},
        )
        _check(done)
        with RunReader(store) as reader:
            (prediction,) = reader.predictions(done.stdout.split()[-1])
            return prediction


def _check(done: subprocess.CompletedProcess[str]) -> None:
    said = done.stderr.strip().splitlines()[-_LAST_LINES:]
    if done.returncode == _NOT_USABLE:
        raise ScenarioNotUsable(said[-1] if said else "It cannot be run dry.")
    if done.returncode == _TRANSFORMERS_MISSING:
        raise ExtraMissing(said[-1])
    if done.returncode:
        raise ProcessFailed(
            f"The dry run ended with exit code {done.returncode}. It said:\n" + "\n".join(said)
        )


def settings_of(flags: ScenarioFlags) -> dict[str, object]:
    """What the options say, in the dry run's words.

    Raises:
        ScenarioNotUsable: An option is for several devices, or for what is not run dry.
    """
    several = flags.devices not in (None, 1) or flags.zero_stage
    if several or flags.master_weights:
        raise ScenarioNotUsable(
            "A dry run is of one device, without master weights. Leave out --devices, "
            "--zero-stage and --master-weights, or predict without --dry-run."
        )
    precision = PRECISIONS.get(flags.precision or "", {})
    given = {
        "weight_dtype": flags.dtype or precision.get("weight_dtype"),
        "autocast": precision.get("autocast"),
        "optimizer": flags.optimizer,
        "momentum": flags.momentum,
        "micro_batch": flags.micro_batch,
        "sequence": flags.sequence,
        "accumulation": flags.accumulation,
        "checkpointing": flags.checkpointing,
        "attention": flags.attention,
        "device": flags.device,
    }
    return {name: value for name, value in given.items() if value is not None}
