"""``--gpu``: a GPU of the list by its name, or so many bytes."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from vramscope.profiler.analytic.gpus import GPUS, Gpu

from ..format import size

GpuName = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME|BYTES",
        help="The GPU that it is to fit on: a name of the list or a part of it (T4, a100 80), or a "
        "size (24GiB, 80GB, 25769803776). Left out: the smallest on which it fits.",
        show_default=False,
    ),
]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def gpu_of(text: str) -> Gpu:
    """The GPU that is meant.

    Raises:
        typer.BadParameter: Names the value and what is allowed.
    """
    given = _bytes(text)
    words = text.casefold().split()
    found = [gpu for gpu in GPUS if words and all(word in gpu.name.casefold() for word in words)]
    if given is not None and (not found or not text.strip().isdecimal()):
        return Gpu(name=f"{size(given)} of memory", total_bytes=given, source="--gpu")
    if len(found) == 1:
        return found[0]
    names = ", ".join(gpu.name for gpu in (found or GPUS))
    why = "is several GPUs" if found else "is no GPU of the list"
    raise typer.BadParameter(f"--gpu {text!r} {why}: give one of {names}, or a size such as 24GiB")


def _bytes(text: str) -> int | None:
    matched = _SIZE.fullmatch(text.strip())
    if matched is None:
        return None
    number, unit = matched.groups()
    unit = (unit or "B").casefold()
    power = _POWERS.get(unit[0], 0)
    return int(float(number) * (1024 if "i" in unit else 1000) ** power)
