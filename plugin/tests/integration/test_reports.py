"""What CI systems get: the job's summary, annotations, JUnit properties, pytest-html's rows."""

from __future__ import annotations

import html.parser
import json
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import chunk, vllm
from markdown_it import MarkdownIt
from scripted import Connection, Request, serving

from pytest_llm_latency.report import MADE_BY

from .conftest import Run, summary

ALLOWED = {"table", "tr", "td", "code", "br", "b", "details", "summary"}
COMMANDS = "oops\n::error title=pwned::x\n::stop-commands::y ##[error]z"
NASTY = "</code></table><img src=x onerror=alert(1)> [x](javascript:alert(1)) `b` @all #1 \x1b[31m\u202e"


@pytest.fixture
def bursting() -> Iterator[str]:
    """The URL of a server that holds its pieces back, and swears in its error messages."""
    engine = vllm()
    engine.models = (f"small![x](http://x/a.png) {NASTY}",)
    engine.needs_model = False

    def script(connection: Connection, request: Request) -> None:
        if request.target != "/v1/chat/completions" or not request.body.get("messages"):
            engine.script(connection, request)
            return
        if "Saturday" in request.body["messages"][-1]["content"]:
            connection.head(status="500 X", content_type="text/plain")
            connection.send(COMMANDS)
            return
        if "fasting" in request.body["messages"][-1]["content"]:
            connection.reply({"error": {"message": NASTY}}, "500 X")
            return
        time.sleep(0.25)
        texts = "".join(chunk({"content": f"word{n} "}) for n in range(40))
        connection.head()
        connection.send(texts + chunk({}, "stop") + "data: [DONE]\n\n")

    with serving(script) as server:
        yield server.base_url


