"""However pytest ends, no server of ours is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from scripted import wait_until

LAB = [sys.executable, "-m", "pytest", "--pyargs", "test_llm_latency", "-p", "no:cacheprovider"]


def servers(mark: str) -> list[psutil.Process]:
    """Processes, guards included, that serve the model whose path holds `mark`."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        gone = process.info["status"] == psutil.STATUS_ZOMBIE
        if not gone and mark in " ".join(words) and any("server" in word for word in words[:2]):
            found.append(process)
    return found


@pytest.fixture
def own_model(tmp_path: Path, slow_gguf: Path) -> Path:
    """A model path that no other test uses, so that its server can be told from others."""
    path = tmp_path / "death.gguf"
    path.symlink_to(slow_gguf)
    return path


def start(tmp_path: Path, model: Path, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*LAB, f"--llm-gguf={model}", "--llm-server=local", "-v", *args],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def output(run: subprocess.Popen[bytes]) -> str:
    """What it printed; waits until it has ended."""
    return run.communicate(timeout=60)[0].decode()


def test_a_normal_end(tmp_path: Path, own_model: Path) -> None:
    run = start(tmp_path, own_model, "-k", "ttft")
    assert wait_until(lambda: len(servers(str(own_model))) == 2)  # the guard and the server
    assert "1 passed" in output(run)
    assert servers(str(own_model)) == []


def step_file(tmp_path: Path, name: str) -> Callable[[], bool]:
    return (tmp_path / "voice" / "llm" / name).exists


@pytest.mark.parametrize("moment", ["start-up", "step"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal(tmp_path: Path, own_model: Path, how: signal.Signals, moment: str) -> None:
    run = start(tmp_path, own_model)
    assert wait_until(lambda: bool(servers(str(own_model))))
    if moment == "step":
        assert wait_until(step_file(tmp_path, "ttft.json"), 30), output(run)
    os.killpg(run.pid, how) if how == signal.SIGINT else run.send_signal(how)
    printed = output(run)
    assert run.returncode != 0
    assert wait_until(lambda: servers(str(own_model)) == []), printed
    if how == signal.SIGINT:
        assert "KeyboardInterrupt" in printed
    if moment == "step":  # what was measured is kept
        assert (tmp_path / "voice" / "llm" / "sse_raw.txt").stat().st_size > 0


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_timeout(tmp_path: Path, own_model: Path, method: str) -> None:
    """pytest-timeout's thread method ends pytest with os._exit: no fixture is torn down."""
    (tmp_path / "test_slow.py").write_text(
        "import pytest\n"
        f"@pytest.mark.timeout(2, method={method!r}, func_only=True)\n"
        "def test_slow(llm_client):\n"
        "    while True:\n"
        "        llm_client.stream([{'role': 'user', 'content': 'a'}], max_tokens=256)\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "test_slow.py", f"--llm-gguf={own_model}", "--llm-server=local"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert wait_until(lambda: bool(servers(str(own_model))))
    assert "Timeout" in output(run)
    assert wait_until(lambda: servers(str(own_model)) == [])


def test_the_guard_killed(tmp_path: Path, own_model: Path) -> None:
    run = start(tmp_path, own_model)
    assert wait_until(step_file(tmp_path, "sse_raw.txt"), 30)
    for process in servers(str(own_model)):
        if "guard.py" in " ".join(process.info["cmdline"]):
            process.kill()
    assert wait_until(lambda: servers(str(own_model)) == [])
    printed = output(run)
    assert "failed" in printed
    assert "INTERNALERROR" not in printed


def test_a_server_that_dies_in_a_step_fails_the_rest_clearly(
    tmp_path: Path, own_model: Path
) -> None:
    run = start(tmp_path, own_model)
    assert wait_until(step_file(tmp_path, "sse_raw.txt"), 30)
    for process in servers(str(own_model)):
        if "embedded_main.py" in process.info["cmdline"][1]:
            process.kill()
    printed = output(run)
    assert "Traceback" not in printed
    assert "cannot connect: [Errno 111] Connection refused" in printed
