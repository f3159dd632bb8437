"""A plugin, not only a suite: users' own tests and their own questions, as the README shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from readme import readme_code
from scripted import Request, relay, serving

from .conftest import summary

OWN_TEST = readme_code("test_greeting_streams")


@pytest.fixture
def own_server(slow_gguf: Path) -> list[str]:
    """Not the fastest: one answer must last longer than a busy machine's jitter."""
    return [f"--llm-gguf={slow_gguf}", "--llm-server=local"]


def test_a_test_of_one_s_own(pytester: pytest.Pytester, own_server: list[str]) -> None:
    pytester.makepyfile(OWN_TEST)
    result = pytester.runpytest_subprocess("--strict-markers", *own_server)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*::test_greeting_streams * ttft < total * holds *"])
    run = json.loads((pytester.path / "voice/llm/run.json").read_text())
    entry = run["steps"]["test_a_test_of_one_s_own.py::test_greeting_streams"]
    assert entry["outcome"] == "passed"
    assert entry["verdicts"][0]["outcome"] == "holds"
    assert (pytester.path / "voice/llm/evidence/own/1.jsonl").exists()
    assert (pytester.path / "voice/llm/evidence/own/3.jsonl").exists()


def no_cache(request: Request) -> None:
    """What a proxy does that does not know `cache_prompt`, before a server without a cache."""
    if request.body and "cache_prompt" in request.body:
        request.body["cache_prompt"] = False


def test_it_fails_with_the_same_words(
    pytester: pytest.Pytester, serve: Callable[..., str], slow_gguf: Path
) -> None:
    """A dead cache: the relation's words and cause, no traceback."""
    pytester.makepyfile(OWN_TEST)
    with serving(relay(serve(gguf=slow_gguf), no_cache)) as proxy:
        result = pytester.runpytest_subprocess(f"--llm-url={proxy.base_url}")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*::test_a_repeated_prompt_is_cached: broken: cached < uncached",
            "*  prompt_n * against *, ttft * ms against * ms",
            "*  cause cache-never-hits: * of the same prompt, character for character: *",
        ]
    )
    assert "pytest_llm_latency/" not in summary(result)


@pytest.mark.zoo
def test_a_plan_of_one_s_own(pytester: pytest.Pytester, own_server: list[str]) -> None:
    pytester.makeconftest(
        """
        from dataclasses import replace
        import pytest
        from pytest_llm_latency.plan import Plan

        @pytest.fixture(scope="session")
        def llm_plan():
            return replace(
                Plan(), question="Where is the bus stop?", max_tokens=16, ttft_runs=3,
                cancel_close_at_ms=5.0,
            )
        """
    )
    result = pytester.runpytest_subprocess(
        "--pyargs", "test_llm_latency", "-k", "ttft or sse or cancel", *own_server
    )
    result.assert_outcomes(passed=3, deselected=5)
    directory = pytester.path / "voice" / "llm"
    ttft = json.loads((directory / "ttft.json").read_text())
    assert [run["tokens"] for run in ttft["runs"]] == [16, 16, 16]
    head = json.loads((directory / "evidence/sse/stream-1.jsonl").read_text().split("\n")[0])
    assert head["request"]["body"]["messages"][1]["content"] == "Where is the bus stop?"


