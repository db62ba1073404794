"""``python -m vramscope.profiler.launch [OPTIONS] SCRIPT ARGS…``: an unchanged script.

The profiler is attached right after the script itself has imported torch, so that what the
script sets before that (``CUDA_VISIBLE_DEVICES``, thread counts) still counts. The script sees
itself as ``__main__``, with its own ``sys.argv`` and folder; its errors and exit code are its own.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from .config import ProfilerConfig

if TYPE_CHECKING:
    from .discovery import Discovery


class AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls a function once, right after a module was imported.

    Args:
        name: The module's full name.
        then: Called with nothing.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Stands in for the module's own loader, once."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Imports the module as ever, then calls."""
        assert self._loader is not None
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a script with the profiler attached and returns the exit code."""
    options = _parse(arguments)
    script = Path(options.script)
    if not script.is_file():
        print(f"vramscope: there is no script {options.script!r}", file=sys.stderr)
        return 2
    found: list[Discovery] = []

    def attach() -> None:
        from .discovery import Discovery

        discovery = Discovery(
            run_name=options.name or script.stem,
            store=options.db,
            config=ProfilerConfig(
                detail_every=options.detail_every, snapshot_on_oom=options.snapshot_on_oom
            ),
        )
        discovery.install()
        found.append(discovery)

    sys.meta_path.insert(0, AfterImport("torch", attach))
    _close_when_terminated(found)
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(script.resolve().parent)
    try:
        runpy.run_path(options.script, run_name="__main__")
    except SystemExit as leaving:
        _finish(found, leaving)
        raise
    except BaseException as error:
        trace = _own_trace(error.__traceback__, options.script)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        _finish(found, error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    _finish(found, None)
    return 0


def _close_when_terminated(found: Sequence[Discovery]) -> None:
    """A batch system ends jobs by SIGTERM: the run says so, then the signal does its work."""
    process = os.getpid()

    def terminate(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        for discovery in found if os.getpid() == process else ():
            if discovery.profiler is not None:
                discovery.profiler.interrupted("Terminated (SIGTERM).")
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, terminate)


def _own_trace(trace: TracebackType | None, script: str) -> TracebackType | None:
    """The part of a traceback that is the script's own."""
    own = trace
    while own is not None and own.tb_frame.f_code.co_filename != script:
        own = own.tb_next
    return own or trace


def _finish(found: Sequence[Discovery], error: BaseException | None) -> None:
    profiler = None
    for discovery in found:
        discovery.remove()
        profiler = discovery.profiler
    if profiler is not None:
        profiler.finish(error)
        print(f"vramscope: recorded run {profiler.run_id}", file=sys.stderr)
    elif int(os.environ.get("RANK", "0") or 0) == 0:
        print(
            "vramscope: nothing was recorded: no module with an optimizer was called for training",
            file=sys.stderr,
        )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m vramscope.profiler.launch")
    parser.add_argument("--name", help="a name for the run; the script's name by default")
    parser.add_argument("--db", help="URL or path of the store")
    parser.add_argument("--detail-every", type=int, default=ProfilerConfig().detail_every)
    parser.add_argument("--snapshot-on-oom", metavar="FOLDER")
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
