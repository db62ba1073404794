"""Child processes that end with the command that started them, and waiting for a dashboard."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO

from ..serve import ADDRESS, command
from . import terminal
from .errors import ExtraMissing, PortTaken, ProcessFailed
from .tables import say

_STARTS_WITHIN_S = 120.0
_POLL_S = 0.1
_GRACE_S = 5.0
_DASHBOARD_NEEDS = ("streamlit", "plotly", "pandas")
_LAST_LINES = 15


class Child:
    """One process that is stopped when its block is left, whatever the reason.

    It stays in the terminal's process group, so that Ctrl-C reaches it as it reaches us; one
    that a Ctrl-C does not stop in time is told again, and at last killed. If we are killed
    outright, the system stops it (on Linux).
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, quiet: bool = False
    ) -> None:
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._quiet = quiet
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Child:
        output = None
        if self._quiet:
            self._log = tempfile.TemporaryFile()
            output = self._log
        self._process = subprocess.Popen(
            self._arguments,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if self._quiet else None,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _deaf_to_signals():
            # After Ctrl-C in a terminal the child has been told already: a second one would
            # disturb its tidying up.
            told = kind is not None and issubclass(kind, KeyboardInterrupt)
            self._stop((None, signal.SIGINT, signal.SIGTERM) if told else _ASK)
        if self._log is not None:
            self._log.close()

    def _stop(self, requests: Sequence[signal.Signals | None]) -> None:
        for request in requests:
            if request is not None and self._process.poll() is None:
                self._process.send_signal(request)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S if request is not None else _GRACE_S / 2)
                return
        self._process.kill()
        self._process.wait()

    @property
    def exit_code(self) -> int | None:
        """How it ended; ``None`` while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait for its end and return how it ended."""
        return self._process.wait()

    def last_lines(self) -> str:
        """The end of what a quiet child has printed."""
        if self._log is None:
            return ""
        self._log.flush()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-_LAST_LINES:])


_ASK = (signal.SIGINT, signal.SIGTERM)


def dashboard(url: str, port: int) -> Child:
    """The dashboard on a store, not yet started.

    Raises:
        ExtraMissing: The packages that draw it are not installed.
        PortTaken: Something else listens on the port, or nobody may.
    """
    missing = [name for name in _DASHBOARD_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ExtraMissing(
            f"The dashboard needs {', '.join(missing)}, which this Python does not have. "
            "Install vramscope with its dashboard: in a clone of it, pip install '.[dashboard]'"
        )
    check_port(port)
    return Child(*command(url, port), quiet=True)


def check_port(port: int) -> None:
    """Raise :class:`PortTaken` unless a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "is in use by another program" if taken else f"cannot be used ({error})"
            other = port + 1 if 1024 <= port < 65535 else 8501
            raise PortTaken(
                f"Port {port} on {ADDRESS} {reason}. Stop what listens there, or choose another "
                f"port with --port {other}."
            ) from error


def wait_until_it_answers(child: Child, port: int) -> None:
    """Wait until the dashboard serves its page.

    Raises:
        ProcessFailed: It ended, or did not answer in time.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < deadline:
        if child.exit_code is not None:
            raise ProcessFailed(
                f"The dashboard ended with exit code {child.exit_code} before it answered. "
                f"It said:\n{child.last_lines()}"
            )
        with (
            contextlib.suppress(OSError),
            opener.open(f"http://{ADDRESS}:{port}/_stcore/health", timeout=2) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(_POLL_S)
    raise ProcessFailed(
        f"The dashboard did not answer on port {port} within {_STARTS_WITHIN_S:.0f} s. "
        f"It said:\n{child.last_lines()}"
    )


def stay_until_stopped(child: Child, *lines: str) -> None:
    """Print lines, and return at Ctrl-C, which is how a dashboard ends.

    Raises:
        ProcessFailed: It ended on its own.
    """
    try:
        say(terminal.out(), *lines)
        code = child.wait()
    except KeyboardInterrupt:
        return
    raise ProcessFailed(
        f"The dashboard ended with exit code {code}. It said:\n{child.last_lines()}"
    )


def _end_with_parent() -> None:
    """Ask Linux to send SIGTERM when the parent dies, even by SIGKILL (prctl(2))."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


@contextlib.contextmanager
def _deaf_to_signals() -> Iterator[None]:
    """Keep a second Ctrl-C from leaving a child behind."""
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, signal.SIG_IGN) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