def test_server_args_of_one_s_own(pytester: pytest.Pytester, own_server: list[str]) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def llm_server_args():
            return ("--ctx-size", "4096")
        """
    )
    pytester.makepyfile(
        "def test_one(llm_server, llm_artifacts): assert llm_artifacts.path.is_dir()"
    )
    result = pytester.runpytest_subprocess(*own_server)
    result.assert_outcomes(passed=1)
    assert "n_ctx 4096" in summary(result)


@pytest.mark.zoo
def test_a_broken_lab_fails_the_right_step_in_ten_lines(
    pytester: pytest.Pytester, serve: Callable[..., str], slow_gguf: Path, short_kb: Path
) -> None:
    with serving(relay(serve(gguf=slow_gguf), no_cache)) as proxy:
        result = pytester.runpytest_subprocess(
            "--pyargs", "test_llm_latency", f"--llm-url={proxy.base_url}", f"--llm-kb={short_kb}",
            "-k", "sse or ttft or cache",
        )  # fmt: skip
    result.assert_outcomes(passed=2, failed=1, deselected=5)
    printed = summary(result).split("FAILURES")[1].split("LLM latency")[0].strip("=\n ").split("\n")
    assert len(printed) <= 11  # the test's name and ten lines
    assert "cause cache-never-hits" in "\n".join(printed)


@pytest.mark.zoo
def test_without_slots_one_token_tells_whether_the_server_is_idle(
    pytester: pytest.Pytester, own_server: list[str]
) -> None:
    result = pytester.runpytest_subprocess(
        "--pyargs", "test_llm_latency", *own_server, "--llm-server-args=--no-slots", "-k", "cancel"
    )
    result.assert_outcomes(passed=1, deselected=7)
    assert "by 1-token request" in summary(result)
    cancel = json.loads((pytester.path / "voice/llm/cancel.json").read_text())
    assert cancel["slot_idle_after_ms"] > 0


@pytest.mark.zoo
def test_no_slots_is_skipped_with_the_reason(
    pytester: pytest.Pytester, own_server: list[str], short_kb: Path
) -> None:
    """Several slots, so that a 1-token request tells nothing."""
    args = "--llm-server-args=--no-slots -np 4 -c 32768"
    result = pytester.runpytest_subprocess(
        "--pyargs", "test_llm_latency", *own_server, args, f"--llm-kb={short_kb}", "-rs",
        "-k", "cancel or report",
    )  # fmt: skip
    result.assert_outcomes(passed=1, skipped=1, deselected=6)
    assert "the server offers no /slots: HTTP 501" in summary(result)
    cancel = json.loads((pytester.path / "voice/llm/cancel.json").read_text())
    assert cancel["slot_idle_after_ms"] is None
    report = json.loads((pytester.path / "voice/llm/report.json").read_text())
    assert report["cancel_idle_ms"] is None


INCONCLUSIVE = """
from pytest_llm_latency import Cause, Verdict

def test_noise(llm_expect):
    llm_expect(Verdict("own", "a < b", "inconclusive", "1 against 2", Cause("noise", "too noisy")))

def test_broken(llm_expect):
    llm_expect(Verdict("own", "a < b", "broken", "3 against 2", Cause("x", "for sure")))

def supporting(outcome):
    cause = Cause("noise", "too noisy")
    return Verdict("own", "the log has the task's cancel line", outcome, "nothing", cause)

HOLDS = Verdict("own", "a < b", "holds", "1 against 2")

def test_what_only_supports_others_and_is_unclear(llm_expect):
    llm_expect(HOLDS, supporting("inconclusive"))

def test_what_only_supports_others_and_cannot_be_measured(llm_expect):
    llm_expect(HOLDS, supporting("not measurable"))

def test_nothing_can_be_measured(llm_expect):
    llm_expect(supporting("not measurable"))
"""


@pytest.mark.parametrize(
    ("args", "outcomes"),
    [
        ((), {"failed": 3, "skipped": 1, "passed": 1}),
        (("--llm-inconclusive=skip",), {"failed": 1, "skipped": 3, "passed": 1}),
    ],
)
def test_what_noise_hides_fails_or_skips_as_told(
    pytester: pytest.Pytester, tiny_gguf: Path, args: tuple[str, ...], outcomes: dict[str, int]
) -> None:
    pytester.makepyfile(INCONCLUSIVE)
    result = pytester.runpytest(f"--llm-gguf={tiny_gguf}", "--llm-server=local", "-rs", *args)
    result.assert_outcomes(**outcomes)
    result.stdout.fnmatch_lines(["*too noisy*"])


def test_results_that_could_not_be_written_fail_the_run(
    pytester: pytest.Pytester, tiny_gguf: Path
) -> None:
    """A disk that is full at the very end: exit code 0 would say that there is a run.json."""
    pytester.makepyfile(
        full_disk="""
        from pytest_llm_latency.session import live
        live.LiveSession.finish = lambda self, is_whole: "cannot write run.json: No space left on device"
        """,
        test_one="""
        def test_one(llm_expect):
            llm_expect()
        """,
    )
    own = [f"--llm-gguf={tiny_gguf}", "--llm-server=local"]
    assert pytester.runpytest_subprocess("test_one.py", *own).ret == 0
    result = pytester.runpytest_subprocess("test_one.py", "-p", "full_disk", *own)
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    assert "cannot write run.json: No space left" in summary(result)
