"""Run a Hugging Face model dry and write what it would hold into a store.

    python -m vramscope.profiler.dryrun CONFIG.json < settings.json

``vramscope predict --dry-run`` starts this in a process of its own. The settings are the fields of
:class:`~.settings.TrainingSettings` as a JSON object; the store is ``VRAMSCOPE_DB``. The run's id
goes to standard output. What cannot be run dry is said on standard error in one line, with exit
code 3; 4 where transformers is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import warnings
from pathlib import Path

NOT_USABLE, TRANSFORMERS_MISSING = 3, 4


def main() -> int:
    """Runs dry as standard input says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="vramscope.profiler.dryrun", description=__doc__)
    parser.add_argument("config", type=Path, help="a Hugging Face config.json")
    parser.add_argument("--name", default="dry run", help="the run's name")
    options = parser.parse_args()
    if importlib.util.find_spec("transformers") is None:
        print(
            "A dry run builds the model with transformers: pip install transformers",
            file=sys.stderr,
        )
        return TRANSFORMERS_MISSING
    try:
        run = _run(options.config, json.load(sys.stdin), options.name)
    except ValueError as error:
        _say(str(error))
        return NOT_USABLE
    except Exception as error:  # the model's own
        _say(f"{options.config}: cannot be run dry. {type(error).__name__}: {error}")
        return NOT_USABLE
    print(run)
    return 0


def _say(message: str) -> None:
    print(" ".join(message.split()), file=sys.stderr)


def _run(path: Path, given: dict[str, object], name: str) -> str:
    import torch

    from .hugging_face import dry_run_config
    from .prediction import prediction_of
    from .settings import TrainingSettings

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # nothing is computed
    settings = TrainingSettings.from_mapping(given)
    told = dry_run_config(_read(path), settings)
    scenario = {"config": path.name, **{k: v for k, v in given.items() if v is not None}}
    return told.save(name=name, more=[prediction_of(told, scenario)])


def _read(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise ValueError(f"{path}: not a Hugging Face config.json: it names no model_type")
    return config


if __name__ == "__main__":
    sys.exit(main())
