from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from vramscope.app.overview import modules_in_all_dtypes
from vramscope.app.reports import html_report
from vramscope.storage.reader import RunReader
from vramscope.storage.records import ModuleRecord, RunStatus

RUN = "3f2a9c01b7d4"
HOSTILE = "</script><script>alert(1)</script><img src=https://evil.test/x.png onerror=alert(1)>"


def report(store: Path, run_id: str = RUN) -> str:
    with RunReader(store) as reader:
        return html_report(reader, run_id)


def body_of(page: str) -> str:
    """The page without the packed library and the figures."""
    return page.split('<script type="application/json"')[0]


def figures_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'id="figures">(.*?)</script>', page, re.DOTALL)
    figures: dict[str, Any] = json.loads(text)
    return figures


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


PLANS: dict[str, dict[str, Any]] = {
    "CPU": {"notes": ("warm-up is over",)},
    "GPUs": {"kind": "cuda", "devices": 3, "capacity": 80 * 2**30, "steps": 20, "oom_at": 9},
    "unknown": {"unknown": True, "predicts": False, "steps": 3},
    "no step": {"steps": 0, "predicts": False},
    "no step, predicted": {"steps": 0},
    "long": {"steps": 1500, "detail_every": 500},
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_every_figure_has_its_place_in_light_and_dark(
    plan: dict[str, Any], recorded: Callable[..., Path]
) -> None:
    page = report(recorded(**plan))
    places = [
        attributes["id"]
        for tag, attributes in Elements(page).found
        if tag == "div" and attributes.get("class") == "chart"
    ]
    figures = figures_of(page)
    assert sorted(figures) == sorted(str(place) for place in places)
    assert all(set(figure) == {"light", "dark"} for figure in figures.values())
    assert "None" not in body_of(page)
    assert "nan" not in body_of(page)


def test_a_module_is_shown_once_with_its_tensors_of_every_dtype() -> None:
    def held(module: str, dtype: str, activations: int) -> ModuleRecord:
        return ModuleRecord(device=1, step=2, module=module, dtype=dtype, activations=activations)

    parts = [held("a", "bfloat16", 5), held("b", "bfloat16", 4), held("b", "float32", 3)]
    assert modules_in_all_dtypes(parts) == (held("b", "", 7), held("a", "", 5))
    assert modules_in_all_dtypes([]) == ()


def test_the_report_says_what_the_run_says(recorded: Callable[..., Path]) -> None:
    body = body_of(report(recorded(notes=("warm-up is over",), message="all is well")))
    for words in ("gpt-small adamw fp32", "Completed", RUN, "all is well", "52.00 MiB"):
        assert words in body
    for words in ("Measured beside predicted", "At the peak, step 211", "AdamW", "warm-up is over"):
        assert words in body
    for words in (
        "Kingma and Ba 2015",
        "fragmentation inside the allocator",
        "transformer.h.0.mlp",
    ):
        assert words in body


def test_a_detail_step_is_explained(recorded: Callable[..., Path]) -> None:
    page = report(recorded(steps=60))
    body = body_of(page)
    assert {"timeline-1", "phases-1"} <= set(figures_of(page))
    assert "The peak of step 3, " in body or "The peak of step 50, " in body
    assert "was reached in forward, in transformer.h.0.mlp" in body
    assert "8×256×2048" in body


def test_a_store_of_before_has_no_timeline(recorded: Callable[..., Path]) -> None:
    page = report(recorded(steps=60, timeline=False))
    assert "timeline-1" not in figures_of(page)
    assert "largest groups" not in body_of(page)
    assert "phases-1" in figures_of(page)


def test_out_of_memory_stands_at_the_top(recorded: Callable[..., Path]) -> None:
    body = body_of(
        report(
            recorded(
                steps=9,
                oom_at=9,
                status=RunStatus.OUT_OF_MEMORY,
                message="MemoryError: none in /home/ada",
                oom_message="MemoryError: none in /home/ada\nPredicted to take less: a nap",
            )
        )
    )
    head = body.split('class="vs-cards"')[0]
    assert "Ran out of memory at step 9, in forward" in head
    assert '<p class="vs-way">Predicted to take less: a nap</p>' in head
    assert head.count("MemoryError: none in ~") == 1


def test_nothing_outside_the_file_is_named(recorded: Callable[..., Path]) -> None:
    page = report(recorded(steps=5))
    for _, attributes in Elements(page).found:
        assert not {"src", "href", "action"} & set(attributes) or attributes == {
            "rel": "icon",
            "href": "data:,",
        }
    assert not re.search(r"url\(|@import|https?://", body_of(page))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "connect-src" not in policy


def test_a_runs_words_are_text(recorded: Callable[..., Path]) -> None:
    plain = report(recorded(steps=3, notes=("note",), message="message"))
    store = recorded(
        id="aa11bb22cc33",
        name=HOSTILE,
        message=HOSTILE,
        steps=3,
        notes=(HOSTILE,),
        settings={"note": HOSTILE, HOSTILE: 1},
        status=RunStatus.FAILED,
    )
    page = report(store, "aa11bb22cc33")
    assert "<script>alert" not in page
    assert "<img" not in page
    tags = [tag for tag, _ in Elements(plain).found]
    hostile = [tag for tag, _ in Elements(page).found]
    assert hostile.count("script") == tags.count("script")
    assert "img" not in hostile


def test_home_folders_do_not_leave(recorded: Callable[..., Path]) -> None:
    page = report(
        recorded(
            steps=1,
            message="no /home/ada/x",
            notes=("wrote /home/ada/y",),
            settings={"data": "/home/ada/z"},
        )
    )
    assert "/home/ada" not in page
    for shown in ("no ~/x", "wrote ~/y", "~/z"):
        assert shown in page


def test_many_devices_show_the_fullest_first(recorded: Callable[..., Path]) -> None:
    page = report(recorded(kind="cuda", devices=10, steps=3, capacity=80 * 2**30))
    assert "<h2>rank 9, cuda:9" in page
    assert page.count("<details><summary>rank ") == 7
    assert "2 less full devices are not shown in full" in page
    assert "devices" in figures_of(page)


def test_a_long_run_is_drawn_from_a_rollup(recorded: Callable[..., Path]) -> None:
    page = report(recorded(steps=1500, detail_every=500))
    assert "the fullest of every 8 steps" in page
    assert len(page) < 3_500_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_file_draws_itself_without_a_request(
    scheme: str, browser: Any, recorded: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(report(recorded(name=HOSTILE, steps=60)), encoding="utf-8")
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    requests: list[str] = []
    troubles: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-charts=drawn]", timeout=60_000)
    assert page.locator(".chart .main-svg").count() >= 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    paper = page.evaluate("document.querySelector('.chart')._fullLayout.paper_bgcolor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(16, 20, 28)"}[scheme]
    assert paper == {"light": "#FFFFFF", "dark": "#10141C"}[scheme]
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert troubles == []
    context.close()
