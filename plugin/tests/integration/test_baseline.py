"""A run beside an earlier one: what is the same passes, what is worse fails in its own step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines import Engine
from scripted import Connection, Request, serving

from .conftest import Run, summary

STEPS = "ttft or prefill or cache or sentence"


def engine(**fields: Any) -> Engine:
    """A server with a cache: the lab's long prompt takes 70 ms, a repeated one 12."""
    return Engine(caches=True, answers=9, characters_a_second=80_000.0, **fields)


def measured(lab: Run, one: Engine, *args: str) -> pytest.RunResult:
    with serving(one.script) as server:
        return lab(f"--llm-url={server.base_url}", *args, own_server=False)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the baseline is kept, which is recorded once."""
    return tmp_path_factory.mktemp("baseline") / "llm"


@pytest.fixture
def base(lab: Run, kept: Path) -> Path:
    """A run of the four steps that have ratios."""
    if not kept.exists():
        args = ("-k", STEPS, "--llm-rounds=5", f"--llm-artifacts={kept}")
        measured(lab, engine(), *args).assert_outcomes(passed=4, deselected=4)
    return kept


@pytest.fixture
def graded(pytester: pytest.Pytester) -> Run:
    """`graded("-k", "cache")`: the run's directory from its files alone."""

    def run(*args: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess(
            "--pyargs", "test_llm_latency", "-p", "no:cacheprovider", "--llm-grade=voice/llm", *args
        )

    return run


@pytest.fixture
def entry(pytester: pytest.Pytester) -> Callable[[str], Any]:
    """A step's entry in run.json."""

    def read(step: str) -> Any:
        return json.loads((pytester.path / "voice/llm/run.json").read_text("utf-8"))["steps"][step]

    return read


@pytest.mark.zoo
def test_the_same_server_passes(
    lab: Run,
    base: Path,
    graded: Run,
    entry: Callable[[str], Any],
    pytester: pytest.Pytester,
) -> None:
    result = measured(lab, engine(), "-k", STEPS, f"--llm-baseline={base}", "--llm-tolerance=1")
    result.assert_outcomes(passed=4, deselected=4)
    result.stdout.fnmatch_lines(
        [
            f"llm-latency: baseline: {base}; *",
            "ttft *what held in the baseline is not broken * holds *2 held there",
            "ttft *ttft / total is no worse than in the baseline * x*(noise x*, tolerance x2.00)*",
            "prefill *prompt / generated token is no worse than in the baseline * x*",
            "cache *cached / cold ttft is no worse than in the baseline * x*",
            "sentence *first sentence / total is no worse than in the baseline * x*",
        ]
    )
    for step in ("ttft", "prefill", "cache", "sentence"):
        found = entry(step)
        assert not any("baseline" in verdict["relation"] for verdict in found["verdicts"])
        assert [len(found["compared"][side]["rounds"]) for side in ("here", "there")] == [5, 5]
        assert len(found["compared"]["verdicts"]) == 2
    # From the files alone: the step's own verdicts are as they were, and the comparison, too.
    again = graded("-k", STEPS, f"--llm-baseline={base}", "--llm-tolerance=1")
    again.assert_outcomes(passed=4, deselected=4)
    for step in ("ttft", "prefill", "cache", "sentence"):
        for verdict in entry(step)["compared"]["verdicts"]:
            assert verdict["numbers"] in summary(again)
    # Beside a baseline that has changed since nothing is judged, and that is said.
    changed = Path(shutil.copytree(base, pytester.path / "changed"))
    evidence = changed / "evidence/cache/salted-second-1.jsonl"
    evidence.write_text(evidence.read_text("utf-8") + "\n", "utf-8")
    again = graded("-k", "cache", "--llm-baseline=changed")
    again.assert_outcomes(passed=1, deselected=7)
    again.stdout.fnmatch_lines(
        ["cache *no worse than in the baseline *not judged *salted-second-1.jsonl: changed since*"]
    )


@pytest.mark.zoo
def test_a_cache_that_is_dead_now(lab: Run, base: Path, entry: Callable[[str], Any]) -> None:
    one = engine()
    one.caches = False
    result = measured(lab, one, "-k", "cache", f"--llm-baseline={base}")
    result.assert_outcomes(failed=1, deselected=7)
    assert "cause held-in-baseline: in the baseline it held (" in summary(result)
    result.stdout.fnmatch_lines(
        [
            "cache *what held in the baseline is not broken *BROKEN *second < first in prompt_n: * tokens there, * tokens here*",
            "cache *cached / cold ttft *not judged *the step does not hold here*",
        ]
    )
    assert entry("cache")["compared"]["verdicts"][0]["cause"]["code"] == "held-in-baseline"


@pytest.mark.zoo
def test_a_cache_that_saves_less_fails_alone(lab: Run, base: Path, graded: Run) -> None:
    args = ("-k", "ttft or cache", f"--llm-baseline={base}")
    result = measured(lab, engine(cached_s=0.05), *args, "-v")
    result.assert_outcomes(passed=1, failed=1, deselected=6)
    result.stdout.fnmatch_lines(
        [
            "*test_ttft PASSED*",
            "*test_cache FAILED*",
            "cache: broken: cached / cold ttft is no worse than in the baseline",
            "  cause worse-than-baseline: * Either the cached prompt got slower *; or a cold prompt got faster",
        ]
    )
    # The directory tells the same later; by itself it is as good as any.
    again = graded("-k", "cache", f"--llm-baseline={base}")
    again.assert_outcomes(failed=1, deselected=7)
    assert "cause worse-than-baseline" in summary(again)
    graded("-k", "cache").assert_outcomes(passed=1, deselected=7)


def test_what_cannot_be_compared_is_said_and_fails_nothing(lab: Run, base: Path) -> None:
    """Another text, and a step that the baseline lacks."""
    args = ("-k", "sse or sentence", f"--llm-baseline={base}", "--llm-rounds=1")
    result = measured(lab, engine(word="other"), *args)
    result.assert_outcomes(passed=2, deselected=6)
    result.stdout.fnmatch_lines(
        [
            "sse *no worse than in the baseline *not judged *the run has not measured the step 'sse'*",
            "sentence *first sentence / total *not judged *not the same text*",
        ]
    )


def test_files_alone_beside_a_run(base: Path, graded: Run, pytester: pytest.Pytester) -> None:
    """A directory made by hand has one sample of most, and none of what its files do not say."""
    by_hand = pytester.path / "voice" / "llm"
    shutil.copytree(base, by_hand, ignore=shutil.ignore_patterns("run.json", "evidence"))
    result = graded("-k", STEPS, f"--llm-baseline={base}")
    result.assert_outcomes(passed=4, deselected=4)
    result.stdout.fnmatch_lines(
        [
            "ttft *ttft / total is no worse *x1.00 (noise x*",
            "prefill *prompt / generated token is no worse * not judged *no ratio here; the files alone*",
            "cache *cached / cold ttft is no worse * not judged *x*(noise x*",
            "sentence *first sentence / total is no worse * not judged *x*(noise x*",
        ]
    )


@pytest.mark.zoo
def test_prefill_that_is_slower_now(lab: Run, base: Path) -> None:
    one = engine()
    one.characters_a_second /= 3

    def slow(connection: Connection, request: Request) -> None:
        one.script(connection, request)

    with serving(slow) as server:
        args = (f"--llm-url={server.base_url}", f"--llm-baseline={base}")
        result = lab(*args, "-k", "prefill or cache", "-v", own_server=False)
    result.assert_outcomes(passed=1, failed=1, deselected=6)
    result.stdout.fnmatch_lines(
        ["*test_prefill FAILED*", "*Either prefill got slower; or generation got faster"]
    )


def no_run(directory: Path) -> None:
    (directory / "run.json").unlink()


def other_version(directory: Path) -> None:
    run = json.loads((directory / "run.json").read_text("utf-8"))
    (directory / "run.json").write_text(json.dumps(run | {"version": 99}), "utf-8")


@pytest.mark.parametrize(
    ("args", "edit", "words"),
    [
        (("--llm-baseline=nowhere",), None, "--llm-baseline: *nowhere is not a directory"),
        (("--llm-baseline=kept",), no_run, "--llm-baseline: *kept has no run.json"),
        (("--llm-baseline=kept",), other_version, "--llm-baseline: *kept: run.json: expected *"),
        (("--llm-baseline=kept", "--llm-artifacts=kept/../kept"), None, "*kept is this run's own directory: copy it first*"),
        (("--llm-baseline=kept", "--llm-grade=kept"), None, "*kept is this run's own directory*"),
        (("--llm-baseline=kept", "--llm-url=http://127.0.0.1:2"), None, "*several targets do not go with a baseline*"),
        (("--llm-tolerance=some",), None, "*give a share of 0 or more, such as 0.25"),
        (("--llm-tolerance=-0.1",), None, "*give a share of 0 or more, such as 0.25"),
        (("--llm-tolerance=nan",), None, "*give a share of 0 or more, such as 0.25"),
        (("--llm-rounds=0",), None, "*a whole number of rounds, at least 1"),
    ],
)  # fmt: skip
def test_what_can_be_no_baseline_is_refused_first(
    refused: Run,
    pytester: pytest.Pytester,
    args: tuple[str, ...],
    edit: Callable[[Path], None] | None,
    words: str,
) -> None:
    kept = pytester.mkdir("kept")
    index = {"format": "pytest-llm-latency/run", "version": 1, "run": ""}
    sections: dict[str, Any] = {name: {} for name in ("runs", "steps", "failures", "artifacts")}
    (kept / "run.json").write_text(json.dumps(index | sections))
    if edit is not None:
        edit(kept)
    before = {path: path.read_bytes() for path in kept.iterdir()}
    url = () if "--llm-grade=kept" in args else ("--llm-url=http://127.0.0.1:1",)
    result = refused(*url, *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {words}*"])
    assert {path: path.read_bytes() for path in kept.iterdir()} == before
