"""What a person sees on a terminal while a step measures: a real pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest


def on_a_terminal(command: list[str], cwd: Path) -> str:
    """Everything that the command writes to a terminal of 100 columns."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    environment.pop("NO_COLOR", None)
    environment.pop("CI", None)
    run = subprocess.Popen(
        command, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    written = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # Linux says EIO when the last writer is gone
            break
        if not data:
            break
        written += data
    os.close(master)
    # 1 where a busy machine left a step without a verdict: that is not what is looked at here
    assert run.wait(30) in (0, 1), written.decode()
    return written.decode()


def test_progress_is_shown_and_leaves_no_trace(tmp_path: Path, tiny_gguf: Path) -> None:
    screen = on_a_terminal(
        [
            sys.executable, "-m", "pytest", "--pyargs", "test_llm_latency", "-v", "-p", "no:cacheprovider",
            f"--llm-gguf={tiny_gguf}", "--llm-server=local", "-k", "ttft or cache",
        ],
        tmp_path,
    )  # fmt: skip
    for text in ("ttft 1/5", "ttft 5/5", "cache second, round 1"):
        assert f"\x1b7\x1b[K {text}\x1b8" in screen
    # the server's facts, when it is there
    assert re.search(r"server: http://127\.0\.0\.1:\d+ \(local\), model tiny\.gguf", screen)
    # pytest's own lines are all there, behind what was shown
    for step in ("ttft", "cache"):
        assert re.search(rf"test_{step} [^\n]*(PASSED|FAILED)[^\n]*%\]", screen), screen
    assert "LLM latency" in screen
    # every line that was shown is cleared before the outcome is written
    for outcome in re.finditer(r"(PASSED|FAILED)(?=\x1b|\s)", screen.partition("FAILURES")[0]):
        before = screen[: outcome.start()]
        assert before.rfind("\x1b7\x1b[K\x1b8") > before.rfind("\x1b7\x1b[K ")


def test_no_terminal_plugin_at_all(pytester: pytest.Pytester, tiny_gguf: Path) -> None:
    result = pytester.runpytest_subprocess(
        "--pyargs", "test_llm_latency", "-k", "server", f"--llm-gguf={tiny_gguf}", "--llm-server=local",
        "-p", "no:terminal", "--junitxml=out.xml",
    )  # fmt: skip
    assert result.ret == 0
    assert 'tests="1"' in (pytester.path / "out.xml").read_text()


@pytest.mark.parametrize("color", ["--color=yes", "--color=auto"])
def test_nothing_of_it_where_there_is_no_terminal(
    pytester: pytest.Pytester, tiny_gguf: Path, color: str
) -> None:
    result = pytester.runpytest_subprocess(
        "--pyargs",
        "test_llm_latency",
        "-k",
        "ttft",
        color,
        f"--llm-gguf={tiny_gguf}",
        "--llm-server=local",
    )
    printed = result.stdout.str() + result.stderr.str()
    assert "\x1b7" not in printed
    assert "ttft 1/5" not in printed
