"""The whole lab, and each step alone, on the real server."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted import Connection, Request, event, relay, serving, text_event

from pytest_llm_latency.servers.own_command import EMBEDDED_MAIN

from .conftest import Run, summary

STEPS = ("server", "sse", "ttft", "prefill", "cache", "sentence", "cancel", "report")
ARTIFACTS = {
    "server": ["health.json", "props.json"],
    "sse": ["sse.py", "sse_raw.txt", "chunks.jsonl"],
    "ttft": ["ttft.json"],
    "prefill": ["prefill.json"],
    "cache": ["cache.json"],
    "sentence": ["sentence.json"],
    "cancel": ["cancel.json", "server.log"],
    "report": ["report.json"],
}


def read_chunks(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "chunks.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def test_all_eight_steps(
    lab: Run, pytester: pytest.Pytester, artifact: Callable[[str], Any]
) -> None:
    result = lab("-v")
    result.assert_outcomes(passed=8)
    result.stdout.re_match_lines(
        [rf".*test_{n}_{s}\.py::test_{s} PASSED" for n, s in enumerate(STEPS, 1)]
    )
    directory = pytester.path / "voice" / "llm"
    run = artifact("run.json")
    for step, names in ARTIFACTS.items():
        assert run["steps"][step]["outcome"] == "passed"
        for name in names:
            assert run["artifacts"][name]["run"] == run["run"], name
    for name, entry in run["artifacts"].items():
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == entry["sha256"]

    assert artifact("health.json") == {"status": "ok"}
    ttft = artifact("ttft.json")
    assert len(ttft["runs"]) == 5
    assert all(r["ttft_ms"] < r["total_ms"] and r["tokens"] == 64 for r in ttft["runs"])
    assert ttft["ttft_p50"] == sorted(r["ttft_ms"] for r in ttft["runs"])[2]
    rows = artifact("prefill.json")
    assert [row["docs"] for row in rows] == [0, 4, 12]
    assert rows[0]["prompt_n"] < rows[1]["prompt_n"] < rows[2]["prompt_n"]
    cache = artifact("cache.json")
    assert cache["second"]["prompt_n"] == 1
    assert cache["changed_suffix"]["prompt_n"] < cache["changed_prefix"]["prompt_n"] / 10
    assert "salt" not in cache  # a server of our own: to the letter
    cancel = artifact("cancel.json")
    assert cancel["received_tokens"] < cancel["max_tokens"]
    assert cancel["slot_idle_after_ms"] is not None
    report = artifact("report.json")
    assert report == {
        "ttft_p50_ms": ttft["ttft_p50"],
        "total_p50_ms": ttft["total_p50"],
        "ttft_12docs_ms": rows[-1]["ttft_ms"],
        "prompt_n_12docs": rows[-1]["prompt_n"],
        "cache_ttft_ms": cache["second"]["ttft_ms"],
        "first_sentence_ms": artifact("sentence.json")["first_sentence_ms"],
        "cancel_idle_ms": cancel["slot_idle_after_ms"],
    }
    pieces = read_chunks(directory)
    raw = (directory / "sse_raw.txt").read_text(encoding="utf-8")
    assert raw.rstrip().endswith("data: [DONE]")
    contents = [
        json.loads(line[6:])["choices"][0]["delta"].get("content")
        for line in raw.split("\n")
        if line.startswith("data: {") and json.loads(line[6:])["choices"]
    ]
    assert [piece["text"] for piece in pieces] == [text for text in contents if text]
    assert b"cancel task" in (directory / "server.log").read_bytes()
    assert not list(directory.rglob("*.part"))
    assert run["steps"]["sse"]["first_token_ms"] == pieces[0]["t_ms"]
    assert run["steps"]["ttft"]["first_token_ms"] == [r["ttft_ms"] for r in ttft["runs"]]


@pytest.mark.parametrize("step", STEPS)
def test_each_step_alone_by_its_name(
    lab: Run, step: str, pytester: pytest.Pytester, artifact: Callable[[str], Any]
) -> None:
    result = lab("-k", step)
    result.assert_outcomes(passed=1, deselected=7)
    for name in ARTIFACTS[step]:
        assert (pytester.path / "voice" / "llm" / name).exists()
    assert artifact("run.json")["steps"][step]["outcome"] == "passed"


PLAN = """
from dataclasses import replace
import pytest
from pytest_llm_latency.plan import Plan

