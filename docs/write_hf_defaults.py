"""Write the table of defaults that the Hugging Face reader fills absent keys with.

    python docs/write_hf_defaults.py

The values are those of the configuration classes of the transformers installed here. Only the
architectures that the reader knows are kept, and only the keys that its code names.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

READERS = Path(__file__).parent.parent / "profiler/analytic/readers"
TARGET = READERS / "hf_defaults.json"
KINDS = (int, bool, float, str, list, tuple, type(None))


def source() -> str:
    """The reader's own code."""
    return "\n".join(p.read_text(encoding="utf-8") for p in sorted(READERS.rglob("*.py")))


def named(code: str) -> re.Pattern[str]:
    """Every text in the code; ``f"{side}_layers"`` stands for any side."""
    texts = re.findall(r'"([\w.-]+)"', code)
    endings = re.findall(r'"\{\w+\}(_\w{4,})"', code)
    either = [*map(re.escape, sorted(set(texts))), *(rf"\w+{e}" for e in sorted(set(endings)))]
    return re.compile("|".join(either))


def entry(name: str, wanted: re.Pattern[str]) -> dict[str, Any] | None:
    """Defaults and other spellings of the keys of one ``model_type``."""
    try:
        cls = type(transformers.AutoConfig.for_model(name))
    except Exception as error:
        print(f"{name}: left out ({error})")
        return None
    spellings = {k: v for k, v in cls.attribute_map.items() if wanted.fullmatch(k)}
    kept = set(spellings.values())
    values = {k: v for k, v in defaults(cls) if wanted.fullmatch(k) or k in kept}
    found = {"defaults": values}
    return {**found, "spellings": spellings} if spellings else found


def defaults(cls: type) -> list[tuple[str, Any]]:
    """The class's fields that hold plain values."""
    found = []
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            continue
        if isinstance(value, KINDS):
            found.append((field.name, value))
    return found


def main() -> None:
    """Write the table, one architecture a line."""
    wanted = named(source())
    names = [n for n in sorted(CONFIG_MAPPING_NAMES) if wanted.fullmatch(n)]
    table = {n: e for n in names if (e := entry(n, wanted)) is not None}
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(e)}" for n, e in table.items())
    TARGET.write_text(
        f'{{"transformers": "{transformers.__version__}", "model_types": {{\n{lines}\n}}}}\n',
        encoding="utf-8",
    )
    print(f"{TARGET}: {len(table)} architectures")


if __name__ == "__main__":
    main()
