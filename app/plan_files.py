"""Files and pasted text as a scenario."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from vramscope.profiler.analytic import Scenario, read_scenario_files

LARGEST_FILE = 4 * 2**20
PASTED = "pasted text"
_OF_THE_MODEL = frozenset(
    {
        "architecture",
        "tensors",
        "weight_dtype",
        "double_quantization",
        "activations_unknown",
        "model_class",
        "notes",
    }
)


def read_files(files: Mapping[str, bytes], present: Scenario) -> Scenario:
    """A scenario from files, as ``vramscope plan`` reads them.

    A file that gives only a model leaves everything else as it is at present, and one without a
    batch leaves the batch.

    Args:
        files: Contents by name. What a file is, is seen by its keys.
        present: The scenario that is shown.

    Raises:
        ValueError: Names the file and, where there is one, the field, the value and what is
            allowed.
    """
    if not files:
        raise ValueError("no file was given, and no text pasted")
    with TemporaryDirectory() as folder:
        paths = []
        for number, (name, content) in enumerate(files.items()):
            if len(content) > LARGEST_FILE:
                raise ValueError(f"{name}: is larger than 4 MiB; a configuration is a small file")
            path = Path(folder, str(number), _safe(name, content))
            path.parent.mkdir()
            path.write_bytes(content)
            paths.append(path)
        try:
            read = read_scenario_files(paths)
        except ValueError as error:
            raise ValueError(_without_folders(str(error), folder)) from None
    given = read.to_mapping()
    if set(given) <= _OF_THE_MODEL:
        kept = {k: v for k, v in present.to_mapping().items() if k not in _OF_THE_MODEL}
        return Scenario.from_mapping({**kept, **given})
    if read.batch is None and present.batch is not None:
        return read.replace(batch=present.batch)
    return read


def _safe(name: str, content: bytes) -> str:
    """A file name that lies in its folder; JSON by its ending, or by its first character."""
    plain = re.sub(r"[^\w.\- ]+", "_", Path(name).name, flags=re.ASCII)[-80:].lstrip(".") or "file"
    if Path(plain).suffix in (".json", ".yaml", ".yml"):
        return plain
    return f"{plain}.json" if content.lstrip()[:1] in (b"{", b"[") else f"{plain}.yaml"


def _without_folders(message: str, folder: str) -> str:
    plain = re.sub(re.escape(folder) + r"/\d+/", "", message)
    return re.sub(rf"{PASTED}\.(yaml|json)", PASTED, plain)
