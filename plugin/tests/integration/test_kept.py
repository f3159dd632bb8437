"""What was measured is kept, whatever ends the run or fills its disk; and a run's directory can be
graded, whatever the server said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted import Connection, Request, end_events, serving, text_event

from pytest_llm_latency.lab.graded import GradedLab
from pytest_llm_latency.steps.server.judge import judge_server
from pytest_llm_latency.steps.sse.judge import judge_sse
from pytest_llm_latency.verdicts.verdict import Verdict

from .conftest import Run, summary

MAX_BYTES = 64 * 1024 * 1024
LONG = "M" * (5 << 20)


def lively(on_chat: Callable[[int], None] = lambda _: None, **replies: Any) -> Callable[..., None]:
    """A server that streams an answer; `on_chat` gets each chat's number before it."""
    chats: list[None] = []

    def script(connection: Connection, request: Request) -> None:
        name = request.target.rpartition("/")[2]
        if request.target != "/v1/chat/completions":
            connection.reply(
                replies.get(name, {"data": [], "status": "ok"}),
                replies.get(f"{name}_status", "200 OK"),
            )
            return
        chats.append(None)
        on_chat(len(chats))
        connection.head()
        time.sleep(0.03)
        for number in range(12):
            time.sleep(0.008)
            connection.send(text_event(f"w{number} "))
        connection.send(end_events())

    return script


def graded(run: Path, step: str) -> list[Verdict]:
    """What a grading of the step finds wrong."""
    lab = GradedLab(run, MAX_BYTES)
    judged = {"sse": judge_sse, "server": judge_server}[step](getattr(lab, step)())
    return [one for one in [*judged, *lab.extra(step, judged)] if one.outcome != "holds"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_step_that_had_passed_is_kept(tmp_path: Path, how: signal.Signals) -> None:
    """The look takes one chat, the sse step another one: the fifth is the ttft step's."""
    started: list[subprocess.Popen[str]] = []

    def end(number: int) -> None:
        if number == 5:
            started[0].send_signal(how)

    lab = [sys.executable, "-m", "pytest", "--pyargs", "test_llm_latency", "-p", "no:cacheprovider"]
    with serving(lively(end)) as server:
        started.append(
            subprocess.Popen(
                [*lab, "-k", "sse or ttft", f"--llm-url={server.base_url}"],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        printed = started[0].communicate(timeout=60)[0]
    run = tmp_path / "voice" / "llm"
    index = json.loads((run / "run.json").read_text())
    assert index["steps"]["sse"]["outcome"] == "passed", printed
    assert graded(run, "sse") == []
    if how == signal.SIGKILL:
        assert started[0].returncode == -how
        return
    # As by Ctrl-C: pytest ends, with its table.
    assert started[0].returncode == pytest.ExitCode.INTERRUPTED
    assert f"KeyboardInterrupt: {how.name}" in printed
    assert "1 passed" in printed
    assert "the stream has its end" in printed
    assert index["failures"]["ttft"]["error"] == "interrupted"
    assert index["runs"][index["run"]]["ended"] is False


def test_a_later_run_without_a_server_loses_nothing(lab: Run, pytester: pytest.Pytester) -> None:
    with serving(lively()) as server:
        lab(f"--llm-url={server.base_url}", "-k", "sse", own_server=False).assert_outcomes(
            passed=1, deselected=7
        )
    path = pytester.path / "voice" / "llm" / "run.json"
    before = json.loads(path.read_text())
    nobody = ("--llm-url=http://127.0.0.1:9", "--llm-start-timeout=0.1")
    lab(*nobody, "-k", "sse or ttft", own_server=False).assert_outcomes(errors=2, deselected=6)
    index = json.loads(path.read_text())
    assert index["steps"]["sse"] == before["steps"]["sse"]
    assert index["failures"]["sse"]["run"] == index["run"] != before["run"]
    assert "Connection refused" in index["failures"]["sse"]["error"]
    assert index["steps"]["ttft"]["outcome"] == "failed"  # of which there was nothing
    # A grading says that the newest run failed, as it does of one that failed in the middle.
    why = [one.numbers for one in graded(path.parent, "sse")]
    assert why == ["run.json: a later run failed to measure the step 'sse'"]


FULL = """
import errno, os

def pytest_runtest_logfinish(nodeid):
    if "sse" in nodeid:
        os.fsync = full

def full(handle):
    raise OSError(errno.{error}, os.strerror(errno.{error}))
"""


@pytest.mark.parametrize("error", ["ENOSPC", "EROFS"])
def test_a_disk_that_is_full_in_the_middle(lab: Run, pytester: pytest.Pytester, error: str) -> None:
    pytester.makepyfile(full=FULL.format(error=error))
    with serving(lively()) as server:
        result = lab(
            f"--llm-url={server.base_url}", "-k", "sse or ttft", "-p", "full", own_server=False
        )
    printed, why = summary(result), os.strerror(getattr(__import__("errno"), error))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1, deselected=6)
    run = pytester.path / "voice" / "llm"
    assert f"cannot write {run}/run.json: {why}" in printed.splitlines()[-1]
    assert "Traceback" not in printed
    assert "INTERNALERROR" not in printed
    index = json.loads((run / "run.json").read_text())
    assert index["steps"]["sse"]["outcome"] == "passed"
    assert graded(run, "sse") == []
    assert not list(run.rglob("*.part"))


def test_five_megabytes_of_words(lab: Run, pytester: pytest.Pytester) -> None:
    """In every place at once; and a pipe where the page would be keeps nobody waiting."""
    run = pytester.path / "voice" / "llm"
    run.mkdir(parents=True)
    os.mkfifo(run / "report.html")
    props = {"model_path": LONG, "build_info": LONG, "total_slots": 1, "default_generation_settings": {"n_ctx": 8192}}  # fmt: skip
    replies = {
        "health": {"status": "ok " + LONG},
        "props": props,
        "models": {"data": [{"id": LONG}, *({"id": f"m{number}"} for number in range(100_000))]},
        "slots": {"error": {"message": LONG}},
        "slots_status": "501 Not Implemented",
    }
    with serving(lively(**replies)) as server:
        args = (f"--llm-url={server.base_url}", "--llm-model=m1", "-k", "server or sse")
        result = lab(*args, own_server=False)
    # So long an answer of /health or /props is read by nobody; all else is measured.
    result.assert_outcomes(passed=1, failed=1, deselected=6)
    assert "/health: the answer has more than 4,194,304 bytes" in summary(result)
    assert (run / "run.json").stat().st_size < 100_000
    assert len(summary(result)) < 20_000
    assert graded(run, "sse") == []


def test_a_link_in_the_directory_ends_the_run_at_its_start(
    refused: Run, pytester: pytest.Pytester
) -> None:
    precious = pytester.mkdir("precious")
    (precious / "1.jsonl").write_text("mine")
    run = pytester.path / "voice" / "llm"
    run.mkdir(parents=True)
    (run / "evidence").symlink_to(precious.parent)
    result = refused("--llm-url=http://127.0.0.1:9")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: --llm-artifacts: {run}: evidence: is a link, expected a directory; no link is *"]
    )
    assert (precious / "1.jsonl").read_text() == "mine"