@pytest.fixture(scope="session")
def llm_plan():
    return replace(Plan(), {changes})
"""


def cancel_cases(artifact: Callable[[str], Any]) -> dict[str, Any]:
    cases = artifact("run.json")["steps"]["cancel"]["cases"]
    return {case["name"]: case for case in cases}


def test_closes_in_generation_and_in_prefill(
    lab: Run, slow_gguf: Path, artifact: Callable[[str], Any], pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(PLAN.format(changes="cancel_max_tokens=2048"))  # seconds of answer
    result = lab("-k", "cancel", f"--llm-gguf={slow_gguf}", "--llm-server=local", own_server=False)
    result.assert_outcomes(passed=1, deselected=7)
    cancel = artifact("cancel.json")
    assert cancel["received_tokens"] < cancel["max_tokens"] == 2048
    assert cancel["closed_at_ms"] >= 500
    cases = cancel_cases(artifact)
    assert {case["stop"] for case in cases.values()} == {"stopped"}
    assert cases["first-piece-1"]["phase"] == "generation"
    assert cases["prefill"]["phase"] == "prefill"
    assert cases["prefill"]["received_tokens"] == 0


@pytest.mark.zoo
def test_a_close_in_prefill_after_a_finished_answer_is_no_ended_answer(
    lab: Run, slow_gguf: Path, artifact: Callable[[str], Any], pytester: pytest.Pytester
) -> None:
    """In prefill the slot still tells of the task before, which had finished."""
    pytester.makeconftest(
        PLAN.format(changes='cancel_question="number " * 1000, cancel_close_at_ms=100.0')
    )
    result = lab(
        "-k", "ttft or cancel", f"--llm-gguf={slow_gguf}", "--llm-server=local", own_server=False
    )
    result.assert_outcomes(passed=2, deselected=6)
    case = cancel_cases(artifact)["close-at"]
    assert (case["phase"], case["stop"]) == ("prefill", "stopped")
    assert artifact("cancel.json")["received_tokens"] == 0
    assert artifact("cancel.json")["closed_at_ms"] < 1000


def test_an_answer_that_ended_before_the_close_is_measured_again(
    lab: Run, artifact: Callable[[str], Any], pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(PLAN.format(changes="cancel_close_at_ms=5000.0"))
    result = lab("-k", "cancel")
    assert cancel_cases(artifact)["close-at"]["phase"] == "ended"
    assert "which proves nothing: measured again" in summary(result)
    assert artifact("cancel.json")["closed_at_ms"] < 5000


@pytest.mark.zoo
@pytest.mark.parametrize("slots", ["today", "before"])
def test_a_proxy_that_passes_no_disconnect_on_is_found(
    lab: Run, serve: Callable[..., str], slow_gguf: Path, slots: str
) -> None:
    """The task generates to its own end and the slot is idle then: that is no cancel. Where
    /slots does not tell the two apart, as older ones do, the time does."""
    url = serve(gguf=slow_gguf)
    pass_on = relay(url, passes_close=False)

    def script(connection: Connection, request: Request) -> None:
        if slots == "before" and request.target == "/slots":
            with urllib.request.urlopen(f"{url}/slots") as answer:
                found = json.load(answer)
            connection.reply([{"id": s["id"], "state": int(s["is_processing"])} for s in found])
        else:
            pass_on(connection, request)

    with serving(script) as proxy:
        result = lab("-k", "cancel", f"--llm-url={proxy.base_url}", own_server=False)
    result.assert_outcomes(failed=1, deselected=7)
    wanted = {
        "today": "cause cancel-ignored: the slot generated to the end of its answer",
        "before": "cause cancel-ignored: the slot was idle only after as long as the rest",
    }
    assert wanted[slots] in summary(result)


@pytest.mark.zoo
def test_a_busy_moment_on_a_server_with_slots_is_measured_again_with_salts(
    lab: Run, serve: Callable[..., str], artifact: Callable[[str], Any]
) -> None:
    """A healthy server; one cached leg was slow once. A further round must not find its cold
    legs warm."""
    seen: dict[str, int] = {}

    def slow_once(request: Request) -> None:
        text = json.dumps((request.body or {}).get("messages"))
        seen[text] = seen.get(text, 0) + 1
        if len(text) > 5000 and seen[text] == 2 and "slowed" not in seen:
            seen["slowed"] = 1
            time.sleep(1.0)

    url = serve("--parallel", "4", "--cache-ram", "8192", "--ctx-size", "32768")
    with serving(relay(url, slow_once)) as proxy:
        result = lab("-k", "cache", f"--llm-url={proxy.base_url}", own_server=False)
    assert "slowed" in seen
    result.assert_outcomes(passed=1, deselected=7)
    assert artifact("cache.json")["salt"]
    evidence = {name for name in artifact("run.json")["artifacts"] if "salted-second-" in name}
    assert evidence


def counting_nothing(prefill_s: Callable[[str, bool], float]) -> Callable[..., None]:
    """A server without timings and usage; its first text comes after `prefill_s(prompt, seen)`."""
    prompts: set[str] = set()

    def script(connection: Connection, request: Request) -> None:
        if request.target != "/v1/chat/completions":
            connection.reply({"data": []})
            return
        prompt = json.dumps(request.body["messages"])
        wait_s = prefill_s(prompt, prompt in prompts)
        prompts.add(prompt)
        connection.head()
        time.sleep(wait_s)
        for number in range(8):
            connection.send(text_event(f"{number}. "))
            time.sleep(0.005)
        connection.send(
            event({"choices": [{"delta": {}, "finish_reason": "stop"}]}) + "data: [DONE]\n\n"
        )

    return script


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("alive", "outcome"), [(True, {"passed": 2}), (False, {"passed": 1, "failed": 1})]
)
def test_times_alone_tell_a_live_cache_from_a_dead_one(
    lab: Run, alive: bool, outcome: dict[str, int]
) -> None:
    def prefill_s(prompt: str, seen: bool) -> float:
        return 0.003 if seen and alive else 0.02 + len(prompt) / 120_000

    with serving(counting_nothing(prefill_s)) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "cache or prefill", own_server=False)
    result.assert_outcomes(deselected=6, **outcome)
    if not alive:
        assert "cause no-difference-in-time" in summary(result)


def test_an_error_inside_the_stream_keeps_the_pieces_before_it(
    lab: Run, pytester: pytest.Pytester
) -> None:
    def script(connection: Connection, request: Request) -> None:
        if request.target == "/v1/chat/completions":
            connection.head()
            connection.send("".join(text_event(f"{n} ") for n in range(5)))
            connection.send(event({"error": {"message": "out of memory"}}) + "data: [DONE]\n\n")
        else:
            connection.reply({"data": []})

    with serving(script) as server:
        result = lab("-k", "sse", f"--llm-url={server.base_url}", own_server=False)
    result.assert_outcomes(failed=1, deselected=7)
    assert "cause stream-error: the server reports inside the stream: out of memory" in summary(
        result
    )
    assert "pieces-differ" not in summary(result)
    assert len(read_chunks(pytester.path / "voice" / "llm")) == 5


def measured(index: Any) -> Any:
    """The files of the steps: what the look at the server left is every run's own."""
    return {n: e for n, e in index["artifacts"].items() if e["step"] != "capabilities"}


