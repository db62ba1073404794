"""Storages that are resized in place, as FSDP frees and fills gathered parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def watch_resizes(resized: Callable[[torch.UntypedStorage], None]) -> Callable[[], None]:
    """Hears every resize from Python until the returned function is called.

    Args:
        resized: Called with a storage after it was resized; must not raise.
    """
    kind: Any = torch.UntypedStorage
    original = kind.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        resized(storage)
        return result

    inherited = "resize_" not in vars(kind)
    kind.resize_ = resize_

    def restore() -> None:
        if vars(kind).get("resize_") is not resize_:
            return
        if inherited:
            del kind.resize_
        else:
            kind.resize_ = original

    return restore
