"""Two runs beside each other: a difference is put where it lies, and on nothing else."""

from __future__ import annotations

import re

import pytest
from vramscope.app.blocks import difference_table
from vramscope.app.verdict import verdict
from vramscope.storage.records import MemoryUse

GIB = 2**30
STATE = {"parameters": 2 * GIB, "gradients": 2 * GIB, "optimizer_state": 4 * GIB}


def books(*, unattributed: int = 0, cached: int = 0, **changes: int) -> MemoryUse:
    classes = {**STATE, **changes}
    allocated = sum(classes.values()) + unattributed
    return MemoryUse(
        **classes, unattributed=unattributed, allocated=allocated, reserved=allocated + cached
    )


def differences(a: MemoryUse, b: MemoryUse) -> dict[str, str]:
    """The last column of the table by the name of its line."""
    rows = re.findall(r"<tr.*?</tr>", difference_table(a, b), flags=re.DOTALL)[1:]
    cells = [re.findall(r"<span>(.*?)</span>|<td[^>]*>([^<]*)</td>", row) for row in rows]
    return {row[0][0]: row[-1][1] for row in cells}


FRESH = books(cached=GIB)
RESUMED = books(unattributed=6 * GIB, cached=12 * GIB)
"""As after a checkpoint that is kept alive: the model is the same, and 6 GiB are nobody's."""


def test_a_checkpoint_that_is_kept_after_resuming_is_put_on_no_class() -> None:
    said = verdict("fresh", "resumed", FRESH, RESUMED, {})
    assert said == (
        "resumed peaks 6.00 GiB (75.0 %) higher than fresh, mostly in unattributed (+6.00 GiB); "
        "the allocator of resumed keeps 11.00 GiB more that is free; no recorded setting differs."
    )
    assert differences(FRESH, RESUMED) == {
        "Parameters": "0 B",
        "Gradients": "0 B",
        "Optimizer state": "0 B",
        "Unattributed": "+6.00 GiB",
        "Allocated": "+6.00 GiB",
        "Cached, free": "+11.00 GiB",
        "Reserved": "+17.00 GiB",
    }


@pytest.mark.parametrize(
    ("a", "b", "clause"),
    [
        (books(cached=9 * GIB), books(), "the allocator of b keeps 9.00 GiB less that is free"),
        (books(cached=GIB), books(cached=GIB + 5), None),
        (books(), MemoryUse(allocated=8 * GIB), None),
    ],
    ids=["less", "the same but for little", "unknown"],
)
def test_what_the_allocator_keeps_free_is_said_where_it_differs_by_much(
    a: MemoryUse, b: MemoryUse, clause: str | None
) -> None:
    said = verdict("a", "b", a, b, {})
    assert (clause in said) if clause else "the allocator of" not in said


def test_one_more_copy_of_the_parameters_is_the_optimizers() -> None:
    adam = books(optimizer_state=4 * GIB)
    momentum = books(optimizer_state=2 * GIB)
    said = verdict("momentum", "adam", momentum, adam, {})
    assert "mostly in optimizer state (+2.00 GiB); no recorded" in said
    assert differences(momentum, adam)["Optimizer state"] == "+2.00 GiB"
