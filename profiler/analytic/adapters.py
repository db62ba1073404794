"""Low-rank adapters: a few trainable matrices beside frozen ones."""

# ruff: noqa: RUF009 (setting() makes a dataclass field)
from __future__ import annotations

from dataclasses import dataclass

from .dtypes import DTYPE_ALIASES, TensorDtype
from .mapping import check, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraSpec:
    """LoRA as PEFT makes it."""

    rank: int = setting("Inner width of an adapter (`r`).", 8, minimum=1)
    targets: tuple[str, ...] = setting(
        "How the names of the layers end that get one (`q_proj`); `all-linear` for every linear "
        "layer but the head.",
        ("q_proj", "v_proj"),
    )
    dtype: TensorDtype | None = setting(
        "Type of the adapters; null: as PEFT does (float32 beside 16-bit and quantised weights).",
        None,
        aliases=DTYPE_ALIASES,
    )
    trained_whole: tuple[str, ...] = setting(
        "Modules that are copied and trained as they are (`modules_to_save`).", ()
    )
    dropout: float = setting(
        "Dropout on the adapters' inputs (`lora_dropout`).", 0.0, minimum=0, below=1.0000001
    )
    dora: bool = setting("Whether magnitudes are trained too (DoRA).", False)

    def __post_init__(self) -> None:
        check(self)
