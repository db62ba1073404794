"""How the dashboard is started: one command, with every setting that keeps it local.

Importable without Streamlit and without torch, for the command line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ADDRESS = "127.0.0.1"

_SETTINGS: tuple[tuple[str, str], ...] = (
    ("server.address", ADDRESS),
    ("server.allowedHosts", "localhost"),
    ("server.allowedHosts", "127.0.0.1"),
    ("server.enableCORS", "true"),
    ("server.enableXsrfProtection", "true"),
    ("server.enableWebsocketCompression", "true"),
    ("server.fileWatcherType", "none"),
    ("server.headless", "true"),
    ("browser.gatherUsageStats", "false"),
    ("client.showErrorDetails", "type"),
    ("client.disableDataExport", "true"),
    ("client.toolbarMode", "viewer"),
)


def command(url: str | None = None, port: int = 8501) -> tuple[list[str], dict[str, str]]:
    """The command that serves the dashboard, and the environment to start it with.

    Args:
        url: The store, as a URL or a path; ``None`` leaves ``VRAMSCOPE_DB`` as it is.
        port: Port on 127.0.0.1, 1 to 65535.

    Returns:
        Arguments and environment for ``subprocess`` or ``os.execvpe``.

    Raises:
        ValueError: The port is out of range.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"port must lie between 1 and 65535, got {port}")
    arguments = [sys.executable, "-m", "streamlit", "run", str(entry_point())]
    arguments += ["--server.port", str(port)]
    for name, value in _SETTINGS:
        arguments += [f"--{name}", value]
    environment = dict(os.environ)
    if url is not None:
        environment["VRAMSCOPE_DB"] = url
    return arguments, environment


def entry_point() -> Path:
    """The file that Streamlit runs."""
    return Path(__file__).resolve().with_name("asgi.py")
