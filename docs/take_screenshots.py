"""Take the README's pictures anew: start the demo, wait, and photograph the page of its first run.

    make screenshots

Needs Chromium (Debian's /usr/bin/chromium, or ``--chromium PATH``). Writes docs/images/ and puts
the pictures into the README.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import fill_readme
from playwright.sync_api import Browser, sync_playwright
from vramscope.storage.errors import StorageError
from vramscope.storage.reader import RunReader

WIDTH, HEIGHT = 1440, 1240
STEPS_FIRST = 120
PATIENCE_S = 600
# Streamlit's own sign that it is working.
HIDDEN = '[data-testid="stStatusWidget"] { visibility: hidden; }'
DRAWN = (
    "() => { const all = [...document.querySelectorAll('.vramscope-chart')];"
    " return all.length > 0 && all.every(e => e.querySelector('.main-svg')); }"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_steps(store: Path, wanted: int) -> str:
    """Id of the demo's first run once it has that many steps."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            with RunReader(str(store)) as reader:
                for row in reader.runs().rows:
                    if row.info.name == "demo-adamw" and (row.steps or 0) >= wanted:
                        return row.info.id
        except StorageError:
            pass
        time.sleep(1)
    raise TimeoutError(f"the demo did not reach step {wanted} within {PATIENCE_S} s")


def wait_for_page(address: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
        else:
            return
    raise TimeoutError(f"{address} did not answer within {PATIENCE_S} s")


def photograph(browser: Browser, address: str, scheme: str, target: Path) -> None:
    context = browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": WIDTH, "height": HEIGHT},
        device_scale_factor=1.5,
    )
    page = context.new_page()
    page.goto(address, timeout=120_000)
    page.wait_for_function(DRAWN, timeout=120_000)
    page.wait_for_timeout(2_000)
    page.screenshot(path=str(target), style=HIDDEN)
    context.close()
    print(f"{target}, {target.stat().st_size / 1024:.0f} KiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--steps", type=int, default=STEPS_FIRST, help="of the run in the picture")
    options = parser.parse_args()
    images = fill_readme.LIGHT.parent
    images.mkdir(exist_ok=True)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "demo.db")
        command = [str(Path(sys.executable).with_name("vramscope")), "demo", "--port", str(port)]
        environment = {**os.environ, "VRAMSCOPE_DB": str(store)}
        demo = subprocess.Popen(command, env=environment)
        try:
            run = wait_for_steps(store, options.steps)
            wait_for_page(f"http://127.0.0.1:{port}")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=options.chromium, args=["--no-sandbox"]
                )
                for scheme, target in (("light", fill_readme.LIGHT), ("dark", fill_readme.DARK)):
                    address = f"http://127.0.0.1:{port}/run?run={run}"
                    photograph(browser, address, scheme, target)
                browser.close()
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(timeout=60)
    text = fill_readme.README.read_text(encoding="utf-8")
    fill_readme.README.write_text(fill_readme.filled(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
