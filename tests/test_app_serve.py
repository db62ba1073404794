"""How the dashboard starts, what it refuses, and what its routes answer."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from vramscope.app.blocks import text
from vramscope.app.chart_component import visible_range
from vramscope.app.headers import CONTENT_SECURITY_POLICY
from vramscope.app.routes import download_name, export_url
from vramscope.app.serve import command, entry_point

CONFIG = Path(__file__).resolve().parents[1] / "app" / ".streamlit" / "config.toml"


def option(arguments: list[str], name: str) -> list[str]:
    return [arguments[n + 1] for n, a in enumerate(arguments) if a == f"--{name}"]


def test_the_command_keeps_the_dashboard_on_this_machine() -> None:
    arguments, environment = command("runs.db", 8765)

    assert option(arguments, "server.address") == ["127.0.0.1"]
    assert option(arguments, "server.allowedHosts") == ["localhost", "127.0.0.1"]
    assert option(arguments, "server.enableXsrfProtection") == ["true"]
    assert option(arguments, "browser.gatherUsageStats") == ["false"]
    assert option(arguments, "server.port") == ["8765"]
    assert environment["VRAMSCOPE_DB"] == "runs.db"
    assert entry_point().is_file()


def test_the_configuration_file_says_the_same_as_the_command() -> None:
    config = tomllib.loads(CONFIG.read_text())
    arguments, _ = command(None)

    for section in ("server", "browser", "client"):
        for name, value in config[section].items():
            wanted = value if isinstance(value, list) else [str(value)]
            found = option(arguments, f"{section}.{name}")
            assert [f.lower() for f in found] == [str(w).lower() for w in wanted], name


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=str(port)):
        command(None, port)


def test_starting_needs_neither_streamlit_nor_torch() -> None:
    code = (
        "import sys; import vramscope.app.serve; "
        "print([m for m in ('streamlit', 'torch', 'pandas') if m in sys.modules])"
    )

    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert answer.stdout.strip() == "[]"


def test_the_policy_names_no_other_site() -> None:
    assert "http" not in CONTENT_SECURITY_POLICY
    assert "*" not in CONTENT_SECURITY_POLICY
    assert "default-src 'self'" in CONTENT_SECURITY_POLICY


def test_a_download_is_named_after_the_run_in_plain_letters() -> None:
    name = download_name('../../etc/"x"\r\nSet-Cookie: a', "abc123", "csv")

    assert name == "vramscope-etc-x-Set-Cookie-a-abc123.csv"


def test_an_export_address_quotes_the_run() -> None:
    assert export_url("a/b?c", "csv", "base/") == "/base/vramscope/export/csv/a%2Fb%3Fc"


@pytest.mark.parametrize(
    ("reported", "steps"),
    [
        ([3, 9], (3, 9)),
        ([3.0, 9.0], (3, 9)),
        (None, None),
        ([9, 3], None),
        (["1", "2"], None),
        ([True, False], None),
        ([1, 2, 3], None),
        ("all", None),
    ],
)
def test_a_range_from_the_browser_is_checked(
    reported: object, steps: tuple[int, int] | None
) -> None:
    assert visible_range(reported) == steps


def test_text_in_blocks_has_no_markup() -> None:
    assert text('<img src="x">') == "&lt;img src=&quot;x&quot;&gt;"