def test_a_failing_run_loses_nothing_of_an_earlier_one(
    lab: Run, pytester: pytest.Pytester, artifact: Callable[[str], Any]
) -> None:
    def refuses(connection: Connection, request: Request) -> None:
        if request.target == "/v1/chat/completions":
            connection.reply({"error": {"message": "no such model"}}, "404 Not Found")
        else:
            connection.reply({"data": []})

    lab("-k", "sentence").assert_outcomes(passed=1, deselected=7)
    first = artifact("run.json")
    with serving(refuses) as server:
        args = ("-k", "sentence", f"--llm-url={server.base_url}")
        lab(*args, own_server=False).assert_outcomes(failed=1, deselected=7)
    second = artifact("run.json")
    assert measured(second) == measured(first)
    assert second["steps"]["sentence"] == first["steps"]["sentence"]
    assert second["failures"]["sentence"]["run"] == second["run"] != first["run"]
    assert "no such model" in second["failures"]["sentence"]["error"]
    directory = pytester.path / "voice" / "llm"
    assert (directory / "sentence.json").exists()
    assert (directory / "evidence" / "sentence.failed" / "stream-1.jsonl").exists()
    assert len(list((directory / "evidence" / "sentence").iterdir())) == 1
    # and a good one takes the failure away
    lab("-k", "sentence").assert_outcomes(passed=1, deselected=7)
    assert artifact("run.json")["failures"] == {}


