"""The dashboard in a real Chromium: what no test without a browser can see."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from vramscope.app.serve import command
from vramscope.storage.records import RunStatus

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = Path("/usr/bin/chromium")
REQUIRED = os.environ.get("VRAMSCOPE_REQUIRE_BROWSER") == "1"
DRAWN = (
    "() => { const all = [...document.querySelectorAll('.vramscope-chart')];"
    " return all.length > 0 && all.every(e => e.querySelector('.main-svg')); }"
)
CHART = ".vramscope-chart >> nth=0"
HOSTILE = "![x](http://evil.invalid/x.png) <img src=http://evil.invalid/y.png> <b>bold</b>"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM.exists() and not REQUIRED,
        reason=f"no {CHROMIUM}: install Debian's chromium to run the browser tests",
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser") / "runs.db"


@pytest.fixture(scope="module")
def site(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server started as `vramscope ui` starts it."""
    port = free_port()
    arguments, environment = command(str(store), port)
    folder = tmp_path_factory.mktemp("elsewhere")
    log = (folder / "server.log").open("w")
    server = subprocess.Popen(arguments, env=environment, cwd=folder, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: reachable(address) or server.poll() is not None)
        assert server.poll() is None, (folder / "server.log").read_text()
        yield address
    finally:
        server.terminate()
        server.wait(timeout=10)
        log.close()


