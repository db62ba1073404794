"""Processes that a command starts: they end with it, and say why when they fail."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vramscope.app.cli import processes
from vramscope.app.cli.errors import ExtraMissing, PortTaken, ProcessFailed
from vramscope.app.cli.processes import Child


def python(code: str, *, quiet: bool = True) -> Child:
    return Child([sys.executable, "-c", code], dict(os.environ), quiet=quiet)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.parametrize("command", [("demo",), ("ui",)])
def test_a_taken_port_is_said_before_anything_starts(
    command: tuple[str, ...],
    taken_port: int,
    vramscope: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("nothing may start"))
    shown = vramscope(*command, "--db", tmp_path / "x.db", "--port", taken_port)
    assert shown.code == 12
    assert str(taken_port) in shown.err
    assert f"--port {taken_port + 1}" in shown.err
    assert os.listdir(tmp_path) == []


def test_a_free_port_is_free(free_port: int) -> None:
    processes.check_port(free_port)


def test_a_port_that_just_served_can_be_used_again(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)) as server:
        client = socket.create_connection(("127.0.0.1", free_port))
        server.accept()[0].close()
        client.close()
    processes.check_port(free_port)


def test_a_port_that_needs_rights_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refused)
    with pytest.raises(PortTaken, match=r"cannot be used .* --port 8501"):
        processes.check_port(80)


@pytest.mark.parametrize("command", [("demo",), ("ui",)])
def test_without_streamlit_the_extra_is_named(
    command: tuple[str, ...],
    vramscope: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_spec = processes.importlib.util.find_spec

    def hidden(name: str) -> object:
        return None if name == "streamlit" else find_spec(name)

    monkeypatch.setattr(processes.importlib.util, "find_spec", hidden)
    shown = vramscope(*command, "--db", tmp_path / "x.db")
    assert shown.code == ExtraMissing.exit_code
    assert "pip install '.[dashboard]'" in shown.err


def test_a_child_is_stopped_when_its_block_ends() -> None:
    with python("import time; time.sleep(60)") as child:
        assert child.exit_code is None
    assert child.exit_code is not None


def test_a_child_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_GRACE_S", 0.2)
    code = (
        "import signal, time\n"
        "for kind in (signal.SIGINT, signal.SIGTERM): signal.signal(kind, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\n"
        "time.sleep(60)\n"
    )
    with python(code) as child:
        deadline = time.monotonic() + 20
        while "deaf" not in child.last_lines() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert child.exit_code == -signal.SIGKILL


def test_what_a_child_said_is_in_the_message(free_port: int) -> None:
    with (
        python("import sys; sys.exit('no such theme')") as child,
        pytest.raises(ProcessFailed, match=r"exit code 1 .*\n.*no such theme"),
    ):
        processes.wait_until_it_answers(child, free_port)


def test_waiting_ends_with_the_first_answer(free_port: int) -> None:
    class Health(http.server.BaseHTTPRequestHandler):
        asked: list[str] = []  # noqa: RUF012

        def do_GET(self) -> None:
            self.asked.append(self.path)
            self.send_response(200 if len(self.asked) > 1 else 503)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", free_port), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with python("import time; time.sleep(60)") as child:
        processes.wait_until_it_answers(child, free_port)
    server.shutdown()
    server.server_close()
    assert Health.asked == ["/_stcore/health"] * 2


DEMO = """
import sys
from vramscope.app.cli import demo, main, processes
from vramscope.app.cli.processes import Child
server = '''
import http.server, os, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *arguments): pass
open("server.pid", "w").write(str(os.getpid()))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
'''
processes.command = lambda url, port: ([sys.executable, "-c", server, str(port)], None or {})
demo._training = lambda url, steps: Child(
    [sys.executable, "-c", sys.argv.pop(1)], {}, quiet=False
)
main(sys.argv[2:])
"""
"""The demo command with a server and a training that start in no time."""


def start_demo(training: str, port: int, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", DEMO, training, "--", "demo", "--port", str(port)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_demos_dashboard_stays_until_it_is_stopped(
    kind: signal.Signals, code: int, free_port: int, tmp_path: Path
) -> None:
    process = start_demo("print('trained', flush=True)", free_port, tmp_path)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "stays up until Ctrl-C" in line:
            break
    assert f"Dashboard  http://127.0.0.1:{free_port}\n" in lines
    assert "trained\n" in lines
    server = int((tmp_path / "server.pid").read_text())
    assert alive(server)
    process.send_signal(kind)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err == ""
    assert not alive(server)


def test_ctrl_c_while_training_stops_both(free_port: int, tmp_path: Path) -> None:
    training = (
        "import os, time\n"
        "open('training.pid', 'w').write(str(os.getpid()))\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: open('interrupted', 'w').close()\n"
    )
    process = start_demo(training, free_port, tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if "Ctrl-C stops both" in line:
            break
    pids = [int((tmp_path / f"{name}.pid").read_text()) for name in ("server", "training")]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "vramscope: Interrupted.\n")
    assert (tmp_path / "interrupted").exists()
    assert not any(alive(pid) for pid in pids)


def test_a_demo_whose_training_fails_says_so_and_stops(free_port: int, tmp_path: Path) -> None:
    process = start_demo("raise SystemExit(3)", free_port, tmp_path)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 15
    assert "exit code 3" in err
    assert not alive(int((tmp_path / "server.pid").read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="the system stops orphans on Linux only")
def test_children_do_not_outlive_a_kill(free_port: int, tmp_path: Path) -> None:
    process = start_demo("import time; time.sleep(60)", free_port, tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if "Ctrl-C stops both" in line:
            break
    server = int((tmp_path / "server.pid").read_text())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while alive(server) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(server)
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()


def test_the_demo_without_a_dashboard_only_trains(
    vramscope: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "seen.json"
    code = (
        "import json, os, sys\n"
        f"with open({str(record)!r}, 'w') as file:\n"
        "    json.dump([sys.argv[1:], os.environ['VRAMSCOPE_DB']], file)\n"
    )
    real = subprocess.Popen

    def instead(arguments: list[str], **options: Any) -> Any:
        assert arguments[1:3] == ["-m", "vramscope.profiler.demo"]
        return real([sys.executable, "-c", code, *arguments[3:]], **options)

    monkeypatch.setattr(subprocess, "Popen", instead)
    shown = vramscope("demo", "--no-ui", "--steps", 30, "--db", tmp_path / "x.db")
    assert shown.code == 0
    arguments, url = json.loads(record.read_text())
    assert arguments == ["--steps", "30", "--second-steps", "10"]
    assert url.endswith("/x.db")
