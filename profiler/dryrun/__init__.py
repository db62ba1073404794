"""The prediction made by running the real model without memory: see ``docs/dryrun.md``.

>>> from vramscope.profiler.dryrun import dry_run
"""

from .result import DryRun
from .run import dry_run

__all__ = ["DryRun", "dry_run"]
