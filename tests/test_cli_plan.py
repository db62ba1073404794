"""``vramscope plan``: the same files and options as ``predict``, and what fits where."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from vramscope.app.cli.gpu_option import gpu_of
from vramscope.app.cli.plan import largest_words, plan_command
from vramscope.app.cli.predict import predict_command
from vramscope.app.cli.scenario_flags import ScenarioFlags
from vramscope.app.plans import Largest
from vramscope.profiler.analytic.gpus import GPUS

CONFIG: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
BATCH = ("--micro-batch", 4, "--sequence", 1024)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_every_option_of_a_scenario_is_an_option_of_both() -> None:
    plan = inspect.signature(plan_command).parameters
    predict = inspect.signature(predict_command, eval_str=True).parameters
    for name in (f.name for f in fields(ScenarioFlags)):
        assert plan[name].annotation == predict[name].annotation, name
    assert {"files", "model"} < set(plan)
    assert "terms" not in plan


def test_tables_of_phases_gpus_and_changes(config: Path, vramscope: Callable[..., Any]) -> None:
    shown = vramscope("plan", config, *BATCH, "--gpu", "T4")
    assert shown.code == 0
    assert "Optimizer state" in shown.out
    lines = {line.split("  ")[0]: line for line in shown.out.splitlines()}
    assert lines["T4 16 GB ←"].endswith(("tight", "does not fit"))
    assert lines["B200 192 GB"].endswith("  fits")
    assert "Largest micro-batch: " in shown.out
    assert "8-bit optimizer state" in shown.out
    assert "precision of the moments" in shown.out


def test_json_has_bytes_and_verdicts(config: Path, vramscope: Callable[..., Any]) -> None:
    document = json.loads(vramscope("plan", config, *BATCH, "--gpu", "24GiB", "--json").out)
    assert document["gpu"]["total_bytes"] == 24 * 2**30
    assert [g["gpu"]["name"] for g in document["gpus"]] == [g.name for g in GPUS]
    peak = document["prediction"]["peak_high"]
    for each in document["gpus"]:
        assert each["needed_low"] < each["needed_bytes"] < each["needed_high"]
        assert each["needed_bytes"] > peak
    assert {each["verdict"] for each in document["gpus"]} >= {"yes", "no"}
    saved = [change["saved_bytes"] for change in document["changes"]]
    assert saved == sorted(saved, reverse=True)
    assert document["changes"][0]["peak_bytes"] == peak - saved[0]
    largest = document["largest"]["micro_batch"]
    assert 0 < largest["surely"] <= largest["at_most"]


def test_the_way_to_fit_ends_where_it_fits(config: Path, vramscope: Callable[..., Any]) -> None:
    document = json.loads(vramscope("plan", config, *BATCH, "--gpu", "T4", "--json").out)
    way = document["way_to_fit"]
    assert document["fit"]["verdict"] != "yes"
    assert way["fits"] is True
    assert way["steps"][-1]["peak_bytes"] == way["peak_bytes"] < document["gpu"]["total_bytes"]


def test_without_a_gpu_the_smallest_that_fits_is_meant(
    config: Path, vramscope: Callable[..., Any]
) -> None:
    document = json.loads(vramscope("plan", config, *BATCH, "--json").out)
    assert document["gpu"]["name"] == document["fits_from"]
    assert document["fit"]["verdict"] == "yes"
    assert document["way_to_fit"]["steps"] == []


def test_unknown_activations_are_dashes_and_null(
    vramscope: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    shown = vramscope("plan", path, "--micro-batch", 2, "--sequence", 128, "--gpu", "T4")
    assert shown.code == 0
    assert "not known" in shown.out
    document = json.loads(vramscope("plan", path, "--gpu", "T4", "--json").out)
    assert document["fit"]["verdict"] is None
    assert document["fit"]["needed_bytes"] is None
    assert document["way_to_fit"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--gpu", "a100"), 2, ("A100 40 GB", "A100 80 GB")),
        (("--gpu", "Voodoo 2"), 2, ("Voodoo", "T4 16 GB", "24GiB")),
        (("--device", "cpu"), 11, ("device", "cuda")),
        (("--optimizer", "adamax"), 11, ("adamax", "adamw8bit")),
    ],
)
def test_a_wrong_value_names_what_is_allowed(
    arguments: tuple[str, ...],
    code: int,
    words: tuple[str, ...],
    config: Path,
    vramscope: Callable[..., Any],
) -> None:
    shown = vramscope("plan", config, *arguments)
    assert shown.code == code
    said = " ".join(shown.err.replace("│", " ").split())
    for word in words:
        assert word in said
    assert "Traceback" not in shown.err


def test_a_plan_needs_a_file(vramscope: Callable[..., Any]) -> None:
    assert vramscope("plan").code == 2


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("24GiB", 24 * 2**30),
        ("80 GB", 80 * 10**9),
        ("25769803776", 25769803776),
        ("1.5GiB", 3 * 2**29),
        ("512mb", 512 * 10**6),
    ],
)
def test_a_size_stands_for_a_gpu(text: str, total: int) -> None:
    assert gpu_of(text).total_bytes == total


@pytest.mark.parametrize(
    ("text", "name"), [("t4", "T4 16 GB"), ("H100", "H100 80 GB"), ("4090", "RTX 4090 24 GB")]
)
def test_a_part_of_a_name_is_enough(text: str, name: str) -> None:
    assert gpu_of(text).name == name


def test_every_gpu_is_found_by_its_name() -> None:
    for gpu in GPUS:
        assert gpu_of(gpu.name) == gpu


def test_no_gpu_is_named() -> None:
    with pytest.raises(typer.BadParameter, match="no GPU"):
        gpu_of("")


@pytest.mark.parametrize(
    ("surely", "at_most", "words"),
    [
        (None, None, "not known"),
        (0, 0, "not even 1 fits"),
        (0, 3, "none fits for sure, 3 at most"),
        (4, 4, "4 fits"),
        (4, 6, "4 fits for sure, 6 at most"),
    ],
)
def test_how_large_in_words(surely: int | None, at_most: int | None, words: str) -> None:
    assert largest_words(Largest(surely=surely, at_most=at_most)) == words
