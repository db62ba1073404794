"""The figure of what modules keep for backward: every parent is its children and itself."""

from __future__ import annotations

import json

import pytest
from vramscope.app.charts import modules_icicle
from vramscope.storage.records import ModuleRecord

MIB = 2**20


def held(module: str, activations: int, dtype: str = "float32") -> ModuleRecord:
    return ModuleRecord(device=0, step=1, module=module, dtype=dtype, activations=activations)


def boxes(*modules: ModuleRecord) -> dict[str, tuple[str, int]]:
    """Label and the label around it, with the size, of every box."""
    (trace,) = modules_icicle(modules)["data"]
    labels = dict(zip(trace["ids"], trace["labels"], strict=True))
    return {
        place: (labels[place], value)
        for place, value in zip(trace["ids"], trace["values"], strict=True)
    }


def test_a_parent_is_what_is_inside_it_and_what_it_keeps_itself() -> None:
    (trace,) = modules_icicle(
        [held("a", 5), held("a.x", 3), held("a.y", 2), held("b", 4), held("", 1)]
    )["data"]

    inside: dict[str, int] = {}
    for parent, value in zip(trace["parents"], trace["values"], strict=True):
        inside[parent] = inside.get(parent, 0) + value
    values = dict(zip(trace["ids"], trace["values"], strict=True))

    assert trace["branchvalues"] == "total"
    assert inside == {"": 15, "model": 15, "model.a": 10}
    assert values["model.a|own"] == 5
    assert values["model|own"] == 1


def test_labels_are_last_components_and_numbers_keep_their_list() -> None:
    found = boxes(held("h.0.mlp", 2), held("h.0.attn", 2), held("h.1.mlp", 2), held("ln", 2))

    assert found["model.h.0"] == ("h.0", 4)
    assert found["model.h.0.attn"] == ("attn", 2)
    assert found["model.h.1.mlp"] == ("h.1.mlp", 2), "a module that only wraps one is left out"
    assert "model.h.1" not in found


def test_a_chain_of_wrappers_is_one_box() -> None:
    found = boxes(held("base.model.layers.0", 2), held("base.model.layers.1", 2))

    assert found == {
        "model": ("model", 4),
        "model.base.model.layers": ("base.model.layers", 4),
        "model.base.model.layers.0": ("layers.0", 2),
        "model.base.model.layers.1": ("layers.1", 2),
    }


def test_layers_stand_in_their_order_and_others_by_size() -> None:
    (trace,) = modules_icicle(
        [held(f"h.{n}", n + 1) for n in (10, 2, 0)] + [held("small", 1), held("large", 99)]
    )["data"]

    assert trace["labels"] == ["model", "large", "h", "h.0", "h.2", "h.10", "small"]


def test_hovering_says_path_bytes_and_dtypes() -> None:
    (trace,) = modules_icicle(
        [held("a.<x>", 3 * MIB, "bfloat16"), held("a.<x>", MIB), held("a.y", 4 * MIB)]
    )["data"]

    hovers = dict(zip(trace["ids"], trace["customdata"], strict=True))
    assert hovers["model.a.<x>"] == (
        "<b>a.&lt;x&gt;</b><br>4.00 MiB · 50.0 % · 4,194,304 B<br>"
        "bfloat16 3.00 MiB · float32 1.00 MiB"
    )
    assert "float32 5.00 MiB" in hovers["model"]


def test_more_is_drawn_stronger() -> None:
    (trace,) = modules_icicle([held("a", 90), held("b", 10)])["data"]

    alphas = [float(c.rsplit(",", 1)[1].rstrip(")")) for c in trace["marker"]["colors"]]
    assert alphas[0] > alphas[1] > alphas[2] > 0


def test_tiny_modules_are_drawn_together() -> None:
    found = boxes(held("large", 10_000_000), held("b", 3), held("c", 4))

    assert found["model|small"] == ("2 smaller", 7)
    assert "model.b" not in found


def test_a_large_model_opens_with_the_levels_that_can_be_read() -> None:
    few = [held(f"h.{n}.{part}", MIB) for n in range(3) for part in ("a", "b")]
    many = [held(f"h.{n}.{part}.x", MIB) for n in range(32) for part in "abcdefgh"]
    many += [held(f"h.{n}.{part}.y", MIB) for n in range(32) for part in "abcdefgh"]

    assert modules_icicle(few)["data"][0]["maxdepth"] == 4
    assert modules_icicle([*many, held("ln", 1)])["data"][0]["maxdepth"] == 3
    assert modules_icicle(many)["height"] <= 720


@pytest.mark.parametrize("modules", [[], [held("a", 0)]])
def test_nothing_kept_says_so(modules: list[ModuleRecord]) -> None:
    figure = modules_icicle(modules)

    assert figure["data"] == []
    assert "No module kept anything" in figure["layout"]["annotations"][0]["text"]


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_plain_json(dark: bool) -> None:
    figure = modules_icicle([held("a.b", 3), held("", 3)], dark=dark)

    assert json.loads(json.dumps(figure, allow_nan=False))["data"]
