from __future__ import annotations

import pytest
from vramscope.app.verdict import differing_settings, verdict
from vramscope.storage.records import MemoryUse

GIB = 2**30


def use(*, optimizer_state: int, activations: int, allocated: int | None) -> MemoryUse:
    return MemoryUse(
        parameters=2 * GIB,
        optimizer_state=optimizer_state,
        activations=activations,
        allocated=allocated,
    )


ADAM = use(optimizer_state=4 * GIB, activations=3 * GIB, allocated=9 * GIB)
SGD = use(optimizer_state=GIB, activations=3 * GIB + GIB // 2, allocated=6 * GIB + GIB // 2)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (
            ADAM,
            SGD,
            "two peaks 2.50 GiB (27.8 %) lower than one, mostly in optimizer state (−3.00 GiB),"
            " against activations (+512.0 MiB); no recorded setting differs.",
        ),
        (
            SGD,
            ADAM,
            "two peaks 2.50 GiB (38.5 %) higher than one, mostly in optimizer state (+3.00 GiB),"
            " against activations (−512.0 MiB); no recorded setting differs.",
        ),
        (ADAM, ADAM, "one and two peak at the same 9.00 GiB; no recorded setting differs."),
        (ADAM, MemoryUse(), "No verdict: the peak of two is unknown."),
        (MemoryUse(), MemoryUse(), "No verdict: the peak of one and of two is unknown."),
    ],
)
def test_the_verdict_names_the_difference_and_its_causes(
    a: MemoryUse, b: MemoryUse, expected: str
) -> None:
    assert verdict("one", "two", a, b, {}) == expected


def test_the_verdict_names_three_settings_and_counts_the_rest() -> None:
    differing = {f"s{i}": (i, i + 1) for i in range(5)}
    assert verdict("one", "two", ADAM, ADAM, differing).endswith(
        "; the settings that differ are s0 0 → 1, s1 1 → 2, s2 2 → 3 and 2 more."
    )


def test_a_setting_only_one_run_has_is_paired_with_unknown() -> None:
    assert differing_settings({"lr": 1, "optimizer": "SGD"}, {"lr": 1, "momentum": 0.9}) == {
        "optimizer": ("SGD", None),
        "momentum": (None, 0.9),
    }


def test_settings_that_hold_no_memory_are_named_last() -> None:
    differing: dict[str, tuple[object, object]] = {
        "optimizer": ("AdamW", "SGD"),
        "lr": (0.001, 0.05),
        "weight_decay": (0.01, 0.0),
        "momentum": (None, 0.9),
        "micro_batch": (4, 2),
    }
    sentence = verdict("a", "b", MemoryUse(allocated=10), MemoryUse(allocated=5), differing)  # type: ignore[arg-type]
    assert "optimizer AdamW → SGD, momentum — → 0.9, micro_batch 4 → 2 and 2 more" in sentence
