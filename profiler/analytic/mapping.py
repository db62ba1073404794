"""Frozen settings objects and plain mappings: one description serves for both directions.

A settings class is a frozen keyword-only dataclass whose fields are made with :func:`setting`.
From that one description come the checks on construction, reading from a mapping (YAML, JSON),
writing to one, and the JSON Schema.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def setting(
    sentence: str,
    default: Any = MISSING,
    *,
    minimum: float | None = None,
    below: float | None = None,
    aliases: Mapping[str, str] | None = None,
) -> Any:
    """A dataclass field with its sentence, its range and other spellings of its values.

    Args:
        sentence: What the field is, with its unit; becomes the schema's description.
        default: Value when not given; without one the field is required.
        minimum: Smallest number allowed.
        below: Numbers must be smaller than this.
        aliases: Other spellings accepted when read from a mapping, and what they mean.
    """
    metadata = {
        "sentence": sentence,
        "minimum": minimum,
        "below": below,
        "aliases": aliases or {},
    }
    return field(default=default, metadata=metadata)


@cache
def _resolved(cls: Hashable) -> dict[str, Any]:
    return get_type_hints(cls)


def _hints(cls: Any) -> dict[str, Any]:
    """The types of a settings class's fields, resolved once."""
    return _resolved(cls)


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)


def _without_none(hint: Any) -> Any:
    """The one type that an optional hint allows beside ``None``."""
    if not _is_optional(hint):
        return hint
    (inner,) = (a for a in get_args(hint) if a is not type(None))
    return inner


def _item(hint: Any) -> Any:
    """The element type of ``tuple[X, ...]``."""
    return get_args(hint)[0]


def describe(hint: Any) -> str:
    """What a type hint allows, in words for an error message."""
    if _is_optional(hint):
        return f"{describe(_without_none(hint))}, or null"
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(a) for a in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list of {describe(_item(hint))}"
    if is_dataclass(hint):
        return f"a mapping with the fields {', '.join(f.name for f in fields(hint))}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return names[hint]


def _fits(value: object, hint: Any) -> bool:
    if _is_optional(hint):
        return value is None or _fits(value, _without_none(hint))
    if get_origin(hint) is Literal:
        return any(value == a and type(value) is type(a) for a in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(v, _item(hint)) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _out_of_range(value: object, f: Field[Any]) -> str | None:
    """What is allowed instead, when a number (or one of several) is out of its range."""
    if isinstance(value, tuple):
        return next((m for v in value if (m := _out_of_range(v, f))), None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, below = f.metadata.get("minimum"), f.metadata.get("below")
    if low is not None and not value >= low:
        return f"at least {low:g}"
    if below is not None and not value < below:
        return f"below {below:g}"
    return None


def check(settings: Any) -> None:
    """Check every field of a settings object against its type and range.

    Raises:
        ValueError: Names the field, the value and what is allowed.
    """
    cls = type(settings)
    for f in fields(cls):
        value, hint = getattr(settings, f.name), _hints(cls)[f.name]
        if not _fits(value, hint):
            raise ValueError(f"{cls.__name__}.{f.name}={value!r}: must be {describe(hint)}")
        if allowed := _out_of_range(value, f):
            raise ValueError(f"{cls.__name__}.{f.name}={value!r}: must be {allowed}")


def to_mapping(settings: Any) -> dict[str, object]:
    """A settings object as a plain nested mapping; fields at their defaults are left out."""
    result: dict[str, object] = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if f.default is MISSING or value != f.default:
            result[f.name] = _plain(value)
    return result


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def from_mapping(cls: type[T], data: object, where: str = "") -> T:
    """Build a settings object from a plain nested mapping.

    Args:
        cls: The settings class.
        data: The mapping, as read from YAML or JSON.
        where: Path of this mapping in the whole, for messages (``"optimizers[0]"``).

    Raises:
        ValueError: Names the field by its path, the value and what is allowed.
    """
    place = where or cls.__name__.lower()
    if not isinstance(data, Mapping):
        raise ValueError(f"{place}={data!r}: must be {describe(cls)}")
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            raise ValueError(f"{place}: unknown field {key!r}; allowed are {', '.join(known)}")
    values = {
        name: _read(_hints(cls)[name], data[name], f, f"{where}.{name}" if where else name)
        for name, f in known.items()
        if name in data
    }
    missing = [n for n, f in known.items() if n not in data and f.default is MISSING]
    if missing:
        hint = describe(_hints(cls)[missing[0]])
        raise ValueError(f"{place}: field {missing[0]!r} is missing; it must be {hint}")
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


def _read(hint: Any, value: object, f: Field[Any], where: str) -> object:
    allowed = hint
    hint = _without_none(hint) if value is not None else hint
    if is_dataclass(hint):
        return from_mapping(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_read(_item(hint), v, f, f"{where}[{i}]") for i, v in enumerate(value))
    if isinstance(value, str):
        value = f.metadata.get("aliases", {}).get(value, value)
    if not _fits(value, hint):
        raise ValueError(f"{where}={value!r}: must be {describe(allowed)}")
    return value


def schema(cls: type) -> dict[str, object]:
    """JSON Schema (draft 2020-12) of the mapping of a settings class."""
    properties: dict[str, object] = {}
    for f in fields(cls):
        entry = _hint_schema(_hints(cls)[f.name], f)
        entry["description"] = f.metadata.get("sentence", "")
        if f.default is not MISSING:
            entry["default"] = _plain(f.default)
        properties[f.name] = entry
    return {
        "type": "object",
        "properties": properties,
        "required": [f.name for f in fields(cls) if f.default is MISSING],
        "additionalProperties": False,
    }


def _hint_schema(hint: Any, f: Field[Any]) -> dict[str, object]:
    if _is_optional(hint):
        return {"anyOf": [_hint_schema(_without_none(hint), f), {"type": "null"}]}
    if get_origin(hint) is Literal:
        return {"enum": [*get_args(hint), *f.metadata.get("aliases", {})]}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _hint_schema(_item(hint), f)}
    if is_dataclass(hint):
        return schema(hint)  # type: ignore[arg-type]
    names = {int: "integer", float: "number", bool: "boolean", str: "string"}
    entry: dict[str, object] = {"type": names[hint]}
    if (low := f.metadata.get("minimum")) is not None:
        entry["minimum"] = low
    if (below := f.metadata.get("below")) is not None:
        entry["exclusiveMaximum"] = below
    return entry