def reachable(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/_stcore/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_for(condition: Callable[[], object], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def filled(store: Path, run_builders: Any) -> None:
    plan_of, record_run, _ = run_builders
    record_run(str(store), plan_of(id="aaaa00000001", name="first run"))
    record_run(
        str(store),
        plan_of(
            id="aaaa00000002", name="second run", activations=70 * 2**20, settings={"batch": 4}
        ),
    )
    record_run(
        str(store),
        plan_of(
            id="aaaa00000003",
            name=HOSTILE,
            kind="cuda",
            devices=2,
            capacity=2**30,
            message=HOSTILE,
            notes=(HOSTILE,),
            settings={HOSTILE: HOSTILE},
            status=RunStatus.FAILED,
        ),
    )


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    """One cache for all tests: Streamlit's own files are several megabytes."""
    shared = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    yield shared
    shared.close()


@pytest.fixture
def page(context: Any) -> Iterator[Any]:
    """A page that collects errors and requests that leave this machine."""
    opened = context.new_page()
    opened.problems = []
    opened.foreign = []
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on("console", lambda message: _console(opened, message))
    opened.on("request", lambda request: _request(opened, request.url))
    yield opened
    opened.close()


def _console(page: Any, message: Any) -> None:
    # Streamlit looks for its health check below a deep link first, then at the root.
    if message.type == "error" and "404" not in message.text:
        page.problems.append(message.text)


def _request(page: Any, url: str) -> None:
    if not re.match(r"(http|ws)://127\.0\.0\.1:|data:|blob:", url):
        page.foreign.append(url)


def drawn(page: Any) -> None:
    page.wait_for_function(DRAWN, timeout=30_000)


def steps_in_view(page: Any) -> list[float]:
    found: list[float] = page.eval_on_selector(CHART, "e => [...e._fullLayout.xaxis.range]")
    return found


def zoom(page: Any, left: float, right: float) -> None:
    box = page.locator(f"{CHART} >> .nsewdrag >> nth=0").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * left, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * right, y, steps=6)
    page.mouse.up()


def test_an_empty_store_says_how_to_begin(page: Any, site: str, store: Path) -> None:
    assert not store.exists(), "this test runs first"
    page.goto(site)

    page.get_by_text("No run recorded yet").wait_for(timeout=30_000)
    page.get_by_text("make demo").wait_for(timeout=30_000)

    assert page.foreign == []
    assert page.problems == []


def test_clicking_a_name_opens_the_run(page: Any, site: str, filled: None) -> None:
    page.goto(site)
    table = page.get_by_test_id("stDataFrame")
    table.wait_for(timeout=30_000)
    page.wait_for_timeout(500)
    box = table.bounding_box()

    page.mouse.click(box["x"] + 120, box["y"] + 35 + 17)
    page.wait_for_url(re.compile("/run"), timeout=15_000)
    drawn(page)

    assert "run=aaaa0000000" in page.url
    assert page.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_run_page_draws_every_chart(page: Any, site: str, filled: None, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{site}/run?run=aaaa00000001")
    drawn(page)

    names = page.eval_on_selector(CHART, "e => e.data.map(t => t.name)")
    background = page.eval_on_selector(CHART, "e => e._fullLayout.paper_bgcolor")
    behind = page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")

    assert page.locator(".vramscope-chart").count() == 5
    assert names[:4] == ["Parameters", "Gradients", "Optimizer state", "Activations"]
    assert _rgb(background) == _rgb(behind), "the chart has the page's background"
    assert page.foreign == []
    assert page.problems == []


def test_switching_the_theme_recolours_an_open_page(page: Any, site: str, filled: None) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(f"{site}/run?run=aaaa00000001")
    drawn(page)

    page.emulate_media(color_scheme="dark")

    page.wait_for_function(
        "() => document.querySelector('.vramscope-chart')._fullLayout.paper_bgcolor === '#10141C'",
        timeout=10_000,
    )
    assert page.problems == []


def _rgb(colour: str) -> tuple[int, ...]:
    if colour.startswith("#"):
        return tuple(int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return tuple(int(float(v)) for v in re.findall(r"[\d.]+", colour)[:3])


def test_the_plan_is_drawn_anew_in_place_when_a_control_moves(page: Any, site: str) -> None:
    page.goto(f"{site}/plan")
    drawn(page)
    page.eval_on_selector(CHART, "e => { e.dataset.mine = '1'; }")
    before = page.url

    page.get_by_role("spinbutton", name="Micro-batch").fill("3")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: url != before, timeout=20_000)
    page.get_by_text("No", exact=True).first.wait_for(timeout=20_000)

    assert page.eval_on_selector(CHART, "e => e.dataset.mine") == "1"
    assert page.foreign == []
    assert page.problems == []


def test_a_narrow_page_does_not_scroll_sideways(page: Any, site: str, filled: None) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{site}/run?run=aaaa00000001")
    drawn(page)

    too_wide = page.evaluate(
        "document.querySelector('[data-testid=stMain]').scrollWidth - window.innerWidth"
    )

    assert too_wide <= 0


def test_live_ticks_keep_the_chart_its_node_and_its_zoom(
    page: Any, site: str, store: Path, filled: None, run_builders: Any
) -> None:
    plan_of, record_run, add_steps = run_builders
    plan = plan_of(id="bbbb00000001", name="live", status=None, steps=100, modules=0)
    writer = record_run(str(store), plan)
    try:
        page.goto(f"{site}/run?run=bbbb00000001")
        drawn(page)
        page.get_by_text("Running").first.wait_for()
        page.eval_on_selector(CHART, "e => { e.marked = true; window.blank = 0; }")
        zoom(page, 0.25, 0.5)
        page.wait_for_timeout(700)
        before = steps_in_view(page)
        page.evaluate(
            "() => { const watch = () => { const e = document.querySelector('.vramscope-chart');"
            " if (!e || !e.querySelector('.main-svg')) window.blank += 1;"
            " requestAnimationFrame(watch); }; watch(); }"
        )

        more = plan_of(**{**plan_fields(plan), "first_step": 101, "steps": 40})
        add_steps(writer, more, time.time_ns())
        writer.flush()
        page.locator(".vs-card", has_text="Steps").get_by_text("140").wait_for(timeout=15_000)

        assert page.eval_on_selector(CHART, "e => e.marked === true"), "the same DOM node"
        assert steps_in_view(page) == pytest.approx(before)
        assert page.evaluate("window.blank") == 0, "no frame without a chart"
        assert before[1] - before[0] < 60
    finally:
        writer.close(RunStatus.COMPLETED)

    page.get_by_text("Completed").first.wait_for(timeout=15_000)
    assert page.eval_on_selector(CHART, "e => e.marked === true"), "still the same after the end"
    assert page.problems == []


def plan_fields(plan: Any) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def test_zooming_into_a_long_run_brings_single_steps(
    page: Any, site: str, store: Path, filled: None, run_builders: Any
) -> None:
    plan_of, record_run, _ = run_builders
    record_run(
        str(store),
        plan_of(
            id="cccc00000001",
            name="long",
            steps=9000,
            detail_every=4000,
            modules=0,
            started_at=datetime(2026, 1, 1, tzinfo=UTC),
        ),
    )
    page.goto(f"{site}/run?run=cccc00000001")
    drawn(page)
    page.get_by_text("zoom in for all").wait_for()

    zoom(page, 0.4, 0.42)

    page.get_by_text("zoom in for all").wait_for(state="detached", timeout=15_000)
    first, last = steps_in_view(page)
    assert last - first < 400
    page.locator(f"{CHART} >> .nsewdrag >> nth=0").dblclick()
    page.get_by_text("zoom in for all").wait_for(timeout=15_000)
    first, last = steps_in_view(page)
    assert last - first > 8900, "a double click brings the whole run back"


def test_a_link_brings_back_what_was_chosen(page: Any, site: str, filled: None) -> None:
    page.goto(f"{site}/run?run=aaaa00000003")
    drawn(page)
    page.get_by_text("End of each step").click()
    page.wait_for_url(re.compile("books="), timeout=15_000)

    link = page.url
    page.goto("about:blank")
    page.goto(link)
    drawn(page)

    chosen = page.locator('[aria-checked="true"], [data-testid*="Active"]').all_inner_texts()
    assert any("End of each step" in text for text in chosen)
    assert "run=aaaa00000003" in page.url


def test_compare_shares_its_axes(page: Any, site: str, filled: None) -> None:
    page.goto(f"{site}/compare?a=aaaa00000001&b=aaaa00000002")
    drawn(page)

    ranges = page.eval_on_selector(
        CHART,
        "e => ['xaxis','xaxis2','yaxis','yaxis2'].map(a => [...e._fullLayout[a].range])",
    )

    assert ranges[0] == ranges[1]
    assert ranges[2] == ranges[3]
    assert page.get_by_text("second run peaks").is_visible()
    assert page.problems == []


def test_report_downloads_in_every_format(page: Any, site: str, filled: None) -> None:
    page.goto(f"{site}/report?run=aaaa00000001")

    for kind in ("html", "csv", "json"):
        link = page.get_by_role("link", name=f"Download {kind.upper()}")
        link.wait_for(timeout=30_000)
        with page.expect_download(timeout=30_000) as started:
            link.click()
        saved = Path(started.value.path()).read_text(encoding="utf-8")
        assert started.value.suggested_filename == f"vramscope-first-run-aaaa00000001.{kind}"
        assert len(saved) > 1000


def test_hostile_names_stay_text_and_nothing_leaves(page: Any, site: str, filled: None) -> None:
    run = "aaaa00000003"
    for view in ("", f"run?run={run}", f"compare?b=aaaa00000001&a={run}", f"report?run={run}"):
        page.goto(f"{site}/{view}")
        page.get_by_test_id("stHeading").or_(page.locator(".vs-head")).first.wait_for()
        if view.startswith(("run", "compare")):
            drawn(page)
            for tab in page.get_by_role("tab").all():
                tab.click()
        page.wait_for_timeout(300)

        assert page.locator("img[src*=evil], b:text-is('bold')").count() == 0
    assert page.foreign == []
    assert page.problems == []


def test_foreign_host_names_are_refused_and_headers_are_set(site: str) -> None:
    request = urllib.request.Request(site, headers={"Host": "evil.invalid"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=5)
    with urllib.request.urlopen(site, timeout=5) as answer:
        headers = dict(answer.headers)

    assert refused.value.code == 400
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"


def test_plotly_is_served_compressed_and_cacheable(site: str) -> None:
    request = urllib.request.Request(
        f"{site}/vramscope/plotly.min.js", headers={"Accept-Encoding": "gzip"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        body = answer.read()
        headers = {name.lower(): value for name, value in answer.headers.items()}

    assert headers["content-encoding"] == "gzip"
    assert "immutable" in headers["cache-control"]
    assert len(body) < 2_000_000
