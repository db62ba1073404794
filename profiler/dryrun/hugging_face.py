"""From a Hugging Face ``config.json`` to a model, an optimizer and a step; needs transformers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .result import DryRun
from .run import dry_run
from .settings import TrainingSettings

_LONGEST = 2048
_AUTO = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
)


def dry_run_config(config: Mapping[str, Any], settings: TrainingSettings) -> DryRun:
    """Trains the model of a configuration for one step, without memory.

    Args:
        config: As read from ``config.json``. Weights are random and nothing is downloaded.
        settings: How it is trained.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        ValueError: The model is not one that transformers itself can build, or what the
            configuration asks for is not run dry.
    """
    shape = read_config(config, settings)
    trains = settings.optimizer != "none"
    return dry_run(
        functools.partial(build_model, shape, settings),
        functools.partial(train_step if trains else infer_step, settings),
        build_optimizer=functools.partial(build_optimizer, settings) if trains else None,
        device=settings.device,  # type: ignore[arg-type]
        steps=1,
        warm_start=trains,
    )


def read_config(config: Mapping[str, Any], settings: TrainingSettings) -> Any:
    """The configuration object, without the network and without anybody's code.

    Raises:
        ValueError: See :func:`dry_run_config`.
    """
    from transformers import CONFIG_MAPPING

    kind = config.get("model_type")
    if config.get("quantization_config"):
        raise ValueError("quantization_config: quantised checkpoints are not run dry")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        remote = " (its code is not part of transformers)" if config.get("auto_map") else ""
        raise ValueError(f"model_type={kind!r}: not a model that transformers builds{remote}")
    data = {name: value for name, value in config.items() if name != "auto_map"}
    shape = CONFIG_MAPPING[kind].from_dict(data)
    shape.use_cache = settings.use_cache
    if settings.attention is not None:
        shape._attn_implementation = settings.attention
    return shape


def build_model(shape: Any, settings: TrainingSettings) -> nn.Module:
    """The model, cast, in training mode unless it only infers."""
    dtype = getattr(torch, settings.weight_dtype or _dtype_name(shape))
    model: nn.Module = _model_class(shape)._from_config(shape, dtype=dtype)
    if settings.checkpointing == "full":
        if not getattr(model, "supports_gradient_checkpointing", False):
            raise ValueError(f"{type(model).__name__} has no activation checkpointing")
        model.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    return model.train(settings.optimizer != "none")


def _dtype_name(shape: Any) -> str:
    return str(getattr(shape, "dtype", None) or "float32").removeprefix("torch.")


def _model_class(shape: Any) -> Any:
    """The class that the configuration names, else the one with a loss for its kind."""
    import transformers

    for name in getattr(shape, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    for name in _AUTO:
        mapping = getattr(transformers, name)._model_mapping
        if type(shape) in mapping:
            return mapping[type(shape)]
    raise ValueError(f"model_type={shape.model_type!r}: transformers has no model with a loss")


def build_optimizer(
    settings: TrainingSettings, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer over the parameters to train."""
    classes: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adafactor": torch.optim.Adafactor,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
    }
    options: dict[str, Any] = {}
    if settings.optimizer == "sgd":
        options["momentum"] = settings.momentum
    if settings.weight_decay is not None:
        options["weight_decay"] = settings.weight_decay
    if settings.implementation == "fused":
        options["fused"] = True
    elif settings.implementation is not None:
        options["foreach"] = settings.implementation == "foreach"
    return classes[settings.optimizer](parameters, lr=1e-4, **options)


def train_step(
    settings: TrainingSettings, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """One step of a plain loop."""
    for _ in range(settings.accumulation):
        with _autocast(settings):
            loss = model(**make_batch(model, settings)).loss
        if not isinstance(loss, torch.Tensor):
            raise ValueError(f"{type(model).__name__} gives no loss to train by")
        (loss / settings.accumulation).backward()
        del loss
    optimizer.step()
    optimizer.zero_grad()


def infer_step(settings: TrainingSettings, model: nn.Module) -> None:
    """One forward pass without gradients."""
    with torch.no_grad(), _autocast(settings):
        batch = make_batch(model, settings)
        model(**{name: value for name, value in batch.items() if name != "labels"})


def _autocast(settings: TrainingSettings) -> contextlib.AbstractContextManager[Any]:
    if settings.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(settings.device, getattr(torch, settings.autocast))


def make_batch(model: Any, settings: TrainingSettings) -> dict[str, torch.Tensor]:
    """Inputs of the shapes that the model takes, and labels.

    Raises:
        ValueError: The model takes something else than tokens or images.
    """
    shape, samples = model.config, settings.micro_batch
    if model.main_input_name == "pixel_values":
        side = getattr(shape, "image_size", 224)
        height, width = side if isinstance(side, (list, tuple)) else (side, side)
        pixels = torch.randn(samples, getattr(shape, "num_channels", 3), height, width)
        kinds = getattr(shape, "num_labels", 2)
        return {
            "pixel_values": pixels.to(next(model.parameters()).dtype),
            "labels": torch.randint(0, kinds, (samples,)),
        }
    if model.main_input_name != "input_ids":
        raise ValueError(f"{type(model).__name__} takes {model.main_input_name}, not tokens")
    text = shape.get_text_config()
    longest = getattr(text, "max_position_embeddings", None) or _LONGEST
    length = settings.sequence or min(longest, _LONGEST)
    tokens = torch.randint(0, text.vocab_size, (samples, length))
    return {"input_ids": tokens, "labels": tokens.clone()}