def test_an_interrupted_step_is_told_in_run_json_and_overwrites_nothing(
    lab: Run, pytester: pytest.Pytester, artifact: Callable[[str], Any]
) -> None:
    lab("-k", "sentence").assert_outcomes(passed=1, deselected=7)
    first = artifact("run.json")
    before = (pytester.path / "voice" / "llm" / "sentence.json").read_bytes()
    pytester.makeconftest(
        """
        from pytest_llm_latency.steps.sentence import measure
        def bug(*_):
            raise ZeroDivisionError("a bug of ours")
        measure.sentence_result = bug
        """
    )
    lab("-k", "sentence").assert_outcomes(failed=1, deselected=7)
    run = artifact("run.json")
    assert "a bug of ours" in run["failures"]["sentence"]["error"]
    assert measured(run) == measured(first)
    assert (pytester.path / "voice" / "llm" / "sentence.json").read_bytes() == before
    assert not list((pytester.path / "voice" / "llm").rglob("*.new"))


def test_a_log_that_is_rotated_after_the_cancel_is_not_saved_over_it(
    lab: Run, serve: Callable[..., str], pytester: pytest.Pytester, tmp_path: Path
) -> None:
    url = serve()
    (log,) = tmp_path.glob("server-*.log")
    pytester.makeconftest(
        f"""
        def pytest_runtest_logfinish(nodeid):
            if "cancel" in nodeid:
                open({str(log)!r}, "r+").truncate(0)
        """
    )
    lab("-k", "cancel", f"--llm-url={url}", f"--llm-log={log}", own_server=False).assert_outcomes(
        passed=1, deselected=7
    )
    assert "cancel task" in (pytester.path / "voice/llm/server.log").read_text(errors="replace")


def test_llama_server_on_the_path_is_used_for_a_model_of_one_s_own(
    pytester: pytest.Pytester,
    tiny_gguf: Path,
    monkeypatch: pytest.MonkeyPatch,
    artifact: Callable[[str], Any],
) -> None:
    """A program of that name that takes its options and serves as it does: llama.cpp's server
    from the wheel."""
    program = pytester.mkdir("bin") / "llama-server"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --help ] && echo "--cache-ram N" && exit 0\n'
        'shift 3; exec "' + sys.executable + '" "' + str(EMBEDDED_MAIN) + '" "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    result = pytester.runpytest_subprocess(
        "--pyargs", "test_llm_latency", "-k", "server or cancel", f"--llm-gguf={tiny_gguf}"
    )
    result.assert_outcomes(passed=2, deselected=6)
    result.stdout.fnmatch_lines(["llm-latency: server: llama-server with tiny.gguf, *"])
    assert (
        artifact("run.json")["runs"][artifact("run.json")["run"]]["server"]["kind"]
        == "llama-server"
    )


@pytest.mark.zoo
def test_a_partial_run_replaces_only_its_own_files(
    lab: Run, artifact: Callable[[str], Any], pytester: pytest.Pytester
) -> None:
    lab().assert_outcomes(passed=8)
    first = artifact("run.json")
    # report copies from the files of the full run, and needs no server for it
    log = pytester.path / "voice" / "llm" / "server.log"
    before = log.stat().st_mtime_ns
    result = lab("-k", "report", "--llm-url=http://127.0.0.1:9", own_server=False)
    result.assert_outcomes(passed=1, deselected=7)
    assert f"copied from the files of the run {first['run']}" in summary(result)
    assert artifact("run.json")["steps"]["report"]["copied_from_run"] == first["run"]
    assert log.stat().st_mtime_ns == before

    lab("-k", "cache").assert_outcomes(passed=1, deselected=7)
    second = artifact("run.json")
    assert second["artifacts"]["cache.json"]["run"] == second["run"] != first["run"]
    assert second["artifacts"]["ttft.json"] == first["artifacts"]["ttft.json"]
    assert set(second["runs"]) >= {first["run"], second["run"]}
    # two runs' files are not mixed: report measures anew
    lab("-k", "report").assert_outcomes(passed=1, deselected=7)
    third = artifact("run.json")
    assert {third["artifacts"][f"{s}.json"]["run"] for s in ("ttft", "cache", "cancel")} == {
        third["run"]
    }