class Tags(html.parser.HTMLParser):
    """Collects what tags a text has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[Any] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


@pytest.fixture
def in_a_workflow(
    lab: Run, bursting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[pytest.RunResult, Path]:
    """(a broken run in a GitHub workflow, its job's summary)."""
    path = tmp_path / "summary.md"
    path.write_text("what another step wrote\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = lab(
        *(f"--llm-url={bursting}", "--junit-xml=found.xml", "-k", "sse or sentence or prefill"),
        own_server=False,
    )
    return result, path


def test_a_workflow_is_told_what_is_wrong(
    in_a_workflow: tuple[pytest.RunResult, Path], pytester: pytest.Pytester
) -> None:
    result, path = in_a_workflow
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = path.read_text("utf-8")
    assert text.startswith("what another step wrote\n### LLM latency\n")
    wrong, _, everything = text.partition("<details>")
    assert "<b>burst</b>" in wrong
    assert "the pieces come as they are made" in wrong
    assert "t_ms never falls" not in wrong
    assert "t_ms never falls" in everything
    assert "onerror" in wrong  # the words of the server, of the step that it failed
    tags = Tags(text)
    assert tags.tags == ALLOWED
    assert tags.attributes == []
    rendered = Tags(MarkdownIt("commonmark").render(text))
    assert rendered.tags <= ALLOWED | {"h3", "p"}
    assert rendered.attributes == []
    assert "\x1b" not in text
    assert "\u202e" not in text

    assert "pwned" in summary(result)
    assert "##[" not in summary(result)
    assert not re.search(r"^\s*::(error title=pwned|stop)", summary(result), re.MULTILINE)
    lines = [line for line in result.outlines if line.startswith("::")]
    titles = {line.split("::")[1] for line in lines}
    assert "error title=llm-latency sse%3A the pieces come as they are made" in titles
    assert "error title=llm-latency sentence" in titles
    burst = next(line for line in lines if "as they are made" in line)
    assert "40 pieces in 1 arrivals; burst: " in burst
    assert all("\x1b" not in line and "\u202e" not in line for line in lines)

    root = ET.parse(pytester.path / "found.xml").getroot()
    properties = {p.get("name"): p.get("value") for p in root.iter("property")}
    assert properties["sse.pieces"] == "40"
    assert properties["sse: the pieces come as they are made"] == "broken"
    assert not [name for name in properties if str(name).startswith("sentence")]  # not measured


def test_a_summary_that_cannot_be_written_is_told_and_changes_nothing(
    lab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    result = lab("-k", "server")
    assert result.ret == 0
    assert "::error" not in summary(result)  # this is no workflow
    result.stdout.fnmatch_lines([f"the job's summary: cannot write {tmp_path}: Is a directory"])


def test_a_junit_file_has_every_number(lab: Run, pytester: pytest.Pytester) -> None:
    lab("--junit-xml=found.xml", "-k", "ttft or cancel")
    cases = ET.parse(pytester.path / "found.xml").getroot().iter("testcase")
    found = {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in cases
    }
    ttft = json.loads((pytester.path / "voice/llm/ttft.json").read_text("utf-8"))
    properties = found["test_ttft"]
    assert float(properties["ttft.ttft_p50"]) == ttft["ttft_p50"]
    for number, run in enumerate(ttft["runs"]):
        for name, value in run.items():
            assert float(properties[f"ttft.runs[{number}].{name}"]) == value
    assert "ttft: ttft < total in every run" in properties
    cancel = json.loads((pytester.path / "voice/llm/cancel.json").read_text("utf-8"))
    idle = found["test_cancel"]["cancel.slot_idle_after_ms"]
    assert idle == str(cancel["slot_idle_after_ms"] or "")
    assert "cancel: the next request is answered" in found["test_cancel"]


@pytest.mark.zoo
@pytest.mark.usefixtures("every_plugin")
def test_pytest_html_shows_verdicts_and_numbers(lab: Run, pytester: pytest.Pytester) -> None:
    assert lab("--html=found.html", "--self-contained-html", "-k", "ttft").ret == 0
    text = (pytester.path / "found.html").read_text("utf-8")
    ttft = json.loads((pytester.path / "voice/llm/ttft.json").read_text("utf-8"))
    shown = html.unescape(html.unescape(text))
    assert f"<code>ttft.ttft_p50</code></td><td>{ttft['ttft_p50']}</td>" in shown
    assert "<code>ttft < total in every run</code>" in shown


@pytest.mark.zoo
def test_a_grading_has_a_summary_of_its_own(
    lab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab("-k", "server").ret == 0
    path = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    assert lab("--llm-grade=voice/llm", "-k", "server", own_server=False).ret == 0
    text = path.read_text("utf-8")
    assert "graded: " in text
    assert "every value is derived again from the bytes" in text


@pytest.mark.zoo
@pytest.mark.usefixtures("every_plugin")
def test_every_target_has_its_summary(
    lab: Run, bursting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    with serving(vllm().script) as other:
        urls = f"--llm-url={bursting}", f"--llm-url={other.base_url}"
        lab(*urls, "-k", "sse", "-n", "2", own_server=False)
    text = path.read_text("utf-8")
    assert "### LLM latency, url1" in text
    assert "### LLM latency, url2" in text


WITHOUT_REPORT = (
    "from pytest_llm_latency.session import base\nbase.page_can_be_made = lambda: False\n"
)


def test_without_the_extra_no_page_and_none_that_is_older(
    lab: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(without_report=WITHOUT_REPORT)
    run = pytester.path / "voice" / "llm"
    run.mkdir(parents=True)
    (run / "report.html").write_text(f"<head>{MADE_BY}")
    result = lab("-k", "server", "-p", "without_report")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["page: not made: it needs the extra `report`: pip install *"])
    assert not (run / "report.html").exists()


def test_a_report_of_another_tool_is_left_alone(lab: Run, pytester: pytest.Pytester) -> None:
    run = pytester.path / "voice" / "llm"
    run.mkdir(parents=True)
    (run / "report.html").write_text("another tool's")
    assert lab("-k", "server").ret == 0
    assert (run / "report.html").read_text() == "another tool's"


def test_reporting_measures_nothing(pytester: pytest.Pytester, bursting: str) -> None:
    """A test of one's own that calls itself a step is no step that was measured."""
    pytester.makepyfile(
        """
        import pytest
        from pytest_llm_latency import Verdict

        @pytest.mark.llm_latency(step="cache")
        def test_mine(llm_client, llm_lab, llm_expect):
            prompt = [{"role": "user", "content": "Hello"}]
            llm_expect(Verdict("cache", "mine", "holds", "nothing"))
        """
    )
    result = pytester.runpytest_subprocess(
        f"--llm-url={bursting}", "-p", "no:cacheprovider", "--junit-xml=found.xml"
    )
    result.assert_outcomes(passed=1)
    assert not (pytester.path / "voice" / "llm" / "cache.json").exists()


def test_whatever_a_server_says_a_junit_file_is_xml(lab: Run, pytester: pytest.Pytester) -> None:
    engine = vllm()
    settings: Any = {"a\x01b": {"n_ctx": 5}, "n_ctx": 7}
    for _ in range(90):
        settings = {"n_ctx": 7, "deeper": settings}
    props = {"model_path": "x", "total_slots": 1, "default_generation_settings": settings}
    engine.paths["/props"] = (200, props)
    with serving(engine.script) as server:
        url = f"--llm-url={server.base_url}"
        lab(url, "-k", "server", "--junit-xml=found.xml", own_server=False)
    root = ET.parse(pytester.path / "found.xml").getroot()
    properties = {p.get("name"): p.get("value") for p in root.iter("property")}
    assert properties["server.default_generation_settings.n_ctx"] == "7"


def test_a_page_that_is_asked_for_needs_the_extra(refused: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(without_report=WITHOUT_REPORT)
    pytester.syspathinsert()
    result = refused("-k", "server", "-p", "without_report", "--llm-page=x.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--llm-page: it needs the extra `report`: pip install *"])
