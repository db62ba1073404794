"""Where libraries treat fake tensors otherwise than real ones."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def libraries_see_real_tensors() -> Iterator[None]:
    """Inside, transformers does not take a fake tensor for a compiler's trace.

    In a trace it always writes attention's mask out, and repeats keys and values of grouped
    queries, since it must not look at numbers; a real run does neither where no token is padding.
    """
    module = sys.modules.get("transformers.utils.import_utils")
    known = getattr(module, "is_fake_tensor", None)
    if module is None or known is None:
        yield
        return
    module.is_fake_tensor = lambda tensor: False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.is_fake_tensor = known  # type: ignore[attr-defined]
