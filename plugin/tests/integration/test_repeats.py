"""One measurement has one set of verdicts, however often and by whatever plugin its test runs; a
clock that a suite stops is not ours; a grading finds the lab's steps and the directory by itself;
and a suite that only has the plugin installed notices nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from .conftest import Run, summary

Artifact = Callable[[str], Any]
pytestmark = pytest.mark.usefixtures("every_plugin")
ENDED = "the stream has its end"


def rows(text: str, relation: str) -> list[str]:
    """The table's lines of a relation."""
    return [line for line in text.splitlines() if re.match(rf"\w+ +{relation} ", line)]


def graded(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "--llm-grade", "-k", "server or sse", *args
    )


@pytest.mark.parametrize(
    "args",
    [
        ("--count=2",), ("-x",), ("--reruns=2",),
        pytest.param(("--count=2", "--repeat-scope=session"), marks=pytest.mark.zoo),
        pytest.param(("-p", "no:junitxml"), marks=pytest.mark.zoo),
    ],
)  # fmt: skip
def test_verdicts_once(
    lab: Run,
    artifact: Artifact,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    xml = () if "no:junitxml" in args else ("--junit-xml=j.xml",)
    text = summary(lab("-k", "server or sse", *args, *xml))
    assert len(rows(text, ENDED)) == 1
    entry = artifact("run.json")["steps"]["sse"]
    relations = [verdict["relation"] for verdict in entry["verdicts"]]
    assert len(relations) == len(set(relations)) == 5
    assert (pytester.path / "summary.md").read_text().count(f"<code>{ENDED}</code>") == 1
    if xml:
        for case in ElementTree.parse(pytester.path / "j.xml").iter("testcase"):
            names = [one.get("name") for one in case.iter("property")]
            assert len(names) == len(set(names))
    graded(pytester).assert_outcomes(passed=2)


FLAKY = """
import pathlib
from pytest_llm_latency import relations

def test_stream(llm_client, llm_expect):
    answer = llm_client.stream([{"role": "user", "content": "hi"}], max_tokens=32)
    llm_expect(relations.comes_as_made(answer))
    llm_expect(relations.comes_as_made(answer))
    count = pathlib.Path("count")
    tries = len(count.read_text()) if count.exists() else 0
    count.write_text("x" * (tries + 1))
    assert tries >= 2
"""


def test_a_rerun_counts_once(pytester: pytest.Pytester, tiny_gguf: Any, artifact: Artifact) -> None:
    """Two verdicts of one test add up; those of the tries before it passed do not."""
    pytester.makepyfile(test_own=FLAKY)
    result = pytester.runpytest_subprocess(
        "--reruns=3", "--llm-server=local", f"--llm-gguf={tiny_gguf}", "-p", "no:cacheprovider"
    )
    assert "1 passed, 2 rerun" in summary(result)
    assert summary(result).count("the pieces come as they are made") == 2
    entry = artifact("run.json")["steps"]["test_own.py::test_stream"]
    assert (len(entry["verdicts"]), entry["outcome"]) == (2, "passed")


def test_a_repeated_step_is_measured_again(lab: Run, artifact: Artifact) -> None:
    lab("-k", "ttft")
    first = artifact("ttft.json")
    lab("-k", "ttft", "--count=2")
    assert artifact("ttft.json") != first
    costs = next(iter(artifact("run.json")["runs"].values()))["costs"]
    assert costs["requests"] >= 2 * 5  # and the look


FROZEN = """
import pytest, time
from freezegun import freeze_time
from pytest_llm_latency import relations

@pytest.fixture(autouse=True)
def frozen():
    with freeze_time("2026-01-15 12:00:00"):
        yield

def test_stream(llm_client, llm_expect):
    answer = llm_client.stream([{"role": "user", "content": "hi"}], max_tokens=32)
    assert 0 < answer.ttft_ms < answer.total_ms
    llm_expect(relations.ttft_below_total(answer), relations.comes_as_made(answer))

def test_patched(llm_client, llm_expect, monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 7.0)
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    answer = llm_client.stream([{"role": "user", "content": "hi"}], max_tokens=32)
    assert 0 < answer.ttft_ms < answer.total_ms
"""


def test_a_stopped_clock_is_not_ours(pytester: pytest.Pytester, slow_gguf: Any) -> None:
    pytester.makepyfile(test_own=FROZEN)
    result = pytester.runpytest_subprocess(
        "--llm-server=local", f"--llm-gguf={slow_gguf}", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=2)
    # Whose it is depends on the test that runs first (pytest-randomly).
    note = "note: own: the clock of this process is not the system's (time."
    assert summary(result).count(note) == 1


def test_grading_needs_no_arguments(lab: Run, pytester: pytest.Pytester) -> None:
    """Not even where other tests lie in the current directory."""
    lab("-k", "server or sse")
    pytester.makepyfile(test_other="def test_other(): raise SystemError")
    for option in ("--llm-grade", "--llm-grade=voice/llm"):
        result = pytester.runpytest_subprocess(option, "-p", "no:cacheprovider", "-k", "sse")
        result.assert_outcomes(passed=1, deselected=7)
    elsewhere = pytester.path / "elsewhere"
    (pytester.path / "voice" / "llm").rename(elsewhere)
    result = graded(pytester, f"--llm-artifacts={elsewhere}")
    result.assert_outcomes(passed=2, deselected=6)
    result = pytester.runpytest_subprocess(f"--llm-grade={elsewhere}", "test_other.py")
    assert "pytest --pyargs test_llm_latency --llm-grade=DIR" in summary(result)


OTHERS = """
import pytest

@pytest.fixture
def llm_client():
    return "mine"

@pytest.fixture(params=["a", "b"])
def llm_target(request):
    return request.param

def test_mine(llm_client, llm_target):
    assert llm_client == "mine"

@pytest.fixture
def llm_server(llm_settings):
    return llm_settings
"""
OVERRIDES = """
import pytest

@pytest.fixture
def llm_client(llm_client):
    return llm_client

def test_mine(llm_client):
    pass
"""


@pytest.mark.parametrize(
    "args",
    [(), ("-p", "no:timeout"), ("-p", "no:order"), ("-p", "no:terminal"), ("-W", "error"), ("--strict-markers",), ("-n", "2"), ("--llm-url=http://127.0.0.1:9", "--llm-url=http://127.0.0.1:8")],
)  # fmt: skip
def test_a_suite_with_fixtures_of_these_names(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_own=OTHERS)
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider", *args).ret == 0
    assert not (pytester.path / "voice").exists()


def test_a_fixture_that_overrides_ours_is_ours(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own=OVERRIDES)
    result = pytester.runpytest_subprocess("--llm-url=http://127.0.0.1:9", "-p", "no:cacheprovider")
    assert "http://127.0.0.1:9" in summary(result)
    assert result.ret == 1


@pytest.mark.parametrize("args", [("-p", "no:order", "--strict-markers"), ("-p", "no:timeout"), ("-p", "no:pytest_order")])  # fmt: skip
def test_the_lab_without_the_plugins_it_uses(lab: Run, args: tuple[str, ...]) -> None:
    lab("-k", "sse", *args).assert_outcomes(passed=1, deselected=7)


def test_with_this_plugin_alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile("def test_a(): pass")
    pytester.runpytest_subprocess("-p", "pytest_llm_latency.plugin").assert_outcomes(passed=1)


CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--llm-url", default="theirs")
    parser.addoption("--endpoint", dest="llm_model", default="theirs")
"""
THEIRS = """
def test_a(request):
    assert request.config.getoption("--llm-url") in ("theirs", "http://u")
    assert request.config.getoption("--endpoint") == "theirs"
"""


@pytest.mark.parametrize("args", [(), ("--llm-url=http://u",), ("--llm-url", "http://u"), ("-n", "2")])  # fmt: skip
def test_a_suite_with_options_of_these_names(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_theirs=THEIRS)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", *args).assert_outcomes(passed=1)


@pytest.mark.parametrize("is_alone", [False, True])
def test_two_options_of_a_name_are_told_apart_where_ours_is_used(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    """With the plugin loaded by its entry point, and by the conftest itself."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    if is_alone:
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        pytester.makeconftest("pytest_plugins = ['pytest_llm_latency.plugin']\n" + CONFTEST)
    else:
        pytester.makeconftest(CONFTEST)
    pytester.makepyfile("def test_ours(llm_client): pass")
    result = pytester.runpytest_subprocess("--llm-url=http://127.0.0.1:9", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    conftest = pytester.path / "conftest.py"
    result.stderr.fnmatch_lines([f"ERROR: --llm-url: {conftest} adds an option of this name, *"])


def test_a_value_of_ours_is_no_place_of_tests(pytester: pytest.Pytester) -> None:
    """pytest looks for conftests before our options are registered."""
    place = pytester.mkdir(".documents")  # which a collection leaves out
    (place / "conftest.py").write_text("raise RuntimeError('not to be loaded')")
    pytester.makeconftest("def pytest_report_header(): return 'the conftest here'")
    pytester.makepyfile("def test_a(): pass")
    result = pytester.runpytest_subprocess("--llm-kb", str(place), "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["the conftest here"])
