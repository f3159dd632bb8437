"""A pytest user's habits: -k, node ids, --lf, -x, --co, order under pytest-randomly, xdist."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run, summary

STEPS = ("server", "sse", "ttft", "prefill", "cache", "sentence", "cancel", "report")


def collected(result: pytest.RunResult) -> list[str]:
    return [line.rpartition("::test_")[2] for line in result.outlines if "::test_" in line]


@pytest.mark.parametrize("step", STEPS)
def test_k_selects_exactly_its_step(lab: Run, step: str) -> None:
    assert collected(lab("--co", "-q", "-k", step)) == [step]


def test_collect_only_starts_and_says_nothing(lab: Run, pytester: pytest.Pytester) -> None:
    result = lab("--co", "-q")
    assert collected(result) == list(STEPS)
    assert "llm-latency" not in result.stdout.str().partition("::")[0]
    assert not (pytester.path / "voice").exists()


@pytest.mark.usefixtures("every_plugin")
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_the_order_holds_under_randomly(lab: Run, seed: str) -> None:
    assert collected(lab("--co", "-q", f"--randomly-seed={seed}")) == list(STEPS)


def test_node_ids_and_first_failure(pytester: pytest.Pytester, tiny_gguf: Path) -> None:
    import test_llm_latency

    node = Path(test_llm_latency.__file__).with_name("test_3_ttft.py")
    result = pytester.runpytest_subprocess(
        f"{node}::test_ttft", f"--llm-gguf={tiny_gguf}", "--llm-server=local", "--durations=3", "-q"
    )
    result.assert_outcomes(passed=1)
    assert "slowest 3 durations" in result.stdout.str()


def test_last_failed_runs_the_failed_step_alone(
    pytester: pytest.Pytester, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(
        """
        import dataclasses, os, pytest
        from pytest_llm_latency.plan import Plan

        @pytest.fixture(scope="session")
        def llm_plan():
            # One long prompt's worth of answer does not fit: the sentence step fails.
            bad = os.environ.get("BAD")
            return dataclasses.replace(Plan(), sentence_question="x " * 9000) if bad else Plan()
        """
    )
    args = ("--pyargs", "test_llm_latency", f"--llm-gguf={tiny_gguf}", "--llm-server=local")
    monkeypatch.setenv("BAD", "1")
    result = pytester.runpytest_subprocess(*args, "-x")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["*does not fit the server's context of 8192*"])
    monkeypatch.delenv("BAD")
    pytester.runpytest_subprocess(*args, "--lf").assert_outcomes(passed=1)


@pytest.mark.usefixtures("every_plugin")
def test_xdist_is_refused_with_a_reason_and_the_rest_of_the_suite_runs(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        "def test_measures(llm_client): raise AssertionError('ran')\ndef test_other(): pass"
    )
    result = pytester.runpytest_subprocess("-n", "2")
    result.assert_outcomes(errors=1, passed=1)
    assert "workers that measure one server measure each other" in summary(result)
    assert not (pytester.path / "voice").exists()


@pytest.mark.usefixtures("every_plugin")
def test_an_unrelated_suite_sees_nothing_of_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")
    for args in ((), ("-v",), ("-n", "1"), ("--fixtures-per-test",)):
        result = pytester.runpytest_subprocess(*args)
        assert result.ret == 0
        assert "LLM" not in summary(result)
        assert "llm-latency:" not in summary(result)
    assert not (pytester.path / "voice").exists()


def test_strict_markers(pytester: pytest.Pytester, tiny_gguf: Path) -> None:
    pytester.makeini("[pytest]\naddopts = --strict-markers --strict-config\n")
    pytester.runpytest_subprocess(
        "--pyargs",
        "test_llm_latency",
        f"--llm-gguf={tiny_gguf}",
        "--llm-server=local",
        "-k",
        "server",
    ).assert_outcomes(passed=1, deselected=7)
    assert "llm_latency(step)" in pytester.runpytest_subprocess("--markers").stdout.str()


def test_quiet_prints_dots_and_the_table(lab: Run) -> None:
    result = lab("-q", "-k", "server")
    result.stdout.fnmatch_lines(["*= LLM latency =*", "server: http://127.0.0.1:*", "files: *"])
    assert "\x1b" not in result.stdout.str()
