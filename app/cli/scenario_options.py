"""The files and options that make a scenario, as ``predict`` has them, for other commands too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from .predict import given_paths, predict_command, scenario_of
from .scenario_flags import ScenarioFlags

_FLAGS = frozenset(f.name for f in fields(ScenarioFlags))
_FILES = ("files", "model")


def takes_scenario(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``predict``'s files and options in place of its first parameter, a scenario.

    The parameters are taken from ``predict``'s own, so that both always read the same.
    """
    given = inspect.signature(predict_command, eval_str=True).parameters.values()
    shared = [p for p in given if p.name in _FLAGS or p.name in _FILES]
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    def with_scenario(**values: Any) -> None:
        flags = ScenarioFlags(**{name: values.pop(name) for name in _FLAGS})
        files: list[Path] | None = values.pop("files")
        model: Path | None = values.pop("model")
        command(scenario_of(given_paths(files, model), flags), **values)

    with_scenario.__doc__ = command.__doc__
    with_scenario.__name__ = command.__name__
    with_scenario.__annotations__ = {p.name: p.annotation for p in (*shared, *own)}
    with_scenario.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    return with_scenario
