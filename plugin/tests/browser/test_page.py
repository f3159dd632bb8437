"""The page in a real Chromium: what it shows, how it reads, and that it does nothing else."""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from scripted import wait_until

from pytest_llm_latency.language import language
from pytest_llm_latency.report.page import write
from pytest_llm_latency.report.story import read
from pytest_llm_latency.verdicts.verdict import count, milliseconds

from .conftest import NASTY, PIECES, Opened, run_lab, suite_in

pytestmark = pytest.mark.browser
Open = Callable[..., Opened]
RUNS = ("good_run", "broken_run", "nasty_run")
MAX_BYTES = 64 * 1024 * 1024
LARGEST_PAGE_BYTES = 1_500_000


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def artifact(run: Path, name: str) -> Any:
    return json.loads((run / f"{name}.json").read_text("utf-8"))


def shown(opened: Opened) -> dict[str, tuple[str, str]]:
    """(value, text) of every figure on the page, by name."""
    found: list[list[str]] = opened.page.evaluate(
        "[...document.querySelectorAll('data')].map(d => [d.dataset.name, d.value, d.textContent])"
    )
    return {name: (value, text) for name, value, text in found}


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_says_nothing_asks_nothing_and_is_accessible(
    run: Path, opened: Open, width: int, color_scheme: str
) -> None:
    found = opened(run / "report.html", width=width, color_scheme=color_scheme)
    axe = Axe().run(found.page)
    assert axe.violations_count == 0, axe.generate_report()
    assert found.console == []
    assert found.requests == [(run / "report.html").as_uri()]
    assert found.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_figure_is_the_artifacts(good_run: Path, opened: Open) -> None:
    figures = shown(opened(good_run / "report.html"))
    expected: dict[str, float | None] = {}

    def gather(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                gather(inner, f"{name}.{key}")
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                gather(inner, f"{name}[{number}]")
        elif not isinstance(value, str):
            expected[name] = value

    for name in ("ttft", "prefill", "cache", "sentence"):
        gather(artifact(good_run, name), name)
    cancel = artifact(good_run, "cancel")
    expected["cancel.cases[0].received_tokens"] = cancel["received_tokens"]
    expected["cancel.cases[0].closed_at_ms"] = cancel["closed_at_ms"]
    expected["cancel.cases[0].idle_after_ms"] = cancel["slot_idle_after_ms"]
    expected = {name: value for name, value in expected.items() if not name.endswith(".docs")}
    assert len(expected) > 30
    assert {name: float(figures[name][0]) for name in expected} == expected
    for name, value in expected.items():
        assert value is not None
        counts = name.endswith(("_n", "tokens"))
        assert figures[name][1] == (count(int(value)) if counts else milliseconds(value)), name


def test_the_bars_are_the_requests_without_gaps(good_run: Path, opened: Open) -> None:
    figures = shown(opened(good_run / "report.html"))
    sentence = artifact(good_run, "sentence")
    bar = "budget.short prompt"
    phases = [float(figures[f"{bar}.{name}"][0]) for name in ("prefill", "first token")]
    assert sum(phases) == pytest.approx(sentence["ttft_ms"])
    phases.append(float(figures[f"{bar}.first sentence"][0]))
    assert sum(phases) == pytest.approx(sentence["first_sentence_ms"])
    whole = sum(phases) + float(figures.get(f"{bar}.rest", ("0", ""))[0])
    assert whole == pytest.approx(sentence["total_ms"])


def test_the_line_is_that_of_the_points(good_run: Path, opened: Open) -> None:
    figures = shown(opened(good_run / "report.html"))
    slope = float(figures["prefill.fit.ms_per_token"][0])
    fixed = float(figures["prefill.fit.fixed_ms"][0])
    rows = artifact(good_run, "prefill")
    misses = [row["ttft_ms"] - fixed - slope * row["prompt_n"] for row in rows]
    # Least squares: what is left has no sum, and no slope.
    assert sum(misses) == pytest.approx(0.0, abs=1e-6 * rows[-1]["ttft_ms"])
    turned = sum(miss * row["prompt_n"] for miss, row in zip(misses, rows))
    assert turned == pytest.approx(0.0, abs=1e-3 * rows[-1]["ttft_ms"])
    for tokens in (1000, 4000, 8000):
        cost = float(figures[f"prefill.fit.{tokens}"][0])
        assert cost == pytest.approx(fixed + slope * tokens)


def test_what_is_broken_stands_first_with_its_cause(broken_run: Path, opened: Open) -> None:
    found = opened(broken_run / "report.html").page
    run = json.loads((broken_run / "run.json").read_text("utf-8"))
    broken = [
        verdict
        for step in run["steps"].values()
        for verdict in step.get("verdicts", [])
        if verdict["outcome"] == "broken"
    ]
    assert {verdict["cause"]["code"] for verdict in broken} >= {"cache-never-hits"}
    first = found.locator("main section").first
    assert first.get_attribute("id") == "wrong"
    words = first.inner_text()
    for verdict in broken:
        for part in (verdict["relation"], verdict["numbers"], verdict["cause"]["sentence"]):
            assert part in words
    assert f"{len(broken)} broken" in found.title()


def test_a_mark_tells_its_text_and_time(good_run: Path, opened: Open) -> None:
    found = opened(good_run / "report.html").page
    chunks = [
        json.loads(line) for line in (good_run / "chunks.jsonl").read_text("utf-8").splitlines()
    ]
    marks = found.locator("#tokens-chart svg g.mark-symbol path")
    assert marks.count() == len({chunk["t_ms"] for chunk in chunks})
    marks.nth(0).scroll_into_view_if_needed()
    marks.nth(0).hover(force=True)
    tooltip = found.locator("#vg-tooltip-element")
    tooltip.wait_for(state="visible")
    assert wait_until(lambda: f"{chunks[0]['t_ms']:,.1f}" in tooltip.inner_text())


@pytest.mark.parametrize("bypass_csp", [False, True])
def test_what_a_model_says_does_nothing(nasty_run: Path, opened: Open, bypass_csp: bool) -> None:
    """With the page's policy, and without it: it is the second lock, not the first."""
    found = opened(nasty_run / "report.html", bypass_csp=bypass_csp)
    found.page.locator("#tokens-chart svg g.mark-symbol path").nth(0).hover(force=True)
    found.page.locator("#vg-tooltip-element").wait_for(state="visible")
    for summary in found.page.locator("summary").all():
        summary.click()
    assert found.page.evaluate("window.pwned") is None
    assert found.console == []
    assert found.requests == [(nasty_run / "report.html").as_uri()]
    links = found.page.evaluate("[...document.links].map(link => link.getAttribute('href'))")
    assert all(link.startswith("#") for link in links)
    assert (
        found.page.locator("main img, main svg[onload], main form[action], main iframe").count()
        == 0
    )
    text = found.page.evaluate("document.documentElement.textContent")
    assert NASTY[0] in text
    # The chart library's own source has a few; what the page shows has none.
    shown = found.page.evaluate("document.querySelector('main').textContent")
    unseen = {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")} - set("\n\t")
    assert not unseen


def test_the_terminal_shows_nothing_that_a_model_can_use(nasty_run: Path) -> None:
    text = (nasty_run.parent / "out.txt").read_text("utf-8")
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_ten_thousand_pieces(long_run: Path, opened: Open) -> None:
    path = long_run / "report.html"
    assert path.stat().st_size < LARGEST_PAGE_BYTES
    found = opened(path)
    chunks = (long_run / "chunks.jsonl").read_text("utf-8").splitlines()
    assert len(chunks) == PIECES
    reads = len({json.loads(line)["t_ms"] for line in chunks})
    assert found.page.locator("#tokens-chart svg g.mark-symbol path").count() == reads
    found.page.mouse.wheel(0, 2000)
    assert wait_until(lambda: bool(found.page.evaluate("scrollY > 0")))
    assert found.console == []


def test_it_is_read_by_keyboard(good_run: Path, opened: Open) -> None:
    found = opened(good_run / "report.html").page

    def soon(expression: str) -> bool:
        """What a key does, it does after a while."""
        return wait_until(lambda: bool(found.evaluate(expression)))

    found.keyboard.press("Tab")
    assert soon("document.activeElement.className === 'skip'")
    found.keyboard.press("Enter")
    assert soon("location.hash === '#main'")
    details = found.locator("#sse details")
    details.locator("summary").focus()
    found.keyboard.press("Enter")
    assert soon("document.querySelector('#sse details').open")
    assert "data: [DONE]" in details.inner_text()


def test_it_prints_on_white(good_run: Path, opened: Open, tmp_path: Path) -> None:
    found = opened(good_run / "report.html", color_scheme="dark").page
    found.emulate_media(media="print")
    white = "getComputedStyle(document.body).backgroundColor"
    assert found.evaluate(white) == "rgb(255, 255, 255)"
    assert found.locator("nav").is_hidden()
    found.pdf(path=tmp_path / "page.pdf")
    pages = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "page.pdf").read_bytes()))
    assert 2 <= pages <= 12


