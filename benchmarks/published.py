"""Published rows, read: what a row measured, and who answers it.

What a row's words mean is decided by the rules here, never row by row, and nothing of a row's own
value enters its prediction: a :class:`Row` hands out every field but that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Quantity = Literal[
    "peak",
    "reserved",
    "device",
    "end",
    "start",
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "kv_cache",
    "fits",
    "table",
    "none",
]
"""What is compared: the peak allocated, what is reserved, what the driver counts for the device,
what is allocated at the end or before the beginning of a step, one class, whether it fits, a
printed formula, or nothing that is predicted."""

RULES: tuple[tuple[str, Quantity], ...] = (
    (r"context$|first CUDA tensor|non-torch|cuda-graph", "none"),
    (r"^OOM|OOM 2?4|fits|FITS", "fits"),
    (r"nvidia-smi", "device"),
    (r"GPU memory, total over all GPUs|rounded GiB|GPU memory, (1024|generat)", "device"),
    (r"memory per GPU as stated", "device"),
    (r"parameters_gib|^parameters$|model weights|weights per GPU|log: weights", "parameters"),
    (r"weight shard|MA after load|after model init|after_model_init|after init", "parameters"),
    (r"after model creation|after placement", "parameters"),
    (r"gradients_gib|^gradients", "gradients"),
    (r"optimizer_states_gib|^optimizer states", "optimizer_state"),
    (r"phase_peak_gib|peak before optimizer|peak after optimizer", "peak"),
    (r"after_optimizer_step: allocated|after optimizer\.step|step end|after forward", "end"),
    (r"before_optimizer_step: allocated|after DDP wrap|after backward", "end"),
    (r"before the recorded step", "start"),
    (r"activation", "activations"),
    (r"kv-cache|KV cache", "kv_cache"),
    (r"reserved", "reserved"),
    (r"torchtitan", "reserved"),
    (r"peak|max_memory|max memory|total memory", "peak"),
)


USABLE = 0.98
"""Part of a GPU's nominal memory that a process can have."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published row without its value."""

    fields: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Its name."""
        return str(self.fields["id"])

    def __getattr__(self, name: str) -> Any:
        if name in ("value", "value_bytes"):
            raise AttributeError(f"{name}: a prediction does not see what was measured")
        return self.fields.get(name)

    @property
    def arch(self) -> Mapping[str, Any]:
        """The architecture; empty where none is given."""
        return self.fields.get("arch") or {}

    @property
    def extra(self) -> Mapping[str, Any]:
        """Further settings; empty where none are given."""
        return self.fields.get("extra") or {}

    def says(self, pattern: str, *names: str) -> bool:
        """Whether one of these fields matches, whatever the case."""
        text = " | ".join(str(self.fields.get(name) or "") for name in names)
        return re.search(pattern, text, re.IGNORECASE) is not None

    @property
    def capacity_bytes(self) -> float | None:
        """Memory of the row's GPU, where it is said: nominal GiB less what the driver keeps."""
        said = self.extra.get("capacity_gb")
        words = f"{self.fields.get('measured')} {self.fields.get('gpu')}"
        named = re.search(r"(\d+) ?GB", words)
        number = said or (int(named[1]) if named else None)
        return None if number is None else number * 2**30 * USABLE

    @property
    def quantity(self) -> Quantity:
        """What was measured."""
        if self.fields["kind"] == "analytical":
            return "table"
        if self.fields["kind"] == "constraint":
            return "fits"
        words = str(self.fields["measured"])
        return next((q for pattern, q in RULES if re.search(pattern, words)), "peak")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was predicted for a row, in its unit (bytes, where it is not a table's)."""

    predicted: float
    low: float | None = None
    high: float | None = None
    quantity: Quantity | None = None
    """What was predicted where it is not what the row's words say."""
