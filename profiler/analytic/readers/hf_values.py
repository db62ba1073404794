"""The values of a Hugging Face ``config.json``, absent ones at transformers' own defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _tables() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Defaults and other spellings of keys of each ``model_type``; see ``docs/write_hf_defaults``.

    Source: the configuration classes of transformers 5.24.
    """
    text = files(__package__).joinpath("hf_defaults.json").read_text(encoding="utf-8")
    return json.loads(text)["model_types"]  # type: ignore[no-any-return]


class HfConfig:
    """One configuration, or one nested in another, with its defaults filled in."""

    def __init__(self, values: Mapping[str, Any], model_type: str, where: str = "") -> None:
        table = _tables().get(model_type, {})
        self.values = values
        self.model_type = model_type
        self.where = where
        self._defaults: Mapping[str, Any] = table.get("defaults", {})
        self._spellings: Mapping[str, str] = table.get("spellings", {})

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key: the file's, else the default of its ``model_type``, else yours."""
        spellings = self._spelled(name)
        for source in (self.values, self._defaults):
            for key in spellings:
                if key in source:
                    return source[key]
        return default

    def _spelled(self, name: str) -> tuple[str, ...]:
        """All spellings of a key, in the order in which transformers believes them."""
        own = self._spellings.get(name, name)
        return (*(k for k, v in self._spellings.items() if v == own), own, name)

    def has(self, name: str) -> bool:
        """Whether the file says something other than null."""
        return any(self.values.get(key) is not None for key in self._spelled(name))

    def maybe(self, name: str, default: int | None = None) -> int | None:
        """A whole number, or ``None``.

        Raises:
            ValueError: It is something else.
        """
        value = self.get(name, default)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{self.where}{name}={value!r}: must be a whole number")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number.

        Raises:
            ValueError: It is absent or something else.
        """
        value = self.maybe(name, default)
        if value is None:
            value = default
        if value is None:
            raise ValueError(
                f"{self.where}{name}=null: must be a whole number for "
                f"model_type={self.model_type!r}"
            )
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A yes or no.

        Raises:
            ValueError: It is something else.
        """
        value = self.get(name, default)
        if value is None:
            return default
        if not isinstance(value, bool | int):
            raise ValueError(f"{self.where}{name}={value!r}: must be true or false")
        return bool(value)

    def share(self, name: str, default: float) -> float:
        """A number.

        Raises:
            ValueError: It is something else.
        """
        value = self.get(name, default)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{self.where}{name}={value!r}: must be a number")
        return float(value)

    def word(self, name: str, default: str = "") -> str:
        """A word."""
        value = self.get(name, default)
        return default if value is None else str(value)

    def sizes(self, name: str) -> list[int]:
        """A list of whole numbers.

        Raises:
            ValueError: It is something else.
        """
        value = self.get(name)
        if not isinstance(value, Sequence) or not all(isinstance(v, int) for v in value):
            raise ValueError(f"{self.where}{name}={value!r}: must be a list of whole numbers")
        return list(value)

    def words(self, name: str) -> list[str]:
        """A list of words; empty where it is absent."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueError(f"{self.where}{name}={value!r}: must be a list of words")
        return [str(v) for v in value]

    def pair(self, name: str) -> tuple[int, int]:
        """Height and width, given as a list or as one number for both."""
        value = self.get(name)
        if isinstance(value, Sequence) and len(value) == 2:
            height, width = value
        else:
            height = width = self.size(name)
        if not isinstance(height, int) or not isinstance(width, int) or min(height, width) < 1:
            raise ValueError(f"{self.where}{name}={value!r}: must be one or two numbers above 0")
        return height, width

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A nested mapping; empty where it is absent."""
        value = self.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.where}{name}={value!r}: must be a mapping")
        return value

    def nested(self, name: str, model_type: str, **defaults: Any) -> HfConfig:
        """The configuration nested under a key; its own ``model_type`` wins.

        Raises:
            ValueError: Its ``model_type`` is not known here.
        """
        values = {**defaults, **self.mapping(name)}
        said = values.get("model_type") or model_type
        if not isinstance(said, str) or said not in _tables():
            raise ValueError(f"{self.where}{name}.model_type={said!r}: not known here")
        return HfConfig(values, said, f"{self.where}{name}.")

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.size("hidden_size")

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return self.size("num_hidden_layers")

    @property
    def heads(self) -> int:
        """Attention heads."""
        heads = self.size("num_attention_heads")
        if not heads:
            raise ValueError(f"{self.where}num_attention_heads=0: must be at least 1")
        return heads

    @property
    def kv_heads(self) -> int:
        """Key and value heads; as many as heads where null."""
        return self.maybe("num_key_value_heads") or self.heads

    @property
    def head_width(self) -> int:
        """Width of one head: ``head_dim``, else hidden / heads."""
        return self.maybe("head_dim") or self.hidden // self.heads

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.size("vocab_size")

    @property
    def labels(self) -> int:
        """Outputs of a classifier: as many as ``id2label`` has, else ``num_labels``, else 2."""
        return self.label_count(2)

    def label_count(self, usual: int) -> int:
        """Outputs of a classifier, ``usual`` where the configuration does not say."""
        names = self.get("id2label")
        return len(names) if names else self.size("num_labels", usual)

    @property
    def ties(self) -> bool:
        """Whether the head is the token embedding."""
        return self.flag("tie_word_embeddings", True)
