"""Units, colours, words and escaping: the rim between plain data and what people read.

Sizes come in as bytes and leave as text. GiB is 2³⁰ bytes. Unknown leaves as an em-dash.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from vramscope.storage.records import MemoryClass, Phase, RunStatus

UNKNOWN = "—"
"""What stands on screen for a value that is not known."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A binary unit of memory."""

    name: str
    bytes: int


BYTE = Unit("B", 1)
KIB = Unit("KiB", 2**10)
MIB = Unit("MiB", 2**20)
GIB = Unit("GiB", 2**30)
TIB = Unit("TiB", 2**40)


def unit_for(largest: int | float | None) -> Unit:
    """The unit in which the largest of several sizes reads best.

    Args:
        largest: Bytes; the sign does not matter.
    """
    size = abs(largest or 0)
    if size >= 1024 * GIB.bytes:
        return TIB
    if size >= 0.95 * GIB.bytes:
        return GIB
    if size >= 0.95 * MIB.bytes:
        return MIB
    if size >= 0.95 * KIB.bytes:
        return KIB
    return BYTE


def decimals_for(largest: int | float, unit: Unit) -> int:
    """Decimals that leave about three digits that count, for a given largest size."""
    if unit is BYTE:
        return 0
    value = abs(largest) / unit.bytes
    if value >= 1000:
        return 0
    return 1 if value >= 100 else 2


def size(value: int | float | None, unit: Unit | None = None, *, signed: bool = False) -> str:
    """A size for reading, such as ``26.08 GiB``, with a real minus sign.

    Args:
        value: Bytes, or ``None`` for unknown.
        unit: The unit to use; chosen by the value when left out.
        signed: Write ``+`` before what is positive (for differences).
    """
    if value is None:
        return UNKNOWN
    unit = unit or unit_for(value)
    digits = decimals_for(value, unit)
    number = f"{abs(value) / unit.bytes:,.{digits}f}"
    sign = "−" if value < 0 else "+" if signed and value > 0 else ""
    return f"{sign}{number} {unit.name}"


def whole_bytes(value: int | None) -> str:
    """A size to the byte, such as ``7,000,559,616 B``."""
    return UNKNOWN if value is None else f"{value:,} B"


def count(value: int | None) -> str:
    """A whole number with separators."""
    return UNKNOWN if value is None else f"{value:,}"


def percent(ratio: float | None, *, signed: bool = False) -> str:
    """A ratio as a percentage: ``0.012`` is ``1.2 %``. What rounds to zero has no sign.

    A ratio of ten or more says only that the one was next to nothing beside the other, and is not
    written out.
    """
    if ratio is None:
        return UNKNOWN
    if abs(ratio) >= 10:
        return "> 999 %" if ratio > 0 else "< −999 %"
    points = abs(ratio) * 100
    number = f"{points:.0f}" if points >= 100 else f"{points:.1f}"
    if float(number) == 0:
        return "0.0 %"
    sign = "−" if ratio < 0 else "+" if signed else ""
    return f"{sign}{number} %"


def relative_error(predicted: int | None, measured: int | None) -> float | None:
    """How far a prediction lies above (positive) or below what was measured, as a ratio."""
    if predicted is None or not measured:
        return None
    return (predicted - measured) / measured


def duration(seconds: float | None) -> str:
    """A duration: ``310 µs``, ``12.5 ms``, ``3.2 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else "1 s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def setting(value: object) -> str:
    """A setting's value as plain text."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


# -- escaping ---------------------------------------------------------------------------------