@pytest.mark.zoo
def test_a_changed_file_is_not_copied_into_the_report(
    lab: Run, artifact: Callable[[str], Any], pytester: pytest.Pytester
) -> None:
    lab().assert_outcomes(passed=8)
    path = pytester.path / "voice" / "llm" / "ttft.json"
    ttft = json.loads(path.read_text())
    path.write_text(json.dumps({**ttft, "ttft_p50": 1.0}))
    lab("-k", "report").assert_outcomes(passed=1, deselected=7)
    assert artifact("report.json")["ttft_p50_ms"] == artifact("ttft.json")["ttft_p50"] != 1.0


def test_sse_py_reads_again_on_its_own(
    lab: Run, serve: Callable[..., str], pytester: pytest.Pytester
) -> None:
    url = serve()
    lab("-k", "sse", f"--llm-url={url}", own_server=False).assert_outcomes(passed=1, deselected=7)
    directory = pytester.path / "voice" / "llm"
    before = (directory / "sse_raw.txt").read_bytes()
    done = subprocess.run(
        [sys.executable, "sse.py", "--url", url], cwd=directory, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "pieces, first text after" in done.stdout
    assert (directory / "sse_raw.txt").read_bytes() != before
    again = read_chunks(directory)
    assert again
    assert set(again[0]) == {"t_ms", "text"}
    failed = subprocess.run(
        [sys.executable, "sse.py", "--url", "http://127.0.0.1:9"],
        cwd=directory, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert failed.returncode == 1
    assert failed.stderr.startswith("sse.py: http://127.0.0.1:9: ")
    assert failed.stderr.count("\n") == 1


LOSSY = """
whole = sse.Decoder._dispatch
count = 0
def lossy(self, events):  # forgets every third piece
    global count
    if self._data and '"content":"' in self._data[0]:
        count += 1
        if count % 3 == 0:
            self._data = []
    whole(self, events)
sse.Decoder._dispatch = lossy
"""
MUTE = """
sse.read_stream = lambda body, started: iter(())
"""


@pytest.mark.parametrize(
    ("broken", "steps", "red"),
    [
        (LOSSY, "server or sse or sentence", {"sse"}),
        (MUTE, "not cancel and not report", {"sse", "ttft", "prefill", "cache", "sentence"}),
    ],
    ids=["lossy", "mute"],
)
def test_the_suite_stands_on_sse_py(
    lab: Run, pytester: pytest.Pytester, broken: str, steps: str, red: set[str]
) -> None:
    """The decoder and the loop of sse.py are no decoration: break one, and steps turn red."""
    pytester.makeconftest("import pytest_llm_latency.sse as sse\n" + broken)
    result = lab("-rf", "-k", steps)
    failed = {
        line.rpartition("::test_")[2].split(" ")[0]
        for line in result.outlines
        if line.startswith("FAILED")
    }
    assert failed == red, summary(result)


def test_a_second_run_in_the_same_directory_is_refused(lab: Run, pytester: pytest.Pytester) -> None:
    from pytest_llm_latency.evidence.run_directory import RunDirectory

    first = RunDirectory(pytester.path / "voice" / "llm", {})
    try:
        result = lab()
    finally:
        first.close()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --llm-artifacts: another run is using *voice/llm; *"])


@pytest.mark.zoo
def test_cold_legs_are_cold_on_a_server_with_slots_and_ram_cache(
    lab: Run, serve: Callable[..., str], artifact: Callable[[str], Any]
) -> None:
    """On a server that keeps prompts "hi" clears nothing: already the prefill step's prompt is
    still there when the cache step wants a cold leg, and a second suite finds every prompt."""
    url = serve(
        "--parallel", "4", "--cache-ram", "8192", "--batch-size", "2048", "--ctx-size", "32768"
    )
    for _ in range(2):
        result = lab(f"--llm-url={url}", "-k", "not cancel and not report", own_server=False)
        result.assert_outcomes(passed=6, deselected=2)
        cache = artifact("cache.json")
        assert cache["first"]["prompt_n"] > 3000
        assert cache["changed_prefix"]["prompt_n"] > 3000
        assert cache["second"]["prompt_n"] < 100
        assert cache["salt"]
        assert "note: cache: measured with a salt: " in summary(result)
