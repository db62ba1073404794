"""Files of any kind, one or several, as one scenario."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml

from ..architectures import HF_DECODERS, DecoderArchitecture, from_hf_config, inventory_of
from ..dtypes import DTYPE_ALIASES, QUANTISED, WeightDtype
from ..scenario import Scenario
from .accelerate import is_accelerate, read_accelerate
from .deepspeed import is_deepspeed, read_deepspeed
from .hf_config import HfModel, is_hf_config, read_hf_config
from .settings import Known, Settings

HF_HEADS = ("ForCausalLM", "LMHeadModel")
"""Classes whose activations are modelled."""


def read_scenario_file(path: str | Path) -> Scenario:
    """Read a scenario from a YAML or JSON file, or a Hugging Face ``config.json``.

    Raises:
        ValueError: Names the file and, where there is one, the field, the value and what is
            allowed; also for a file that cannot be read.
    """
    return read_scenario_files([path])


def read_scenario_files(
    paths: Sequence[str | Path], *, weight_dtype: str | None = None, known: Known | None = None
) -> Scenario:
    """Read several files as one scenario: a model, and how it is trained.

    What a file is, is seen by its keys: a scenario, a Hugging Face ``config.json``, a DeepSpeed
    configuration or an accelerate configuration. Exactly one must give the model. Later files win.

    Args:
        paths: The files.
        weight_dtype: Type of the weights in place of what the files say.
        known: What is known from elsewhere (the command line): devices, batch, precision.

    Raises:
        ValueError: Names the file and, where there is one, the field, the value and what is
            allowed.
    """
    loaded = [(Path(path), _load(Path(path))) for path in paths]
    models = [(p, d) for p, d in loaded if not _is_launcher(d)]
    if len(models) != 1:
        raise ValueError(_one_model(models, loaded))
    path, data = models[0]
    launchers = [(p, d) for p, d in loaded if _is_launcher(d)]
    known = known or Known()
    if is_hf_config(data):
        known = replace(known, hidden=_hidden(data))
    settings = [_named(p, _launcher, d, p.parent, known) for p, d in launchers]
    scenario = _named(path, _model, data, weight_dtype or _launched_dtype(data, settings))
    for (path, _), made in zip(launchers, settings, strict=True):
        scenario = _named(path, _apply, scenario, made)
    return scenario


def _load(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except FileNotFoundError:
        raise ValueError(
            f"{path}: there is no such file (a model's name on a hub is not looked up, nothing is "
            "fetched: give the path of its config.json)"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: is not valid YAML or JSON ({error})") from None


def _is_launcher(data: object) -> bool:
    if is_hf_config(data) or (isinstance(data, Mapping) and "architecture" in data):
        return False
    return is_accelerate(data) or is_deepspeed(data)


def _one_model(models: Sequence[tuple[Path, Any]], loaded: Sequence[tuple[Path, Any]]) -> str:
    if not models:
        names = ", ".join(str(p) for p, _ in loaded)
        return (
            f"{names}: says how to train, not what; add the model's config.json or a scenario file"
        )
    names = " and ".join(str(p) for p, _ in models)
    return f"{names}: each gives a model; give one, and beside it DeepSpeed or accelerate files"


T = TypeVar("T")


def _named(path: Path, read: Callable[..., T], *arguments: Any) -> T:
    """What a reader makes, its complaints with the file's name before them."""
    try:
        return read(*arguments)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _launcher(data: Mapping[str, Any], folder: Path, known: Known) -> Settings:
    return (
        read_accelerate(data, folder, known) if is_accelerate(data) else read_deepspeed(data, known)
    )


def _launched_dtype(data: Any, settings: Sequence[Settings]) -> str | None:
    """What a launcher casts the weights to; quantised ones stay as they are."""
    if isinstance(data, Mapping) and data.get("quantization_config"):
        return None
    said = [s.fields["weight_dtype"] for s in settings if "weight_dtype" in s.fields]
    return said[-1] if said else None


def _model(data: Any, dtype: str | None) -> Scenario:
    if is_hf_config(data):
        return scenario_of_hf_config(data, dtype=dtype)
    scenario = Scenario.from_mapping(data)
    if dtype is None:
        return scenario
    if scenario.tensors is None:
        return scenario.replace(weight_dtype=DTYPE_ALIASES.get(dtype, dtype))
    note = f"weight_dtype={dtype}: the scenario's tensors carry their own types"
    return scenario.replace(notes=(*scenario.notes, note))


def _apply(scenario: Scenario, made: Settings) -> Scenario:
    """The scenario with what a launcher's file says."""
    data = scenario.to_mapping()
    said = made.mapping()
    said.pop("weight_dtype", None)
    data |= said
    if made.micro_batch is not None:
        batch = data.get("batch") or {}
        data["batch"] = {
            **(batch if isinstance(batch, dict) else {}),
            "micro_batch": made.micro_batch,
        }
    data["notes"] = [*scenario.notes, *made.notes]
    return Scenario.from_mapping(data)


def _hidden(config: Mapping[str, Any]) -> int | None:
    """The width that bucket sizes are derived from."""
    nested = config.get("text_config")
    for source in (config, nested if isinstance(nested, Mapping) else {}):
        for key in ("hidden_size", "n_embd", "d_model", "dim"):
            value = source.get(key)
            if isinstance(value, int):
                return value
    return None


def scenario_of_hf_config(config: Mapping[str, Any], *, dtype: str | None = None) -> Scenario:
    """The model of a Hugging Face ``config.json``, everything else at its default.

    Dense decoders that are modelled get an architecture; all others get their tensors, so that
    parameters, gradients, optimizer state and buffers are predicted and activations are not.

    Args:
        config: The file's mapping.
        dtype: Type of the weights in place of the file's.

    Raises:
        ValueError: The model is not known here, or a value is not understood.
    """
    dtype = DTYPE_ALIASES.get(dtype, dtype) if dtype else None
    if dtype is not None and dtype not in get_args(WeightDtype):
        known = ", ".join(get_args(WeightDtype))
        raise ValueError(f"weight_dtype={dtype!r}: must be one of {known}")
    model = read_hf_config(config, dtype=dtype)
    architecture, reason = _architecture(config, model)
    quantised = model.quantisation
    if architecture is not None and (quantised is None or quantised.method in QUANTISED):
        return Scenario(
            architecture=architecture,
            weight_dtype=quantised.method if quantised else model.dtype,  # type: ignore[arg-type]
            double_quantization=quantised.double if quantised else False,
            model_class=model.class_name,
            notes=model.notes,
        )
    if architecture is not None and quantised is not None:
        reason = f"weights quantised by {quantised.method}: activations are not modelled"
    return Scenario(
        tensors=model.tensors,
        activations_unknown=reason,
        model_class=model.class_name,
        notes=model.notes,
    )


def _architecture(
    config: Mapping[str, Any], model: HfModel
) -> tuple[DecoderArchitecture | None, str | None]:
    if model.model_type not in HF_DECODERS or not model.class_name.endswith(HF_HEADS):
        known = ", ".join(HF_DECODERS)
        return None, (
            f"{model.class_name} ({model.model_type}): not modelled; modelled are {known} with a "
            "language head"
        )
    try:
        architecture = from_hf_config(config)
    except ValueError as error:
        return None, f"{model.model_type}: not modelled ({error})"
    if inventory_of(architecture).numel != model.tensors.numel:
        return None, f"{model.class_name}: its sizes are none that are modelled"
    return architecture, None