_MARKDOWN = re.compile(r"([!-/:-@\[-`{-~])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


def plain(text: str, limit: int = 120) -> str:
    """One line of text without control or direction characters, cut at ``limit`` characters."""
    line = _CONTROL.sub(" ", text).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def md(text: str, limit: int = 120) -> str:
    """A string from a run, escaped for Markdown: no image, no link, no colour, no maths."""
    return _MARKDOWN.sub(r"\\\1", plain(text, limit))


def pl(text: str, limit: int = 40) -> str:
    """A string from a run, escaped for Plotly's text (which renders some HTML)."""
    return html.escape(plain(text, limit))


def module_path(path: str, limit: int = 60) -> str:
    """A module's path for reading: the root has a name, and a long path keeps its end."""
    shown = plain(path, 1000)
    if not shown:
        return "the model itself"
    return shown if len(shown) <= limit else "…" + shown[len(shown) - limit + 1 :]


# -- words ------------------------------------------------------------------------------------

CLASS_LABELS: dict[str, str] = {
    MemoryClass.PARAMETERS: "Parameters",
    MemoryClass.GRADIENTS: "Gradients",
    MemoryClass.OPTIMIZER_STATE: "Optimizer state",
    MemoryClass.ACTIVATIONS: "Activations",
    MemoryClass.AUTOCAST_CACHE: "Autocast cache",
    MemoryClass.BUFFERS: "Buffers",
    MemoryClass.COMMUNICATION: "Communication",
    MemoryClass.KV_CACHE: "KV cache",
    MemoryClass.TEMPORARIES: "Temporaries",
    "unattributed": "Unattributed",
    "cached": "Cached, free",
    "allocated": "Allocated",
    "reserved": "Reserved",
}
"""Every line of the books, by its name in the records, as it stands on screen."""

CLASS_HELP: dict[str, str] = {
    MemoryClass.PARAMETERS: "Weights held on this device: the local shard, 16-bit or quantised.",
    MemoryClass.GRADIENTS: "Gradients of the weights, until they are cleared.",
    MemoryClass.OPTIMIZER_STATE: "What the optimizer keeps, such as Adam's two moments, "
    "and fp32 master weights.",
    MemoryClass.ACTIVATIONS: "Tensors saved in forward because backward needs them.",
    MemoryClass.AUTOCAST_CACHE: "16-bit copies of the weights that autocast makes and keeps.",
    MemoryClass.BUFFERS: "Module buffers, such as running means and position tables.",
    MemoryClass.COMMUNICATION: "Buckets and gathered weights of data-parallel training.",
    MemoryClass.KV_CACHE: "Keys and values kept between tokens at inference.",
    MemoryClass.TEMPORARIES: "Alive at this instant only: workspaces, logits, inputs.",
    "unattributed": "Allocated bytes that belong to no class. Shown, never hidden.",
    "cached": "Free inside the allocator, fragmentation included: reserved minus allocated.",
    "allocated": "All live tensors: the classes and what is unattributed.",
    "reserved": "What the allocator holds from the driver: allocated and cached.",
}
"""One sentence for every line of the books."""

DEVICE_LABELS: dict[str, str] = {
    "allocated": "Allocated",
    "cached": "Cached, free",
    "outside_allocator": "Outside the allocator",
    "other_processes": "Other processes",
    "driver_reserved": "Driver and firmware",
    "untold": "Not told apart",
    "free": "Free",
    "total": "All of the device",
}
"""Every line of a device as a whole, as it stands on screen."""

DEVICE_HELP: dict[str, str] = {
    "allocated": "All live tensors of this process: the classes and what is unattributed.",
    "cached": "Free inside this process's allocator, and of use to nobody else.",
    "outside_allocator": "What this process uses beside torch's allocator: CUDA's context, "
    "kernels, libraries such as cuBLAS and NCCL.",
    "other_processes": "What all other processes on this device use together.",
    "driver_reserved": "What driver and firmware keep for themselves.",
    "untold": "In use on the device, and the driver does not say by whom.",
    "free": "In use by nobody.",
    "total": "All that the device has, as the driver counts it.",
}
"""One sentence for every line of a device."""

STACK: tuple[str, ...] = (*(c.value for c in MemoryClass), "unattributed")
"""The lines that add up to ``allocated``, from the bottom of the stack to its top."""

PHASE_LABELS: dict[Phase, str] = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    Phase.IDLE: "idle",
    Phase.EVAL: "eval",
}

STATUS_LABELS: dict[RunStatus, str] = {
    RunStatus.RUNNING: "Running",
    RunStatus.COMPLETED: "Completed",
    RunStatus.FAILED: "Failed",
    RunStatus.INTERRUPTED: "Interrupted",
    RunStatus.OUT_OF_MEMORY: "Out of memory",
    RunStatus.STALE: "Stale",
}

STATUS_HELP: dict[RunStatus, str] = {
    RunStatus.RUNNING: "The training process is writing.",
    RunStatus.COMPLETED: "The run ended on its own.",
    RunStatus.FAILED: "The training process raised an error.",
    RunStatus.INTERRUPTED: "The run was stopped from outside, such as by Ctrl-C.",
    RunStatus.OUT_OF_MEMORY: "The device had no memory left for an allocation.",
    RunStatus.STALE: "The run never said that it ended, and its process no longer writes.",
}

# -- colours ----------------------------------------------------------------------------------

CLASS_COLOURS: dict[str, str] = {
    MemoryClass.PARAMETERS: "#0072B2",
    MemoryClass.GRADIENTS: "#E69F00",
    MemoryClass.OPTIMIZER_STATE: "#009E73",
    MemoryClass.ACTIVATIONS: "#CC79A7",
    MemoryClass.AUTOCAST_CACHE: "#56B4E9",
    MemoryClass.BUFFERS: "#F0E442",
    MemoryClass.COMMUNICATION: "#D55E00",
    MemoryClass.KV_CACHE: "#882255",
    MemoryClass.TEMPORARIES: "#999999",
    "unattributed": "#5C5C5C",
    "cached": "#C9CED6",
}
"""Okabe and Ito's colours, which people who see few colours tell apart (two more beside them)."""


DEVICE_COLOURS: dict[str, str] = {
    "allocated": "#2F4B7C",
    "cached": CLASS_COLOURS["cached"],
    "outside_allocator": "#A6761D",
    "other_processes": "#6A4C93",
    "driver_reserved": "#B8B09E",
    "untold": "#7F7F7F",
}
"""The colours of a device's lines; none but that of cached memory is a class's."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one theme that are no class; ``.streamlit/config.toml`` has the same."""

    background: str
    surface: str
    text: str
    muted: str
    grid: str
    capacity: str
    driver: str
    cached_fill: str
    cached_hatch: str


LIGHT = Palette(
    background="#FFFFFF",
    surface="#F4F6F9",
    text="#1B2230",
    muted="#5B6475",
    grid="#E3E7ED",
    capacity="#B3123B",
    driver="#1B2230",
    cached_fill="rgba(120,130,150,0.10)",
    cached_hatch="rgba(90,100,117,0.45)",
)
DARK = Palette(
    background="#10141C",
    surface="#1A202B",
    text="#E8ECF3",
    muted="#9AA4B5",
    grid="#2A3240",
    capacity="#FF6F8B",
    driver="#E8ECF3",
    cached_fill="rgba(160,170,190,0.10)",
    cached_hatch="rgba(170,180,200,0.40)",
)


def palette(dark: bool) -> Palette:
    """The colours of the dark or the light theme."""
    return DARK if dark else LIGHT
