"""The whole lab, and each step alone, on the real server."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    assert cancel["received_tokens"] < cancel["max_tokens"] == 256
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
    # On this fast model the answer ends before 0.5 s, which proves nothing.
    assert any("proves nothing" in note for note in run["steps"]["cancel"]["notes"])


@pytest.mark.parametrize("step", STEPS)
def test_each_step_alone_by_its_name(
    lab: Run, step: str, pytester: pytest.Pytester, artifact: Callable[[str], Any]
) -> None:
    result = lab("-k", step)
    result.assert_outcomes(passed=1, deselected=7)
    for name in ARTIFACTS[step]:
        assert (pytester.path / "voice" / "llm" / name).exists()
    assert artifact("run.json")["steps"][step]["outcome"] == "passed"


def test_the_close_at_half_a_second_on_a_long_answer(
    lab: Run, slow_gguf: Path, artifact: Callable[[str], Any]
) -> None:
    result = lab("-k", "cancel", f"--llm-gguf={slow_gguf}", "--llm-server=local", own_server=False)
    result.assert_outcomes(passed=1, deselected=7)
    cancel = artifact("cancel.json")
    assert 0 < cancel["received_tokens"] < 256
    assert cancel["closed_at_ms"] >= 500
    cases = {case["name"]: case for case in artifact("run.json")["steps"]["cancel"]["cases"]}
    assert cases["close-at"]["phase"] == "generation"
    assert cases["prefill"]["phase"] == "prefill"
    assert cases["prefill"]["received_tokens"] == 0
    assert cases["prefill"]["idle_after_ms"] is not None


def test_a_partial_run_replaces_only_its_own_files(
    lab: Run, artifact: Callable[[str], Any], pytester: pytest.Pytester
) -> None:
    lab().assert_outcomes(passed=8)
    first = artifact("run.json")
    # report copies from the files of the full run, and needs no server for it
    log = pytester.path / "voice" / "llm" / "server.log"
    before = log.stat().st_mtime_ns
    lab("-k", "report", "--llm-url=http://127.0.0.1:9", own_server=False).assert_outcomes(
        passed=1, deselected=7
    )
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


def test_the_suite_stands_on_sse_py(lab: Run, pytester: pytest.Pytester) -> None:
    """The loop of sse.py is no decoration: break it, and the steps turn red."""
    pytester.makeconftest(
        """
        import pytest_llm_latency.sse as sse

        whole = sse.Decoder._line
        def lossy(self, line):  # forgets a piece of every answer
            return None if b'"content":"' in line and b"e" in line[40:] else whole(self, line)
        sse.Decoder._line = lossy
        sse.read_stream.__code__ = (lambda raw, started: iter(())).__code__
        """
    )
    result = lab()
    assert result.parseoutcomes().get("failed", 0) >= 5, summary(result)


def test_a_second_run_in_the_same_directory_is_refused(lab: Run, pytester: pytest.Pytester) -> None:
    from pytest_llm_latency.rundir import RunDirectory

    first = RunDirectory(pytester.path / "voice" / "llm", {})
    try:
        result = lab()
    finally:
        first.close()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --llm-artifacts: another run is using *voice/llm; *"])


def test_cold_legs_are_cold_on_a_server_with_slots_and_ram_cache(
    lab: Run, serve: Callable[..., str], artifact: Callable[[str], Any]
) -> None:
    """On a server that keeps prompts "hi" clears nothing: already the prefill step's prompt is
    still there when the cache step wants a cold leg, and a second suite finds every prompt."""
    url = serve(
        "--parallel", "4", "--cache-ram", "8192", "--batch-size", "2048", "--ctx-size", "32768"
    )
    for _ in range(2):
        result = lab(f"--llm-url={url}", own_server=False)
        result.assert_outcomes(passed=8)
        cache = artifact("cache.json")
        assert cache["first"]["prompt_n"] > 3000
        assert cache["changed_prefix"]["prompt_n"] > 3000
        assert cache["second"]["prompt_n"] < 100
        assert cache["salt"]
        assert "note: cache: measured with a salt: " in summary(result)
