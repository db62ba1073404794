"""The Plan page and what it is made of, without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from vramscope.app.chart_plan import BESIDE, PlannedBars, phase_names, planned_phases
from vramscope.app.plan_blocks import differing, gpu_table, phases_table, plan_cards
from vramscope.app.plan_files import PASTED, read_files
from vramscope.app.plan_link import decode, encode
from vramscope.app.plan_presets import FIRST, PRESETS
from vramscope.app.plan_settings import AS_GIVEN, CHOICES, Choice, Number, model_name, with_preset
from vramscope.app.plans import plan_of
from vramscope.profiler.analytic import (
    BatchShape,
    LoraSpec,
    OptimizerSpec,
    Parallelism,
    Scenario,
    predict,
)
from vramscope.profiler.analytic.gpus import GPUS
from vramscope.storage.records import Phase

MAIN = Path(__file__).resolve().parents[1] / "app" / "main.py"
HOSTILE = "![x](http://evil.invalid/x.png) <img src=http://evil.invalid/y.png> $a$"

SMALL = Scenario(
    architecture=PRESETS["GPT-2, 124 M"],
    weight_dtype="bfloat16",
    batch=BatchShape(micro_batch=4, sequence=512),
)
UNKNOWN = Scenario(
    tensors=SMALL.inventory,
    batch=SMALL.batch,
    activations_unknown="not modelled",
    model_class="Strange",
)
CONFIG: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "torch_dtype": "float32",
}


pytestmark = pytest.mark.usefixtures("store")


def opened(**query: str) -> AppTest:
    at = AppTest.from_file(str(MAIN), default_timeout=60)
    for name, value in query.items():
        at.query_params[name] = value
    at.switch_page("views/plan.py")
    at.run()
    assert not at.exception, at.exception
    return at


def texts(at: AppTest) -> str:
    return re.sub(r"<[^>]+>", " ", " ".join(e.proto.body for e in at.get("html")))


def parameter(at: AppTest, name: str) -> str:
    value = at.query_params[name]
    return value if isinstance(value, str) else value[0]


def shown(at: AppTest, name: str = "a") -> Scenario:
    return decode(parameter(at, name))


def press(at: AppTest, label: str) -> AppTest:
    next(b for b in at.button if b.label == label).click().run()
    assert not at.exception, at.exception
    return at


# -- models -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("GPT-2, 124 M", 124_439_808),
        ("GPT-2 medium, 355 M", 354_823_168),
        ("GPT-2 XL, 1.6 B", 1_557_611_200),
        ("Qwen2.5 0.5 B", 494_032_768),
        ("Llama 3.2 1 B", 1_235_814_400),
        ("Llama 3.2 3 B", 3_212_749_824),
        ("Llama 2 7 B", 6_738_415_616),
        ("Mistral 7 B", 7_241_732_096),
        ("Qwen2.5 7 B", 7_615_616_512),
        ("Llama 3.1 8 B", 8_030_261_248),
        ("Qwen3 8 B", 8_190_735_360),
        ("Llama 2 13 B", 13_015_864_320),
        ("Qwen2.5 32 B", 32_763_876_352),
        ("Llama 3.1 70 B", 70_553_706_496),
    ],
)
def test_a_well_known_model_has_its_published_parameters(name: str, parameters: int) -> None:
    assert Scenario(architecture=PRESETS[name]).inventory.numel == parameters


def test_models_stand_from_the_smallest_to_the_largest() -> None:
    sizes = [Scenario(architecture=a).inventory.numel for a in PRESETS.values()]
    assert sizes == sorted(sizes)
    assert FIRST in PRESETS


# -- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("control", CHOICES, ids=lambda control: control.name)
def test_what_a_control_writes_it_reads(control: Choice | Number) -> None:
    many = SMALL.replace(parallelism=Parallelism(strategy="ddp", world_size=4))
    if isinstance(control, Number):
        assert control.read(control.write(many, 3)) == 3
        return
    for word in control.words(many):
        changed = control.write(many, word)
        assert control.read(changed) == word
        predict(changed)


def test_settings_without_a_word_are_as_given() -> None:
    odd = SMALL.replace(
        autocast="float16",
        optimizers=(OptimizerSpec(name="sgd", momentum=0.5),),
        lora=LoraSpec(rank=3),
    )
    words = {c.name: c.read(odd) for c in CHOICES}
    assert words["precision"] == AS_GIVEN
    assert words["optimizer"] == f"sgd, {AS_GIVEN}"
    assert words["trained"] == f"LoRA 3, {AS_GIVEN}"


def test_another_model_keeps_how_it_is_trained() -> None:
    changed = with_preset(SMALL.replace(checkpointing="full"), "Qwen2.5 0.5 B")
    assert changed.checkpointing == "full"
    assert changed.batch == SMALL.batch
    assert model_name(changed) == "Qwen2.5 0.5 B"
    assert model_name(UNKNOWN) == "Strange, 124 M parameters"


def test_tensors_are_cast_like_a_model() -> None:
    precision = next(c for c in CHOICES if c.name == "precision")
    assert isinstance(precision, Choice)
    single = precision.write(UNKNOWN, "fp32")
    assert predict(single).peak.parameters == 2 * (predict(UNKNOWN).peak.parameters or 0)
    assert "NF4" not in precision.words(UNKNOWN)


def test_more_devices_have_a_strategy_and_one_has_none() -> None:
    devices = next(c for c in CHOICES if c.name == "devices")
    assert isinstance(devices, Number)
    eight = devices.write(SMALL, 8)
    assert eight.parallelism.strategy == "ddp"
    staged = eight.replace(
        parallelism=replace(eight.parallelism, strategy="zero", zero_stage=3, rank=7)
    )
    assert devices.write(staged, 4).parallelism.zero_stage == 3
    assert devices.write(staged, 1).parallelism == Parallelism()


# -- address and files ------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", [SMALL, UNKNOWN], ids=["architecture", "tensors"])
def test_a_scenario_survives_the_address(scenario: Scenario) -> None:
    text = encode(scenario)
    assert re.fullmatch(r"[\w-]+", text)
    assert decode(text) == scenario


@pytest.mark.parametrize("text", ["", "x", "????", encode(SMALL)[:-9], encode(SMALL) + "AAAA"])
def test_a_broken_address_is_said_to_be_broken(text: str) -> None:
    if text.endswith("AAAA"):
        assert decode(text) == SMALL  # what follows is no part of it
        return
    with pytest.raises(ValueError, match="not whole"):
        decode(text)


def test_a_config_keeps_how_it_is_trained() -> None:
    present = SMALL.replace(checkpointing="full", accumulation=4)
    read = read_files({"config.json": json.dumps(CONFIG).encode()}, present)
    assert read.architecture is not None
    assert read.architecture.hidden == 256
    assert (read.weight_dtype, read.checkpointing, read.accumulation) == ("float32", "full", 4)
    assert read.batch == present.batch


def test_a_whole_scenario_is_taken_as_it_is() -> None:
    given = Scenario(architecture=SMALL.architecture, checkpointing="full")
    text = json.dumps(given.to_mapping()).encode()
    read = read_files({PASTED: text}, SMALL.replace(accumulation=4))
    assert read == given.replace(batch=SMALL.batch)


def test_a_launchers_file_stands_beside_a_config() -> None:
    files = {
        "config.json": json.dumps(CONFIG).encode(),
        "ds.json": json.dumps({"zero_optimization": {"stage": 2}}).encode(),
    }
    assert read_files(files, SMALL).parallelism.zero_stage == 2


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ("no file",)),
        ({"s.yaml": b"architecture: {family: llama}\n"}, ("s.yaml", "layers", "missing")),
        ({"../../x.json": b"{"}, ("x.json", "not valid")),
        ({PASTED: b"optimizers: [{name: adamx}]"}, (PASTED,)),
        ({"big.json": b" " * (2**22 + 1)}, ("big.json", "4 MiB")),
        ({"a.json": b"\xff\xfe"}, ("a.json", "cannot be read")),
    ],
)
def test_a_bad_file_is_named_without_folders(
    files: dict[str, bytes], words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        read_files(files, SMALL)
    message = str(raised.value)
    for word in words:
        assert word in message
    assert "/tmp" not in message


# -- figure and blocks ------------------------------------------------------------------------


def bars_of(scenario: Scenario, name: str = "A", beside: int | None = 2**30) -> PlannedBars:
    phases = predict(scenario).phases
    names = phase_names(phases, generates=False)
    books = {word: phases[phase] for phase, word in names.items()}
    return PlannedBars(name=name, phases=books, peak="backward", beside=beside)


def test_bars_add_up_to_what_is_allocated() -> None:
    bars = bars_of(SMALL)
    figure = planned_phases([bars], None)
    classes = [t for t in figure["data"] if t["name"] != BESIDE]
    for place, use in enumerate(bars.phases.values()):
        assert use.allocated is not None
        drawn = sum(t["y"][place] for t in classes)
        assert drawn == pytest.approx(use.allocated / 2**30, rel=1e-6)
    assert all(t["marker"]["pattern"]["shape"] == "/" for t in classes)


def test_two_scenarios_share_the_axes() -> None:
    both = [bars_of(SMALL), bars_of(SMALL.replace(checkpointing="full"), "<b>B</b>")]
    figure = planned_phases(both, 2**31)
    assert {len(t["x"]) for t in figure["data"]} == {2 * len(both[0].phases)}
    words = " ".join(a["text"] for a in figure["layout"]["annotations"])
    assert "&lt;b&gt;B&lt;/b&gt;" in words
    assert "capacity 2.00 GiB" in words


def test_a_far_capacity_is_named_and_not_drawn() -> None:
    figure = planned_phases([bars_of(SMALL)], 2**40)
    assert not figure["layout"]["shapes"]
    assert any("beyond the axis" in a["text"] for a in figure["layout"]["annotations"])


def test_unknown_totals_are_at_least() -> None:
    figure = planned_phases([bars_of(UNKNOWN, beside=None)], None)
    assert any(a["text"].startswith("≥") for a in figure["layout"]["annotations"])
    assert not any(t["name"] == BESIDE for t in figure["data"])


def test_a_context_that_would_hide_the_tensors_is_not_drawn() -> None:
    figure = planned_phases([bars_of(SMALL, beside=2**40)], None)
    assert not any(t["name"] == BESIDE for t in figure["data"])


def test_generating_has_other_phases() -> None:
    phases = predict(SMALL).phases
    assert list(phase_names(phases, generates=True)) == [Phase.FORWARD, Phase.IDLE]


def test_unknown_is_a_dash_in_the_tables() -> None:
    plan = plan_of(UNKNOWN, GPUS[0])
    values = [card.value for card in plan_cards(plan)]
    assert values[0] == "124.4 M"
    assert values[1].startswith("≥")
    assert values.count("—") == 4
    bars = bars_of(UNKNOWN)
    assert "Activations" in phases_table(bars.phases)
    assert "≥" in gpu_table(plan.fits, "")


def test_two_models_differ_in_one_setting() -> None:
    other = with_preset(SMALL, "Llama 3.1 8 B").replace(checkpointing="full")
    assert differing(SMALL, other) == {
        "model": ("GPT-2, 124 M", "Llama 3.1 8 B"),
        "checkpointing": ("none", "full"),
    }
    assert differing(SMALL, SMALL) == {}


# -- page -------------------------------------------------------------------------------------


def test_the_page_opens_without_a_store_and_creates_none(store: Path) -> None:
    at = opened()
    words = texts(at)
    assert re.search(r"Predicted peak\s+\d+\.\d+ GiB", words)
    assert "Fits on H100 80 GB" in words
    assert "does not fit" in words
    assert at.selectbox(key="plan_a_model").value == FIRST
    assert not store.exists()


def test_a_control_changes_scenario_and_address() -> None:
    at = opened(a=encode(SMALL))
    before = texts(at)
    at.number_input(key="plan_a_micro_batch").set_value(16).run()
    batch = shown(at).batch
    assert batch is not None
    assert batch.micro_batch == 16
    assert texts(at) != before
    at.selectbox(key="plan_a_checkpointing").set_value("full").run()
    assert shown(at).checkpointing == "full"
    assert not at.exception


def test_an_address_shows_what_was_sent() -> None:
    sent = SMALL.replace(checkpointing="full", accumulation=8)
    at = opened(a=encode(sent), gpu="T4 16 GB")
    assert at.selectbox(key="plan_a_checkpointing").value == "full"
    assert at.number_input(key="plan_a_accumulation").value == 8
    assert "Fits on T4 16 GB" in texts(at)
    assert shown(at) == sent


def test_a_broken_address_is_named_and_the_page_stands() -> None:
    at = opened(a="nonsense")
    assert "not whole" in at.error[0].value
    assert "Predicted peak" in texts(at)


def test_a_change_is_applied_by_its_button() -> None:
    at = opened(a=encode(SMALL))
    press(at, "Apply")
    assert shown(at) != SMALL
    assert (predict(shown(at)).peak_high or 0) < (predict(SMALL).peak_high or 0)


def test_two_scenarios_side_by_side() -> None:
    at = press(opened(a=encode(SMALL)), "Add a second")
    assert shown(at, "b") == SMALL
    at.selectbox(key="plan_b_optimizer").set_value("adamw8bit").run()
    assert not at.exception
    assert shown(at, "a") == SMALL
    words = texts(at)
    assert re.search(r"B peaks [\d.]+ [MG]iB .*lower than A", words)
    assert "optimizers.name" in words
    press(at, "Remove B")
    assert "b" not in at.query_params


def test_controls_of_a_can_be_shown_beside_b() -> None:
    at = opened(a=encode(SMALL), b=encode(SMALL.replace(accumulation=2)))
    assert at.number_input(key="plan_b_accumulation").value == 2
    at.segmented_control(key="plan_edit").set_value("A").run()
    assert at.number_input(key="plan_a_accumulation").value == 1


def test_a_setting_that_cannot_be_changes_nothing() -> None:
    at = opened(a=encode(UNKNOWN))
    at.selectbox(key="plan_a_trained").set_value("LoRA 8, queries and values").run()
    assert "adapters" in at.error[0].value
    assert shown(at) == UNKNOWN
    assert at.selectbox(key="plan_a_trained").value == "the whole model"


def test_unknown_activations_are_said_and_hostile_names_are_text() -> None:
    at = opened(a=encode(UNKNOWN.replace(model_class=HOSTILE, activations_unknown=HOSTILE)))
    assert "Not predicted: activations" in at.warning[0].value.replace("\\", "")
    for element in [*at.markdown, *at.caption, *at.warning, *at.error]:
        assert "![" not in element.value.replace(r"\!\[", "")
    assert not any("<img" in e.proto.body for e in at.get("html"))


def test_a_pasted_file_is_used_or_refused_and_kept() -> None:
    at = opened(a=encode(SMALL))
    at.text_area[0].set_value("architecture: {family: llama}\n").run()
    press(at, "Use")
    assert "pasted" in at.error[0].value
    assert shown(at) == SMALL
    assert at.text_area[0].value
    at.text_area[0].set_value(json.dumps(CONFIG)).run()
    press(at, "Use")
    assert not at.error
    assert model_name(shown(at)).endswith("M parameters")
    assert at.text_area[0].value == ""


def test_a_run_is_planned_from(recorded: Callable[..., Path]) -> None:
    recorded(steps=2, id="3f2a9c01b7d4")
    at = opened(run="3f2a9c01b7d4")
    assert "cannot be planned from" in at.error[0].value  # its scenario is no whole one
    assert "run" not in at.query_params


def test_a_runs_own_scenario_is_taken(
    recorded: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vramscope.app import data

    recorded(steps=2, id="3f2a9c01b7d4")
    found = data.fullest
    stored = SMALL.replace(device="cpu").to_mapping()

    def with_scenario(*arguments: Any) -> data.DeviceView | None:
        view = found(*arguments)
        assert view is not None
        assert view.analytic is not None
        return replace(view, analytic=replace(view.analytic, scenario=stored))

    monkeypatch.setattr(data, "fullest", with_scenario)
    assert shown(opened(run="3f2a9c01b7d4")) == SMALL


def test_the_run_page_links_to_the_plan(recorded: Callable[..., Path]) -> None:
    recorded(steps=2)
    at = AppTest.from_file(str(MAIN), default_timeout=30)
    at.switch_page("views/run.py")
    at.run()
    links = [str(e.proto) for e in at.get("page_link")]
    assert any("Plan from it" in link for link in links)
