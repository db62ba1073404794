"""What a dry run of a Hugging Face model is told, beside its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

DTYPES = ("float32", "float16", "bfloat16")
OPTIMIZERS = ("sgd", "adam", "adamw", "adafactor", "rmsprop", "adagrad", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSettings:
    """How the model is trained.

    Raises:
        ValueError: A value is none of what is allowed; the message names field, value and range.
    """

    weight_dtype: str | None = None
    """Of the weights; left out: what the configuration says, else float32."""
    autocast: str | None = None
    """What autocast computes in, or none."""
    optimizer: str = "adamw"
    """``none`` for a forward pass without gradients."""
    implementation: str | None = None
    """``foreach``, ``for-loop`` or ``fused``; left out: torch's default on the device."""
    momentum: float = 0.0
    """Of SGD."""
    weight_decay: float | None = None
    """Left out: the optimizer's own default."""
    micro_batch: int = 1
    """Samples in a forward pass."""
    sequence: int | None = None
    """Tokens in a sample; left out: as many as the model takes, at most 2048."""
    accumulation: int = 1
    """Micro-batches in a step."""
    checkpointing: str = "none"
    """``none`` or ``full``."""
    attention: str | None = None
    """``sdpa`` or ``eager``; left out: what transformers chooses for the model."""
    use_cache: bool = False
    """Whether the forward pass fills a key-value cache."""
    device: str = "cuda"
    """``cuda`` or ``cpu``."""

    def __post_init__(self) -> None:
        _one_of(self, "weight_dtype", (None, *DTYPES))
        _one_of(self, "autocast", (None, "float16", "bfloat16"))
        _one_of(self, "optimizer", OPTIMIZERS)
        _one_of(self, "implementation", (None, "foreach", "for-loop", "fused"))
        _one_of(self, "checkpointing", ("none", "full"))
        _one_of(self, "attention", (None, "sdpa", "eager"))
        _one_of(self, "device", ("cuda", "cpu"))
        for name in ("micro_batch", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.sequence is not None and self.sequence < 1:
            raise ValueError(f"sequence must be at least 1, got {self.sequence}")

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> TrainingSettings:
        """From names and values.

        Raises:
            ValueError: A name is unknown, or a value is of another type or none of what is
                allowed.
        """
        hints = get_type_hints(cls)
        known = {f.name for f in fields(cls)}
        for name, value in data.items():
            if name not in known:
                raise ValueError(f"{name}: not known to a dry run; it knows {', '.join(known)}")
            allowed = get_args(hints[name]) or (hints[name],)
            if not isinstance(value, allowed) and not (float in allowed and type(value) is int):
                raise ValueError(f"{name}={value!r}: must be {hints[name]}")
        return cls(**data)


def _one_of(settings: TrainingSettings, name: str, allowed: tuple[str | None, ...]) -> None:
    value = getattr(settings, name)
    if value not in allowed:
        words = ", ".join(str(word) for word in allowed if word is not None)
        raise ValueError(f"{name}={value!r}: a dry run knows {words}")
