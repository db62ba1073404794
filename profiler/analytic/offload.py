"""What is kept off the device: in the host's memory, or on an NVMe disk."""

# ruff: noqa: RUF009 (setting() makes a dataclass field)
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .mapping import check, setting

Place = Literal["none", "cpu", "nvme"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offload:
    """Where optimizer state, parameters and activations lie between their uses."""

    optimizer: Place = setting("Where optimizer state (and its step) is; none: the device.", "none")
    parameters: Place = setting("Where parameters are between uses; none: the device.", "none")
    activations: bool = setting("Whether checkpointed activations go to the host.", False)
    pinned: bool = setting("Whether the host's memory is page-locked.", False)
    optimizer_share: float = setting(
        "DeepSpeed `ratio`: share of the optimizer state that is offloaded.",
        1.0,
        minimum=0,
        below=1.0000001,
    )
    buffer_count: int = setting("DeepSpeed `buffer_count`: buffers for swapping.", 5, minimum=1)
    buffer_elements: int = setting(
        "DeepSpeed `buffer_size`: elements of each of them.", 100_000_000, minimum=0
    )
    max_in_cpu_elements: int = setting(
        "DeepSpeed `max_in_cpu`: parameters kept in the host's memory with NVMe.",
        1_000_000_000,
        minimum=0,
    )

    def __post_init__(self) -> None:
        check(self)
