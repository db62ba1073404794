"""What a launcher's file says, as fields of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..dtypes import DTYPE_ALIASES

AUTO = "auto"
"""What DeepSpeed files say where the Trainer is to fill in a value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known from elsewhere when a file is read: it decides where the file says `auto`."""

    devices: int | None = None
    """All processes."""
    micro_batch: int | None = None
    accumulation: int | None = None
    precision: str | None = None
    """``bf16``, ``fp16`` or ``no``."""
    hidden: int | None = None
    """Width of the model, from which the Trainer derives bucket sizes."""


@dataclass(kw_only=True, slots=True)
class Settings:
    """Fields of a scenario that a file decides, and what it leaves open, in words."""

    fields: dict[str, Any] = field(default_factory=dict)
    """As in a scenario file, without ``parallelism``, ``offload`` and ``batch``."""
    parallelism: dict[str, Any] = field(default_factory=dict)
    offload: dict[str, Any] = field(default_factory=dict)
    micro_batch: int | None = None
    notes: list[str] = field(default_factory=list)

    def mapping(self) -> dict[str, Any]:
        """The fields as they stand in a scenario file, without the batch."""
        made = dict(self.fields)
        if self.parallelism:
            made["parallelism"] = dict(self.parallelism)
        if self.offload:
            made["offload"] = dict(self.offload)
        return made


class Block:
    """A mapping of a file that checks what is taken from it and notes what is not."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values = values
        self.where = where
        self.taken: set[str] = set()

    def get(self, *names: str) -> Any:
        """The first of several spellings of a key that is given."""
        self.taken.update(names)
        return next((self.values[n] for n in names if self.values.get(n) is not None), None)

    def block(self, *names: str) -> Block:
        """A nested mapping; empty where it is absent.

        Raises:
            ValueError: It is something else.
        """
        value = self.get(*names)
        if value is None:
            return Block({}, f"{self.where}{names[0]}.")
        if not isinstance(value, Mapping):
            raise self.wrong(names[0], value, "a mapping")
        return Block(value, f"{self.where}{names[0]}.")

    def number(self, *names: str, least: int = 0) -> int | None:
        """A whole number, ``1e9`` among them; ``None`` where it is absent or ``auto``.

        Raises:
            ValueError: It is something else.
        """
        value = self.get(*names)
        if value is None or value == AUTO:
            return None
        if (
            isinstance(value, str)
            and value.strip().replace(".", "", 1).replace("e", "", 1).isdigit()
        ):
            value = float(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(names[0], value, f"a whole number of at least {least}, or 'auto'")
        return value

    def flag(self, *names: str) -> bool | None:
        """A yes or no; ``None`` where it is absent or ``auto``.

        Raises:
            ValueError: It is something else.
        """
        value = self.get(*names)
        if value is None or value == AUTO:
            return None
        if isinstance(value, str) and value.lower() in ("true", "false", "yes", "no"):
            return value.lower() in ("true", "yes")
        if not isinstance(value, bool):
            raise self.wrong(names[0], value, "true or false, or 'auto'")
        return value

    def word(self, name: str, allowed: Mapping[str, Any]) -> Any:
        """What one of several words stands for; ``None`` where it is absent.

        Raises:
            ValueError: It is another word.
        """
        value = self.get(name)
        if value is None:
            return None
        key = str(value).lower()
        if key not in allowed:
            raise self.wrong(name, value, f"one of {', '.join(allowed)}")
        return allowed[key]

    def is_auto(self, *names: str) -> bool:
        """Whether a key is left to the Trainer."""
        return any(self.values.get(n) == AUTO for n in names)

    def wrong(self, name: str, value: object, allowed: str) -> ValueError:
        """A complaint that names the field, the value and what is allowed."""
        return ValueError(f"{self.where}{name}={value!r}: must be {allowed}")

    def rest(self, ignored: frozenset[str]) -> list[str]:
        """Keys that nobody asked for."""
        return [f"{self.where}{key}" for key in self.values if key not in self.taken | ignored]


def dtype_of(value: object) -> str:
    """Torch's name of a type, from any spelling."""
    name = str(value).removeprefix("torch.")
    return DTYPE_ALIASES.get(name, name)
