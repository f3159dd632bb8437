"""The launcher as a person uses it: up, twice, status, log, down, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from scripted import wait_until

from pytest_llm_latency.servers.process import free_port

Voice = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def voice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Voice]:
    """`voice("up", ...)` with a state directory of its own; stops what it started."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest_llm_latency.servers.launcher", *args],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    yield run
    run("down")


def state(tmp_path: Path) -> dict[str, int]:
    loaded: dict[str, int] = json.loads(
        (tmp_path / "state" / "pytest-llm-latency" / "state.json").read_text()
    )
    return loaded


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_from_up_to_down(voice: Voice, tiny_gguf: Path, tmp_path: Path) -> None:
    port = str(free_port())
    assert voice("status").stdout == "not running\n"
    assert voice("status").returncode == 3
    up = voice("up", "--port", port, "--gguf", str(tiny_gguf))
    assert up.returncode == 0, up.stderr
    pid = state(tmp_path)["pid"]
    assert up.stdout == f"running at http://localhost:{port} (pid {pid}, tiny.gguf)\n"
    again = voice("up", "--port", port)
    assert (again.returncode, again.stdout) == (
        0,
        f"already running at http://127.0.0.1:{port} (pid {pid})\n",
    )
    other = voice("up", "--port", str(free_port()))
    assert other.returncode == 1
    assert "stop it first: voice-llm down" in other.stderr
    status = voice("status")
    assert status.returncode == 0
    assert status.stdout.endswith(": healthy\n")
    assert "listening on" in voice("log").stdout
    assert voice("down").stdout == f"stopped (pid {pid})\n"
    assert not alive(pid)
    assert (voice("down").stdout, voice("down").returncode) == ("not running\n", 0)


def test_the_lab_finds_it_and_leaves_it_running(
    voice: Voice, tiny_gguf: Path, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    voice("up", "--port", str(free_port()), "--gguf", str(tiny_gguf))
    result = pytester.runpytest_subprocess("--pyargs", "test_llm_latency", "-k", "cancel")
    result.assert_outcomes(passed=1, deselected=7)
    result.stdout.fnmatch_lines(["llm-latency: server: voice-llm at http://127.0.0.1:*"])
    log = (pytester.path / "voice" / "llm" / "server.log").read_text(errors="replace")
    assert "cancel task" in log
    assert "loading model" not in log  # only the part of this run
    assert alive(state(tmp_path)["pid"])


def test_a_stale_pid_is_not_believed(voice: Voice, tiny_gguf: Path, tmp_path: Path) -> None:
    voice("up", "--port", str(free_port()), "--gguf", str(tiny_gguf))
    os.kill(state(tmp_path)["pid"], signal.SIGKILL)
    assert wait_until(lambda: voice("status").stdout == "not running\n")
    # its pid may be another's now: down must not touch it
    path = tmp_path / "state" / "pytest-llm-latency" / "state.json"
    path.write_text(json.dumps({**state(tmp_path), "pid": os.getpid()}))
    assert voice("down").stdout == "not running\n"
    assert voice("up", "--port", str(free_port()), "--gguf", str(tiny_gguf)).returncode == 0


def test_a_full_disk_leaves_no_unknown_server(
    voice: Voice, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full"
    (full / "pytest-llm-latency").mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(full)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        (full / "pytest-llm-latency").mkdir()
        with pytest.raises(OSError, match="No space"):
            (full / "fill").write_bytes(b"x" * 65536)
        monkeypatch.setenv("XDG_STATE_HOME", str(full))
        own = tmp_path / "disk.gguf"
        own.symlink_to(tiny_gguf)
        up = voice("up", "--port", str(free_port()), "--gguf", str(own))
        assert up.returncode == 1
        assert "Traceback" not in up.stderr
        assert up.stderr.startswith("voice-llm: cannot ")
        left = [
            p for p in psutil.process_iter(["cmdline"]) if str(own) in (p.info["cmdline"] or [])
        ]
        assert [p for p in left if p.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)


def test_another_model_than_the_running_one(voice: Voice, tiny_gguf: Path, tmp_path: Path) -> None:
    port = str(free_port())
    voice("up", "--port", port, "--gguf", str(tiny_gguf))
    other = tmp_path / "other.gguf"
    other.symlink_to(tiny_gguf)
    up = voice("up", "--port", port, "--gguf", str(other))
    assert up.returncode == 1
    assert "stop it first: voice-llm down" in up.stderr


def test_a_port_in_use(voice: Voice, tiny_gguf: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        up = voice("up", "--port", port, "--gguf", str(tiny_gguf))
    assert up.returncode == 1
    assert up.stderr == (
        f"voice-llm: port {port} is in use by another program; choose one: voice-llm up --port N\n"
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["up", "--gguf", "/nowhere.gguf"], "cannot read /nowhere.gguf"),
        (["up", "--gguf", "/etc/hostname"], "is not a GGUF file"),
        (["up", "--port", "99999"], "'99999' is no port; give a number from 1 to 65535"),
        (["up", "--port", "0"], "'0' is no port"),
        (["log"], "there is no log yet; start the server: voice-llm up"),
    ],
)
def test_errors_are_one_line(voice: Voice, args: list[str], words: str) -> None:
    done = voice(*args)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_does_not_start_shows_its_log(voice: Voice, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 64)
    up = voice("up", "--port", str(free_port()), "--gguf", str(broken))
    assert up.returncode == 1
    assert "the server ended with status 1; the end of its log:" in up.stderr
    assert "Traceback" not in up.stderr
    assert voice("status").stdout == "not running\n"


def test_log_follows_and_ends_quietly(voice: Voice, tiny_gguf: Path) -> None:
    port = free_port()
    voice("up", "--port", str(port), "--gguf", str(tiny_gguf))
    follow = subprocess.Popen(
        [sys.executable, "-m", "pytest_llm_latency.servers.launcher", "log", "-f"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert follow.stdout is not None
    while b"listening on" not in follow.stdout.readline():
        pass
    voice("down")
    follow.send_signal(signal.SIGINT)
    _, errors = follow.communicate(timeout=10)
    assert (follow.returncode, errors) == (130, b"")
