"""Put into the README what is measured or taken elsewhere: ``python docs/fill_readme.py``.

The table of costs comes from benchmarks/results/overhead.md and the picture from docs/images/;
what does not exist yet leaves its place empty. A test holds that the README is filled.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
OVERHEAD = ROOT / "benchmarks" / "results" / "overhead.md"
LIGHT = ROOT / "docs" / "images" / "run-light.png"
DARK = ROOT / "docs" / "images" / "run-dark.png"

PICTURE = f"""<picture>
  <source media="(prefers-color-scheme: dark)" srcset="{DARK.relative_to(ROOT)}">
  <img alt="The page of a run: memory by class over the steps, measured beside predicted"
       src="{LIGHT.relative_to(ROOT)}">
</picture>
"""


def filled(text: str) -> str:
    """The README's text with both places filled from what is on disk."""
    table = OVERHEAD.read_text(encoding="utf-8") if OVERHEAD.exists() else ""
    picture = PICTURE if LIGHT.exists() and DARK.exists() else ""
    return _put(_put(text, "overhead", table), "screenshot", picture)


def _put(text: str, place: str, content: str) -> str:
    inside = f"\n{content.strip()}\n" if content else ""
    pattern = re.compile(rf"(<!-- {place} -->\n).*?(<!-- /{place} -->)", re.DOTALL)
    replaced, count = pattern.subn(lambda match: match[1] + inside.lstrip("\n") + match[2], text)
    if count != 1:
        raise ValueError(f"README.md has {count} places called {place!r}, not one")
    return replaced


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
