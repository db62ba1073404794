"""The demo as a newcomer sees it: a page in a browser that fills while the model trains."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = Path("/usr/bin/chromium")
REQUIRED = os.environ.get("VRAMSCOPE_REQUIRE_BROWSER") == "1"
PATIENCE_S = 120

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM.exists() and not REQUIRED,
        reason=f"no {CHROMIUM}: install Debian's chromium to run the browser tests",
    ),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {PATIENCE_S} s: {what}")


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except (urllib.error.URLError, TimeoutError):
        return False
    return True


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """``vramscope demo`` on an empty store, in a process group of its own, and its address."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("vramscope")), "demo", "--port", str(port)]
    environment = {**os.environ, "VRAMSCOPE_DB": str(tmp_path / "demo.db"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, cwd=tmp_path, start_new_session=True)
    yield process, f"http://127.0.0.1:{port}"
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def members(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = status.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(process_group) == group and state != "Z":
            found.append(int(status.parent.name))
    return found


def step_shown(page: Any) -> int:
    numbers = re.findall(r"step (\d+)", page.inner_text("body"))
    return max(map(int, numbers), default=0)


def test_a_page_opened_before_the_first_run_fills_and_grows(
    demo: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, address = demo
    wait_for(lambda: answers(address), "the dashboard answers")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page()
        page.goto(address, timeout=PATIENCE_S * 1000)

        first = wait_for(lambda: step_shown(page), "the first run appears without a reload")
        wait_for(lambda: step_shown(page) > first, "its step number grows")
        page.goto(f"{address}/run", timeout=PATIENCE_S * 1000)
        page.wait_for_selector(".vramscope-chart .main-svg", timeout=PATIENCE_S * 1000)
        browser.close()

    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=60)
    assert wait_for(lambda: not members(process.pid), "Ctrl-C stops all that it started")