def test_a_grading_has_the_same_figures(good_run: Path, opened: Open, tmp_path: Path) -> None:
    done = suite_in(tmp_path, f"--llm-grade={good_run}", f"--llm-page={tmp_path / 'graded.html'}")
    assert done.returncode == 0, done.stdout
    found = opened(tmp_path / "graded.html")
    assert shown(found) == shown(opened(good_run / "report.html"))
    assert "every value is derived again from the bytes" in found.page.inner_text("#verdicts")


def test_a_page_that_cannot_be_written_fails_the_run(good_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    page_path = tmp_path / "file" / "page.html"
    done = suite_in(tmp_path, f"--llm-grade={good_run}", f"--llm-page={page_path}", "-k", "server")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "page not made: cannot write" in done.stderr


def test_what_an_earlier_run_left_is_not_counted(
    good_run: Path, opened: Open, tmp_path: Path, tiny_gguf: Path
) -> None:
    run = Path(shutil.copytree(good_run, tmp_path / "llm"))
    run_lab(tmp_path, f"--llm-gguf={tiny_gguf}", "--llm-server=local", "-k", "server")
    found = opened(run / "report.html").page
    assert found.inner_text(".tally").strip() == "2 holds"
    assert "Measured by an earlier run:" in found.inner_text("#cache")
    # Nothing of one run is set against another's.
    assert found.locator("#budget, #levers").count() == 0


def test_what_could_not_be_measured_is_in_the_title(nasty_run: Path, opened: Open) -> None:
    found = opened(nasty_run / "report.html").page
    assert "not measured" in found.title()
    assert "not measured" in found.inner_text(".tally")
    assert found.locator("#cache .chart").count() == 0


def test_a_failure_that_left_nothing_is_told(good_run: Path, tmp_path: Path) -> None:
    """Before the step began (a budget, a server that never came): over an earlier run, too."""
    run = Path(shutil.copytree(good_run, tmp_path / "llm"))
    index = json.loads((run / "run.json").read_text("utf-8"))
    for section in ("steps", "artifacts"):
        rows = index[section].items()
        index[section] = {k: v for k, v in rows if "ttft" not in (k, v.get("step"))}
    (run / "run.json").write_text(json.dumps(index), "utf-8")
    story = read(run, MAX_BYTES, errors={"ttft": "spent", "cache": "spent, too"})
    views = {view.name: view for view in story.steps}
    assert (views["ttft"].error, views["cache"].error) == ("spent", "spent, too")
    assert not views["cache"].verdicts
    assert story.cache is None


def test_a_page_is_a_function_of_the_files(good_run: Path, tmp_path: Path) -> None:
    write(tmp_path / "again.html", good_run, MAX_BYTES)
    assert (tmp_path / "again.html").read_bytes() == (good_run / "report.html").read_bytes()


def test_a_directory_made_by_hand_has_a_page(good_run: Path, opened: Open, tmp_path: Path) -> None:
    by_hand = Path(shutil.copytree(good_run, tmp_path / "hand"))
    shutil.rmtree(by_hand / "evidence")
    (by_hand / "run.json").unlink()
    write(tmp_path / "page.html", by_hand, MAX_BYTES, [])
    found = opened(tmp_path / "page.html")
    assert found.console == []
    figures = shown(found)
    assert (
        float(figures["cache.second.ttft_ms"][0])
        == artifact(good_run, "cache")["second"]["ttft_ms"]
    )
    assert found.page.locator("#budget").count() == 0


def test_it_speaks_chinese(broken_run: Path, opened: Open, tmp_path: Path) -> None:
    write(tmp_path / "page.html", broken_run, MAX_BYTES, language=language("zh"))
    found = opened(tmp_path / "page.html")
    assert found.console == []
    assert found.page.locator("html").get_attribute("lang") == "zh-CN"
    axe = Axe().run(found.page)
    assert axe.violations_count == 0, axe.generate_report()
    # Words of ours; what a model or a server said, names and options stay as they are.
    texts = found.page.locator("h1, h2, h3, th[scope=col], caption, summary, .legend li, dt, nav a")
    for text in texts.all_inner_texts():
        assert not re.search(r"[a-z]{2,} [a-z]{2,}", text), text
    chart = found.page.locator("#budget-chart svg").inner_html()
    assert "milliseconds" not in chart
