"""Every page of the dashboard, through the real writer and reader, without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from vramscope.app import data
from vramscope.storage.records import RunStatus
from vramscope.storage.upgrade import upgrade

PAGES = ["views/runs.py", "views/run.py", "views/compare.py", "views/report.py"]
MAIN = Path(__file__).resolve().parents[1] / "app" / "main.py"

HOSTILE = "![x](http://evil.invalid/x.png) <img src=http://evil.invalid/y.png> :red[z] $a$"


pytestmark = pytest.mark.usefixtures("store")


def opened(view: str, /, **query: str) -> AppTest:
    at = AppTest.from_file(str(MAIN), default_timeout=20)
    for name, value in query.items():
        at.query_params[name] = value
    if view != PAGES[0]:
        at.switch_page(view)
    at.run()
    assert not at.exception, at.exception
    return at


def texts(at: AppTest) -> str:
    """All that the page says in blocks of HTML, as its words without the markup."""
    return re.sub(r"<[^>]+>", " ", " ".join(_html(at)))


def _html(at: AppTest) -> list[str]:
    return [element.proto.body for element in at.get("html")]


def figures(at: AppTest) -> str:
    return " ".join(str(e.proto) for e in at.get("bidi_component"))


@pytest.mark.parametrize("page", PAGES)
def test_page_without_a_store_says_how_to_record_a_first_run(page: str, store: Path) -> None:
    at = opened(page)

    code = [c.value for c in at.code]
    assert "make demo" in code
    assert "vramscope run train.py" in code
    assert any("MemoryProfiler(model, optimizer" in c for c in code)
    assert not store.exists(), "looking must not create a store"


@pytest.mark.parametrize("page", PAGES[:2])
def test_page_of_a_store_without_runs_says_how_to_record_one(page: str, store: Path) -> None:
    store.touch()
    upgrade(store)

    at = opened(page)

    assert "make demo" in [c.value for c in at.code]


@pytest.mark.parametrize("page", PAGES[:2])
def test_page_of_a_foreign_file_says_what_it_is_and_leaves_it(page: str, store: Path) -> None:
    store.write_text("shopping list\n")

    at = opened(page)

    assert at.error
    assert store.read_text() == "shopping list\n"


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param({"steps": 300}, id="cpu"),
        pytest.param({"steps": 1}, id="one step"),
        pytest.param({"steps": 0, "predicts": False}, id="no step"),
        pytest.param({"unknown": True, "predicts": False, "steps": 60}, id="unknown values"),
        pytest.param({"devices": 0, "steps": 0}, id="no device"),
        pytest.param(
            {"kind": "cuda", "devices": 3, "capacity": 2**30, "steps": 60}, id="three GPUs"
        ),
        pytest.param(
            {"status": RunStatus.OUT_OF_MEMORY, "oom_at": 61, "steps": 60}, id="out of memory"
        ),
    ],
)
def test_every_page_opens(page: str, plan: dict[str, Any], recorded: Callable[..., Path]) -> None:
    recorded(**{"steps": 60, **plan})
    recorded(id="00ffee00ffee", steps=5)

    at = opened(page)

    assert not at.error, [e.value for e in at.error]


def test_run_page_shows_peak_headroom_prediction_and_steps(recorded: Callable[..., Path]) -> None:
    recorded(kind="cuda", capacity=4 * 2**30, steps=120)

    shown = texts(opened("views/run.py"))

    assert re.search(r"Peak allocated\s+\d{3}\.\d MiB\s+step \d+ · in forward", shown)
    assert re.search(r"Headroom\s+3\.\d\d GiB\s+8\d\.\d % of 4\.00 GiB free", shown)
    assert re.search(r"Predicted peak\s+\d{3}\.\d MiB\s+\d\.\d % too (high|low)", shown)
    assert re.search(r"Steps\s+120\s+2 micro-steps", shown)


def test_a_cpu_run_shows_words_and_dashes_never_zero(recorded: Callable[..., Path]) -> None:
    recorded(kind="cpu")

    shown = texts(opened("views/run.py"))

    assert re.search(r"Headroom\s+—\s+no capacity known", shown)
    assert "Reserved  " not in shown.split("Allocated", 1)[0]


def test_run_page_marks_what_is_carried_over(recorded: Callable[..., Path]) -> None:
    recorded(kind="cpu")

    at = opened("views/run.py")

    assert any("Between detail steps" in c.value for c in at.caption)


def test_run_in_the_url_is_the_run_shown(recorded: Callable[..., Path]) -> None:
    recorded(name="first")
    recorded(name="second", id="00ffee00ffee")

    at = opened("views/run.py", run="3f2a9c01b7d4")

    assert "first" in texts(at)
    assert at.selectbox(key="pick_run").value == "3f2a9c01b7d4"


def test_choosing_a_run_writes_it_into_the_url(recorded: Callable[..., Path]) -> None:
    recorded(name="first")
    recorded(name="second", id="00ffee00ffee")
    at = opened("views/run.py", run="3f2a9c01b7d4")

    at.selectbox(key="pick_run").set_value("00ffee00ffee").run()

    assert at.query_params["run"] in ("00ffee00ffee", ["00ffee00ffee"])
    assert "second" in texts(at)


@pytest.mark.parametrize("page", ["views/run.py", "views/report.py"])
def test_an_unknown_run_in_the_url_is_named(page: str, recorded: Callable[..., Path]) -> None:
    recorded()

    at = opened(page, run="nosuchrun")

    assert "nosuchrun" in at.error[0].value


def test_books_at_the_end_of_steps_are_a_click_away(recorded: Callable[..., Path]) -> None:
    recorded()
    at = opened("views/run.py")
    before = figures(at)

    at.segmented_control(key="books").set_value("End of each step").run()

    assert not at.exception
    assert figures(at) != before


def test_device_in_the_url_is_the_device_shown(recorded: Callable[..., Path]) -> None:
    recorded(kind="cuda", devices=3, capacity=2**31, steps=60)

    at = opened("views/run.py", device="rank 2 · cuda:2")

    assert at.selectbox(key="device").value == "rank 2 · cuda:2"


def test_runs_are_filtered_by_search_and_status(recorded: Callable[..., Path]) -> None:
    recorded(name="alpha", steps=5)
    recorded(name="beta", id="00ffee00ffee", steps=5, status=RunStatus.FAILED)

    by_name = opened("views/runs.py", search="alp")
    by_status = opened("views/runs.py", status="Failed")

    assert list(by_name.dataframe[0].value["Run"]) == ["alpha"]
    assert list(by_status.dataframe[0].value["Run"]) == ["beta"]


def test_hundreds_of_runs_are_paged(
    recorded: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "RUNS_PER_PAGE", 2)
    for n in range(3):
        recorded(name=f"run {n}", id=f"{n:012x}", steps=1, modules=0)

    first = opened("views/runs.py")
    second = opened("views/runs.py", page="2")

    assert len(first.dataframe[0].value) == 2
    assert len(second.dataframe[0].value) == 1


def test_a_running_run_refreshes_and_settles(run_builders: Any, store: Path) -> None:
    plan_of, record_run, _ = run_builders
    writer = record_run(str(store), plan_of(status=None, steps=20))
    try:
        at = opened("views/run.py")
        assert "Running" in texts(at)
    finally:
        writer.close(RunStatus.COMPLETED)

    at.run()

    assert "Completed" in texts(at)
    assert not at.exception


def test_compare_says_the_verdict_in_one_sentence(recorded: Callable[..., Path]) -> None:
    recorded(name="base")
    recorded(
        name="small",
        id="00ffee00ffee",
        activations=60 * 2**20,
        settings={"micro_batch": 4},
    )

    shown = texts(opened("views/compare.py", a="3f2a9c01b7d4", b="00ffee00ffee"))

    assert re.search(r"small peaks \d+\.\d MiB .* lower than base, mostly in activations", shown)
    assert "micro_batch 8 → 4" in shown
    assert re.search(r"Peak, B − A\s+−\d+\.\d MiB", shown)


def test_compare_of_a_run_with_itself_asks_for_another(recorded: Callable[..., Path]) -> None:
    recorded(steps=5)
    recorded(steps=5, id="00ffee00ffee")

    at = opened("views/compare.py", a="3f2a9c01b7d4", b="3f2a9c01b7d4")

    assert "same run" in at.info[0].value


def test_compare_opens_with_two_different_runs(recorded: Callable[..., Path]) -> None:
    recorded(steps=5)
    recorded(steps=5, id="00ffee00ffee")

    at = opened("views/compare.py", b="3f2a9c01b7d4")

    assert at.selectbox(key="pick_a").value == "00ffee00ffee"
    assert at.selectbox(key="pick_b").value == "3f2a9c01b7d4"


def test_report_links_to_every_format(recorded: Callable[..., Path]) -> None:
    recorded()

    at = opened("views/report.py")

    links = str([e.proto for e in at.get("link_button")])
    for kind in ("html", "csv", "json"):
        assert f"/vramscope/export/{kind}/3f2a9c01b7d4" in links


def test_names_from_a_run_are_text_everywhere(recorded: Callable[..., Path]) -> None:
    recorded(name=HOSTILE, message=HOSTILE, notes=(HOSTILE,), settings={HOSTILE: HOSTILE})
    recorded(name=HOSTILE, id="00ffee00ffee")

    for page in PAGES:
        at = opened(page)
        for body in _html(at):
            assert "<img" not in body
        for element in [*at.markdown, *at.caption, *at.error, *at.info, *at.subheader, *at.title]:
            assert "![" not in element.value.replace(r"\!\[", "")
