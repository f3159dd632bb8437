"""Forged directories of a run: each contradicts itself and is caught by a sentence that names the
place, or stands in the list of what a forger can still do.

A forgery changes files; artifacts, verdicts and hashes are then made anew (`forging.repair`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from engines import Engine, openai, router
from forging import (
    MAX_BYTES,
    STEPS,
    Forgery,
    Rows,
    asked,
    both,
    copy,
    drop,
    edit,
    edit_longest,
    end,
    every,
    facts,
    head,
    index,
    moved,
    offers,
    place,
    prompt,
    repair,
    replaced,
    rows_of,
    wrong,
)
from scripted import Connection, serving

from pytest_llm_latency.lab.graded import GradedLab
from pytest_llm_latency.plan import salt_of
from pytest_llm_latency.steps.judges import JUDGES

ROOT = Path(__file__).parents[3]
CHATS = {
    "sse/stream-1": "sse", "ttft/2": "ttft", "prefill/4docs-1": "prefill", "cache/second-1": "cache",
    "sentence/stream-1": "sentence", "cancel/close-at": "cancel", "cancel/prefill": "cancel", "cancel/next": "cancel",
}  # fmt: skip


def measured(directory: Path, *args: str) -> str:
    """A run of the lab."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "--pyargs", "test_llm_latency", "-p", "no:cacheprovider",
            f"--llm-artifacts={directory}", *args,
        ],
        cwd=directory.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Path:
    """All eight steps on a server of the run's own: with a log, /slots and counts."""
    directory = tmp_path_factory.mktemp("own") / "llm"
    told = measured(
        directory, f"--llm-gguf={tiny_gguf}", "--llm-server=local", "--llm-server-args=-t 1"
    )
    # A busy machine may leave a step undecided; but each was measured.
    assert set(STEPS) <= set(json.loads((directory / "run.json").read_text("utf-8"))["steps"]), told
    return directory


class OneAtATime(Engine):
    """It works on one request at a time, and has nothing that shows whether it does."""

    _turn = threading.Lock()

    def _chat(self, connection: Connection, body: dict[str, Any]) -> None:
        with self._turn:
            super()._chat(connection, body)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps at a URL that counts nothing: with salts, and one-token requests."""
    engine = OneAtATime(usage=False, answers=60)
    with serving(engine.script) as server:
        directory = tmp_path_factory.mktemp("elsewhere") / "llm"
        told = measured(directory, f"--llm-url={server.base_url}", "-k", "ttft or cancel")
    assert {"ttft", "cancel"} <= set(
        json.loads((directory / "run.json").read_text("utf-8"))["steps"]
    ), told
    return directory


def graded(run: Path, tmp_path: Path, forge: Forgery, *steps: str) -> dict[str, str]:
    """What is wrong in a forged copy."""
    directory = Path(shutil.copytree(run, tmp_path / "x"))
    forge(directory)
    repair(directory, *(steps if len(steps) == 1 else STEPS[:-1]))
    return wrong(directory, *steps)


def test_an_honest_run_passes(own: Path, elsewhere: Path, tmp_path: Path) -> None:
    assert wrong(own, *STEPS) == {}
    assert wrong(elsewhere, "ttft", "cancel") == {}
    assert (
        graded(own, tmp_path, lambda directory: None, *STEPS) == {}
    )  # nor does `repair` change it


def of_before(directory: Path) -> None:
    """As an earlier version left it, which kept less."""
    facts(lambda run: run.pop("plan"))(directory)
    for step in STEPS[1:-1]:
        every(f"{step}/*", lambda leg: edit(leg, lambda rows: rows[0].pop("clock_off_ms", None)))(
            directory
        )


def test_a_run_of_before_passes(own: Path, tmp_path: Path) -> None:
    assert graded(own, tmp_path, of_before, *STEPS) == {}


def of_another_version(directory: Path) -> None:
    """As another version left it: its sentences were other ones."""
    run = json.loads((directory / "run.json").read_text("utf-8"))
    run["runs"][run["run"]]["versions"]["pytest-llm-latency"] = "0.0.1"
    for entry in run["steps"].values():
        rows = entry.get("verdicts", [])
        for verdict in rows:
            verdict["numbers"] = "in other words"
            if verdict["cause"] is not None:
                verdict["cause"]["sentence"] = "because it is so"
        rows += [{**verdict, "relation": "one that is no more"} for verdict in rows[:1]]
    (directory / "run.json").write_text(json.dumps(run), "utf-8")


def test_a_run_of_another_version_is_graded_by_its_verdicts_and_not_by_their_words(
    own: Path, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(own, tmp_path / "x"))
    of_another_version(directory)
    assert wrong(directory, *STEPS) == {}


@pytest.mark.parametrize("change", [{"outcome": "broken"}, {"cause": {"code": "x"}}])
def test_another_verdict_in_a_run_of_another_version(
    own: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    directory = Path(shutil.copytree(own, tmp_path / "x"))
    of_another_version(directory)
    run = json.loads((directory / "run.json").read_text("utf-8"))
    run["steps"]["cache"]["verdicts"][0].update(change)
    (directory / "run.json").write_text(json.dumps(run), "utf-8")
    assert "run.json: verdicts" in wrong(directory, "cache")["cache"]


@pytest.mark.parametrize("leg", ["ttft/2", "prefill/12docs-1", "cache/second-1"])
@pytest.mark.parametrize(
    "kind", ["no messages", "another path", "another model", "another question", "a message more"]
)
def test_another_request_in_a_run_of_before(own: Path, tmp_path: Path, leg: str, kind: str) -> None:
    """Its plan is not known; but its requests must agree with each other."""
    step = leg.partition("/")[0]
    assert (
        f"evidence/{step}/"
        in graded(own, tmp_path, both(of_before, REQUESTS[kind][1](leg)), step)[step]
    )


PLAN = """
from dataclasses import replace
import pytest
from pytest_llm_latency.plan import Plan

@pytest.fixture(scope="session")
def llm_plan():
    return replace(Plan(), system="Be brief.", kb_question="Open?", doc_counts=(1, 3), ttft_runs=2, max_tokens=20)
"""
HONEST: dict[str, tuple[Engine, str, tuple[str, ...]]] = {
    "documents of one's own": (Engine(caches=True, answers=40), "prefill or cancel", ("--llm-kb=kb",)),
    "documents of one's own, cached": (Engine(caches=True), "prefill or cache", ("--llm-kb=kb",)),
    "a plan of one's own": (Engine(caches=True), "sse or ttft or prefill", ()),
    "a strict API, and fields of one's own": (openai(), "sse or sentence", ('--llm-body={"seed": 7}', "--llm-rounds=2")),
    "a model that reasons": (Engine(reasons=5, answers=20), "sse or sentence", ()),
    "a router": (router(), "server or sse", ()),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_run_of_another_kind_passes(tmp_path: Path, name: str) -> None:
    engine, steps, args = HONEST[name]
    (tmp_path / "kb").mkdir()
    for number in range(14):
        (tmp_path / "kb" / f"{number:02}.md").write_text(
            f"Room {number} opens at {number}.\n\nIt closes.\n"
        )
    if "a plan" in name:
        (tmp_path / "conftest.py").write_text(PLAN)
    with serving(engine.script) as server:
        told = measured(tmp_path / "llm", f"--llm-url={server.base_url}", "-k", steps, *args)
    assert wrong(tmp_path / "llm", *steps.split(" or ")) == {}, told
    if "a plan" in name:
        assert "doc_counts" in shown(tmp_path / "llm", "prefill")


def test_steps_of_several_runs_pass(tmp_path: Path) -> None:
    engine = Engine(caches=True)
    with serving(engine.script) as server:
        for steps in ("sse or ttft or sentence", "ttft", "sse"):
            told = measured(tmp_path / "llm", f"--llm-url={server.base_url}", "-k", steps)
    assert wrong(tmp_path / "llm", "sse", "ttft", "sentence") == {}, told


# --- other requests than the step sends ---

REQUESTS: dict[str, tuple[str, Any]] = {
    "no messages": ("no messages of role and text", lambda leg: asked(leg, messages=[])),
    "messages left out": ("no messages of role and text", lambda leg: asked(leg, messages=None)),
    "another path": ("the path is '/v1/completions'", lambda leg: asked(leg, path="/v1/completions")),
    "another method": ("method", lambda leg: asked(leg, method="GET")),
    "another model": ("model is \"smaller\"", lambda leg: asked(leg, model="smaller")),
    "fewer tokens": ("max_tokens is 5", lambda leg: asked(leg, max_tokens=5)),
    "a field more": ("it has 'seed'", lambda leg: asked(leg, seed=1)),
    "no usage asked for": ("it lacks 'stream_options'", lambda leg: asked(leg, stream_options=None)),
    "another question": ("messages[", lambda leg: prompt(leg, lambda text: text.replace("?", " now?") + ".", -1)),
    "a message more": ("messages, expected", lambda leg: edit(leg, lambda rows: rows[0]["request"]["body"]["messages"].append({"role": "user", "content": "hi"}))),
}  # fmt: skip


@pytest.mark.parametrize("leg", CHATS)
@pytest.mark.parametrize("kind", REQUESTS)
def test_another_request(own: Path, tmp_path: Path, leg: str, kind: str) -> None:
    words, forge = REQUESTS[kind]
    found = graded(own, tmp_path, forge(leg), CHATS[leg])
    assert leg.partition("/")[2] in found[CHATS[leg]], found
    assert words in found[CHATS[leg]]


# --- all else ---


def text_before_head(rows: Rows) -> None:
    rows[0]["headers_ms"] = rows[-1]["t_ms"]


def swapped_reads(rows: Rows) -> None:
    rows[1]["t_ms"], rows[-2]["t_ms"] = rows[-2]["t_ms"], rows[1]["t_ms"]


def later_text(rows: Rows) -> None:
    rows.insert(-1, {"t_ms": rows[-1]["t_ms"], "text": ": a comment\n\n"})


def short_length(rows: Rows) -> None:
    rows[0]["response_headers"] = [["Content-Type", "text/event-stream"], ["Content-Length", "10"]]


def documents(change: Any) -> Any:
    """The system prompt with its documents changed (each begins with a heading)."""

    def edit_prompt(text: str) -> str:
        system, *parts = text.split("\n\n# ")
        return "\n\n# ".join([system, *change(parts)])

    return edit_prompt


def salted_leg(name: str) -> Forgery:
    """The cache step's leg once more, a little slower, with a salt in its prompt."""
    leg = f"cache/salted-{name}-1"
    salt = f"Call {'cd' * 8}.\n"

    def salted(text: str) -> str:
        return text.replace("You are", f"{salt}You are", 1)

    made = copy(f"cache/{name}-1", leg, lambda t: 1.01 * t)
    return made if name == "clearing" else both(made, prompt(leg, salted))


def closed_late(rows: Rows) -> None:
    rows[-1].update(end="eof", t_ms=9000.0)


def closed_early(rows: Rows) -> None:
    moved(rows, lambda t: t / 1000)
    rows[-1]["end"] = "closed"


def reads_after_close(rows: Rows) -> None:
    comment = {"text": ": a comment\n\n"}
    rows[-1:] = [{"t_ms": 700.0, **comment}, {"t_ms": 800.0, **comment}, {**rows[-1], "t_ms": 900.0, "end": "closed"}]  # fmt: skip


def reads_after_token(rows: Rows) -> None:
    comment = {"text": ": a comment\n\n"}
    last = rows[-1]
    rows[-1:] = [
        {"t_ms": last["t_ms"] + 1, **comment},
        {"t_ms": last["t_ms"] + 2, **comment},
        {**last, "t_ms": last["t_ms"] + 3},
    ]


def hidden_log(run: dict[str, Any]) -> None:
    """As of a run that was given none."""
    entry = run["steps"]["cancel"]
    entry["log_source"] = None
    for case in entry["cases"]:
        case["log_span"] = None
    del run["artifacts"]["server.log"]


def span(name: str, **changes: int) -> Forgery:
    def change(run: dict[str, Any]) -> None:
        cases = run["steps"]["cancel"]["cases"]
        next(case for case in cases if case["name"] == name)["log_span"].update(changes)

    return index(change)


def of_run(run_id: str, step: str) -> Forgery:
    """A step of a run of this id."""

    def change(run: dict[str, Any]) -> None:
        run["steps"][step]["run"] = run_id
        for entry in run["artifacts"].values():
            if entry["step"] == step:
                entry["run"] = run_id

    return index(change)


def listed(name: str, step: str) -> Forgery:
    """An entry of a file that no step writes, and the file."""

    def forge(directory: Path) -> None:
        (directory / name).parent.mkdir(exist_ok=True, parents=True)
        (directory / name).write_text("x\n")
        index(lambda run: run["artifacts"].update({name: {"run": run["run"], "step": step, "sha256": ""}}))(directory)  # fmt: skip

    return forge


def polls(leg: str, change: Any) -> Forgery:
    return edit(f"cancel/{leg}.polls", change)


def busy_for_an_hour(rows: Rows) -> None:
    rows[-1]["asked_ms"], rows[-1]["answered_ms"] = 3.6e6, 3.6e6 + 1


def no_slots(directory: Path) -> None:
    """As of a server that has none."""
    offers(slots=None, slots_field=None, slots_missing="the server offers no /slots")(directory)
    head("cancel/slots", status=501)(directory)
    for path in (directory / "evidence" / "cancel").glob("*.polls.jsonl"):
        path.write_text("")


def key_twice(name: str, old: str, new: str) -> Forgery:
    return replaced(name, old, new + old)


# (the step that must say it, one of the words it must say, the forgery)
FORGERIES: dict[str, tuple[str, str, Forgery]] = {
    # clocks and connections
    "text before the head": ("ttft", "jsonl: read", edit_longest("ttft", text_before_head)),
    "a head after the end": ("ttft", "headers_ms is 90000", head("ttft/2", headers_ms=90000.0)),
    "a first text long before the head": ("sentence", "because headers_ms says", edit("sentence/stream-1", lambda r: (moved(r, lambda t: t + 20000), r[1].update(t_ms=1.0)))),
    "reads that fall": ("ttft", "reads come one after the other", edit_longest("ttft", swapped_reads)),
    "reads that fall, of a cold leg": ("cache", "reads come one after the other", edit_longest("cache", swapped_reads)),
    "an end before the last read": ("sentence", "because its last read came then", end("sentence/stream-1", t_ms=0.001)),
    "a wait for a core longer than the exchange": ("ttft", "cpu_wait_ms is 100000", head("ttft/2", cpu_wait_ms=1e5)),
    "text behind [DONE]": ("ttft", "reading stops there", edit("ttft/2", later_text)),
    "a close that no step makes": ("ttft", "only the cancel step closes", end("ttft/2", end="closed")),
    "an end of a stream with a failure's words": ("ttft", "its end has the detail", end("ttft/2", detail="the connection broke: x")),
    "a status that is none": ("ttft", "status is 200.0", head("ttft/2", status=200.0)),
    "a status of an error": ("ttft", "HTTP 500|lacks the leg 'salted-1'", head("ttft/2", status=500)),
    "no status, and an answer": ("prefill", "status is null|the stream was cut short", head("prefill/0docs-1", status=None)),
    "a stream without a head": ("ttft", "headers_ms and status do not agree", head("ttft/2", headers_ms=None)),
    "a length that the body exceeds": ("ttft", "Content-Length says so", edit("ttft/2", short_length)),
    "stamps worth less in one recording": ("ttft", "stamps of this run", head("ttft/2", jitter_ms=50.0)),
    "stamps worth less in all": ("sentence", "stamps of this run", every("sentence/*", lambda leg: head(leg, jitter_ms=50.0))),
    "stamps worth less in run.json": ("sse", "stamps of this run", facts(lambda run: run["stamps"].update(jitter_ms=50.0))),
    "read by the rules of before": ("ttft", "reading is 1", head("ttft/2", reading=1)),
    "a time that is none": ("ttft", "no time in milliseconds", end("ttft/2", t_ms=-1.0)),
    "another request's label": ("ttft", "is labelled 'ttft/1'", head("ttft/2", label="ttft/1")),
    "another step's label": ("prefill", "is labelled", head("prefill/4docs-1", label="ttft/1")),
    # copies
    "a run copied": ("ttft", "a copy of another", copy("ttft/4", "ttft/5")),
    "the stream of the sse step as a run": ("ttft", "a copy of another", copy("sse/stream-1", "ttft/1")),
    "a run as the sentence": ("sentence", "a copy of another", copy("ttft/1", "sentence/stream-1")),
    "the cold leg twice": ("cache", "a copy of another", copy("cache/first-1", "cache/changed_prefix-1")),
    "the cached leg as the changed end": ("cache", "a copy of another", copy("cache/second-1", "cache/changed_suffix-1")),
    "the cold leg as the longest prefill": ("cache", "a copy of another", copy("prefill/12docs-1", "cache/first-1")),
    "an answer as the next request's": ("cancel", "a copy of another", copy("ttft/3", "cancel/next")),
    # prompts
    "documents in another order": ("prefill", "messages[0]", prompt("prefill/4docs-1", documents(lambda parts: parts[::-1]))),
    "a document left out": ("prefill", "messages[0]", prompt("prefill/12docs-1", documents(lambda parts: parts[:-1]))),
    "a document twice": ("prefill", "messages[0]", prompt("prefill/4docs-1", documents(lambda parts: [parts[0], *parts]))),
    "documents in another order, in all prompts": ("prefill", "messages[0]", both(every("prefill/*", lambda leg: prompt(leg, documents(lambda parts: parts[::-1])) if "0docs" not in leg else both()), every("cache/*-1", lambda leg: prompt(leg, documents(lambda parts: parts[::-1])) if "clearing" not in leg else both()))),
    "another document in the cached prompt": ("cache", "messages[0]", prompt("cache/second-1", documents(lambda parts: [*parts[:3], "other", *parts[4:]]))),
    "the changing line at the end": ("cache", "messages[0]", prompt("cache/changed_prefix-1", lambda text: text.removeprefix("Current time: 14:05. ") + "\n\nCurrent time: 14:05.")),
    "a salt where none is": ("ttft", "expected the contrary", prompt("ttft/2", lambda text: f"Call {'ab' * 8}.\n{text}")),
    "no salt where one must be": ("cancel", "no salt", prompt("cancel/prefill", lambda text: text.partition("\n")[2])),
    "the long prompt is another": ("cancel", "messages[0]", prompt("cancel/prefill", lambda text: text + " And more.")),
    "asked with the cache on": ("ttft", "asked as the step asks", asked("ttft/2", cache_prompt=True)),
    "asked with the cache off": ("cache", "asked as the step asks", asked("cache/second-1", cache_prompt=False)),
    "the slot cleared with the cache on": ("cache", "cache_prompt is true", asked("cache/clearing-1", cache_prompt=True)),
    "the slot cleared by the prompt itself": ("cache", "messages[0]", asked("cache/clearing-1", messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}])),
    # what is missing, and what is too much
    "a run dropped": ("ttft", "lacks the leg '5'", drop("ttft/5")),
    "a run more": ("ttft", "evidence/ttft/6.jsonl: found, expected none", copy("ttft/4", "ttft/6", lambda t: 1.01 * t)),
    "a prompt dropped": ("prefill", "lacks the leg '4docs-1'", drop("prefill/4docs-1")),
    "a round more": ("prefill", "expected none, because the step had enough", copy("prefill/4docs-1", "prefill/4docs-9", lambda t: 1.01 * t)),
    "a salted round that was not needed": ("cache", "expected none, because the step had enough", both(*(salted_leg(name) for name in ("clearing", "first", "second", "changed_suffix", "changed_prefix")))),
    "the changed end dropped": ("cache", "lacks the request 'changed_suffix-1'", drop("cache/changed_suffix-1")),
    "the clearing dropped": ("cache", "lacks the request 'clearing-1'", drop("cache/clearing-1")),
    "a better stream": ("sse", "stream-4.jsonl: found, expected none|lacks the request", copy("sse/stream-1", "sse/stream-4", lambda t: 1.01 * t)),
    "a further answer": ("sentence", "again-2.jsonl: found, expected none", copy("sentence/stream-1", "sentence/again-2", lambda t: 1.01 * t)),
    "rounds that were asked for": ("sentence", "lacks the leg 'again-2'", facts(lambda run: run["options"].update(rounds=3))),
    "rounds that were asked for, of the cache": ("cache", "lacks the leg", facts(lambda run: run["options"].update(rounds=3))),
    "a close in generation dropped": ("cancel", "first-piece-1", drop("cancel/first-piece-1")),
    "a close in prefill dropped": ("cancel", "lacks the leg 'prefill'", drop("cancel/prefill")),
    "the next request dropped": ("cancel", "'next'", drop("cancel/next")),
    "the look at /slots dropped": ("cancel", "'slots'", drop("cancel/slots")),
    "the close itself dropped": ("cancel", "'close-at'", drop("cancel/close-at")),
    "the polls of a close dropped": ("cancel", "prefill.polls.jsonl: is not listed", drop("cancel/prefill.polls")),
    "a leg that the step does not have": ("cancel", "has no leg of this name", copy("cancel/next", "cancel/bonus", lambda t: 1.01 * t)),
    "the list of models, which nobody asked for": ("server", "models.jsonl: found, expected none", both(copy("server/props", "server/models"), asked("server/models", path="/v1/models"))),
    "health dropped": ("server", "'health'", drop("server/health")),
    # closes
    "closed, and said to have ended": ("cancel", "expected closed", edit("cancel/close-at", closed_late)),
    "closed in prefill, and said to have ended": ("cancel", "ended with eof|it ended with eof", edit("cancel/prefill", closed_late)),
    "closed too soon": ("cancel", "because the step closes then", edit("cancel/close-at", closed_early)),
    "closed in prefill too soon": ("cancel", "because the step closes then", edit("cancel/prefill", closed_early)),
    "reads after the close": ("cancel", "expected one at most", edit("cancel/prefill", reads_after_close)),
    "reads after the first token": ("cancel", "right after it", edit("cancel/first-piece-1", reads_after_token)),
    # answers of /slots
    "answered before it was asked": ("cancel", "answered_ms is", polls("first-piece-1", lambda r: r[-1].update(asked_ms=5.0, answered_ms=4.0))),
    "answers that overlap": ("cancel", "one is asked after the other", polls("prefill", lambda r: r.insert(0, {**r[0], "answered_ms": 1e4, "body": r[0]["body"].replace('"is_processing":false', '"is_processing":true')}))),
    "asked before the request": ("cancel", "the request was sent then", polls("close-at", lambda r: r.insert(0, {**r[0], "asked_ms": -9e4, "answered_ms": -9e4 + 1}))),
    "asked on after it was idle": ("cancel", "nothing more is asked", polls("first-piece-1", lambda r: r.append({**r[-1], "asked_ms": r[-1]["answered_ms"] + 5, "answered_ms": r[-1]["answered_ms"] + 6}))),
    "watched for an hour": ("cancel", "no slot is watched longer", polls("first-piece-1", busy_for_an_hour)),
    "no answer of /slots at all": ("cancel", "cancel/prefill.polls.jsonl:1: expected an object", lambda d: place(d, "cancel/prefill.polls").write_text("[]\n")),
    "/slots refused": ("cancel", "the server offers /slots", head("cancel/slots", status=501)),
    "/slots as if there were none": ("cancel", "lacks the leg 'two-at-once-long'", lambda d: no_slots(d)),
    "/slots asked elsewhere": ("cancel", "the path is '/slot'", asked("cancel/slots", path="/slot")),
    "tokens counted elsewhere": ("cancel", "the path is '/count'", asked("cancel/prefill-tokens", path="/count")),
    "health asked elsewhere": ("server", "the path is '/healthy'", asked("server/health", path="/healthy")),
    "health posted": ("server", "the method is 'POST'", asked("server/health", method="POST")),
    # the log
    "a log that is hidden": ("cancel", "because the run says that this is its log", index(hidden_log)),
    "a log that is hidden in run.json, too": ("cancel", "the server was the run's own", both(index(hidden_log), facts(lambda run: run["server"].update(log=None)))),
    "another log": ("cancel", "log_source is '/tmp/x'", index(lambda run: run["steps"]["cancel"].update(log_source="/tmp/x"))),
    "a log that is cut off": ("cancel", "log_span of", lambda d: (d / "server.log").write_bytes((d / "server.log").read_bytes()[:200])),
    "a part of the log that lies outside": ("cancel", "expected a part of server.log", span("prefill", log_to=10**9)),
    "a part of the log that runs backwards": ("cancel", "expected a part of server.log", span("prefill", log_to=0)),
    "parts of the log that overlap": ("cancel", "the close before it ended there", span("prefill", log_from=0)),
    "a close without its part of the log": ("cancel", "has no log_span", index(lambda run: run["steps"]["cancel"]["cases"][-1].update(log_span=None))),
    # the look at the server
    "timings that are offered, and denied": ("server", "offers.timings is False", offers(timings=False)),
    "counts that are offered, and denied": ("server", "offers.cached_tokens is False", offers(cached_tokens=False)),
    "usage that is offered, and denied": ("server", "offers.usage is False", offers(usage=False)),
    "reasoning that was not seen": ("server", "offers.reasoning is 'reasoning'", offers(reasoning="reasoning")),
    "reasoning, and so more tokens": ("ttft", "max_tokens is 64, expected 1088", offers(reasoning="reasoning")),
    "a failure that was none": ("server", "offers.stream_error is 'x'", offers(stream_error="x")),
    "a field that was not refused": ("server", "it has 'cache_prompt'|offers.refused_fields", offers(refused_fields=["cache_prompt"])),
    "another name for max_tokens": ("sse", "max_completion_tokens", offers(max_tokens_name="max_completion_tokens")),
    "another place of the API": ("sse", "expected '/v2/chat/completions'", offers(api_path="/v2")),
    "another model listed": ("ttft", "expected \"big\"", offers(models=["big"])),
    "no look": ("server", "stream-1.jsonl: is missing", drop("capabilities/stream-1")),
    "a second look": ("server", "has 2 answers, expected 1", copy("capabilities/stream-1", "capabilities/stream-2", lambda t: 1.01 * t)),
    "a look that asked otherwise": ("server", "max_tokens is 1", asked("capabilities/stream-1", max_tokens=1)),
    # run.json
    "a run that none has": ("ttft", "the step's run is 20200101T000000Z-00000000", of_run("20200101T000000Z-00000000", "ttft")),
    "a newest run that is none": ("ttft", "run is 'x', expected one of its runs", index(lambda run: run.update(run="x"))),
    "an entry of a file that is not there": ("ttft", "evidence/ttft/9.jsonl: is missing", index(lambda run: run["artifacts"].update({"evidence/ttft/9.jsonl": run["artifacts"]["ttft.json"]}))),
    "a file that another step writes": ("ttft", "sentence.json: is said to be of the step 'ttft'", index(lambda run: run["artifacts"]["sentence.json"].update(step="ttft"))),
    "one step's file under another": ("sse", "evidence/ttft/1.jsonl", index(lambda run: run["artifacts"]["evidence/ttft/1.jsonl"].update(step="sse"))),
    "a report of another run": ("report", "copied_from_run is 'x'", index(lambda run: run["steps"]["report"].update(copied_from_run="x"))),
    "fewer requests than are recorded": ("server", "costs.requests is 3", facts(lambda run: run["costs"].update(requests=3))),
    "fewer tokens than are recorded": ("server", "costs.tokens is 5", facts(lambda run: run["costs"].update(tokens=5))),
    "another plan": ("ttft", "expected 32", facts(lambda run: run["plan"].update(max_tokens=32))),
    "another number of runs": ("ttft", "lacks the leg '6'", facts(lambda run: run["plan"].update(ttft_runs=6))),
    "another moment of the close": ("cancel", "because the step closes then|expected closed", both(edit("cancel/close-at", closed_late), facts(lambda run: run["plan"].update(cancel_close_at_ms=400.0)))),
    "a plan that is none": ("ttft", "run.json: plan.max_tokens", facts(lambda run: run["plan"].update(max_tokens="x"))),
    "a field that was not sent": ("sse", "it lacks 'seed'", facts(lambda run: run["options"].update(body={"seed": 7}))),
    "another model given": ("sentence", "expected \"big\"", facts(lambda run: run["options"].update(model="big"))),
    "another model's name": ("server", "server.model is '70B.gguf'", facts(lambda run: run["server"].update(model="70B.gguf"))),
    "another build of the server": ("server", "server.build is 'b9'", facts(lambda run: run["server"].update(build="b9"))),
    "a larger context": ("server", "server.n_ctx is 131072", facts(lambda run: run["server"].update(n_ctx=131072))),
    "more slots": ("server", "server.slots is 16", facts(lambda run: run["server"].update(slots=16))),
    "another sse.py": ("sse", "sse.py: differs", replaced("sse.py", '"""', '"""Mine. ')),
    # keys twice
    "a key twice in a recording": ("ttft", "a key twice", key_twice("evidence/ttft/2.jsonl", '"status":', '"status": 500, ')),
    "a key twice in a read": ("ttft", "a key twice", key_twice("evidence/ttft/2.jsonl", '"text":', '"text": "", ')),
    "a key twice in an answer of /slots": ("cancel", "a key twice", key_twice("evidence/cancel/prefill.polls.jsonl", '"status":', '"status": 500, ')),
    "a key twice in run.json": ("sse", "a key twice", key_twice("run.json", '"artifacts":', '"artifacts": {}, ')),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_caught(own: Path, tmp_path: Path, name: str) -> None:
    step, words, forge = FORGERIES[name]
    found = graded(own, tmp_path, forge, step)
    assert step in found
    assert any(one in found[step] for one in words.split("|")), found[step]


# The same where prompts have salts, and one-token requests show whether the server is idle.
FORGERIES_ELSEWHERE: dict[str, tuple[str, str, Forgery]] = {
    "a run copied, and moved in time": ("ttft", "a copy of another", copy("ttft/salted-4", "ttft/salted-5", lambda t: t + 1.234)),
    "a salt used twice": ("ttft", "because every cold leg is given one", lambda d: same_salt(d, "ttft/salted-1", "ttft/salted-2")),
    "a salt of another step": ("cancel", "because every cold leg is given one", lambda d: same_salt(d, "ttft/salted-1", "cancel/prefill")),
    "a salt left out": ("ttft", "no salt", prompt("ttft/salted-2", lambda text: text.partition("\n")[2])),
    "the salted runs dropped": ("ttft", "lacks the leg 'salted-1'", drop(*(f"ttft/salted-{n}" for n in range(1, 6)))),
    "a salted run dropped": ("ttft", "lacks the leg 'salted-5'", drop("ttft/salted-5")),
    "the runs to the letter dropped": ("ttft", "lacks the leg '1'", drop(*(f"ttft/{n}" for n in range(1, 6)))),
    "a one-token request dropped": ("cancel", "lacks the leg 'one-token-3'", drop("cancel/one-token-3")),
    "all one-token requests dropped": ("cancel", "lacks the leg 'before-1'", drop(*(f"cancel/{leg}-{n}" for leg in ("one-token", "before") for n in range(1, 6)))),
    "a one-token request of more": ("cancel", "max_tokens is 9", asked("cancel/one-token-1", max_tokens=9)),
    "two at once, one of them longer": ("cancel", "which the step does not ask for", asked("cancel/two-at-once-long", max_tokens=999)),
    "a log of a run that was given one": ("cancel", "the run was given --llm-log", facts(lambda run: run["options"].update(log="/tmp/x"))),
}  # fmt: skip


def same_salt(directory: Path, one: str, other: str) -> None:
    salts = [
        salt_of(rows_of(directory, leg)[0]["request"]["body"]["messages"]) for leg in (one, other)
    ]
    assert None not in salts
    prompt(other, lambda text: text.replace(str(salts[1]), str(salts[0])))(directory)


@pytest.mark.parametrize("name", FORGERIES_ELSEWHERE)
def test_a_forgery_of_a_salted_run_is_caught(elsewhere: Path, tmp_path: Path, name: str) -> None:
    step, words, forge = FORGERIES_ELSEWHERE[name]
    found = graded(elsewhere, tmp_path, forge, step)
    assert step in found
    assert any(one in found[step] for one in words.split("|")), found[step]


# --- what a forger can still do, as docs/evidence.md says ---


def other_answer(directory: Path) -> None:
    """Another text, in as many bytes, at the same times."""
    edit(
        "ttft/salted-2",
        lambda rows: [row.update(text=row["text"].replace("word", "wort")) for row in rows[1:-1]],
    )(directory)


def stretched(directory: Path) -> None:
    """A run made of another, all its times a hundredth longer."""
    whole = [n for n in range(1, 5) if not place(directory, f"ttft/salted-{n}.2").exists()]
    if not whole:
        pytest.skip("every run was held back by a busy machine")
    drop("ttft/salted-5")(directory)
    copy(f"ttft/salted-{whole[-1]}", "ttft/salted-5", lambda t: 1.01 * t)(directory)
    prompt("ttft/salted-5", lambda text: f"Call {'ef' * 8}.\n" + text.partition("\n")[2])(directory)


def other_documents(directory: Path) -> None:
    """The same change in all prompts, and a knowledge base said to be one's own."""
    facts(lambda run: run["options"].update(kb="/mine"))(directory)
    for pattern in ("prefill/*[24]docs-*", "cache/*[ft]*-*", "cache/second-*", "cancel/prefill"):
        every(pattern, lambda leg: prompt(leg, lambda text: text.replace("Saturday", "Sunday")))(
            directory
        )


def another_run_id(directory: Path) -> None:
    text = (directory / "run.json").read_text("utf-8")
    run = json.loads(text)["run"]
    (directory / "run.json").write_text(text.replace(run, "20200101T000000Z-00000000"), "utf-8")


def no_log(directory: Path) -> None:
    index(hidden_log)(directory)
    facts(lambda run: run["server"].update(log=None, kind="url"))(directory)
    (directory / "server.log").unlink()


def idle_sooner(rows: Rows) -> None:
    rows[:] = [{**rows[-1], "asked_ms": 0.1, "answered_ms": 0.2}]


OWN_QUESTION = "How do I prepare for an X-ray?"
UNSEEN: dict[str, tuple[str, Forgery]] = {
    "all times of a step a little shorter": ("own", every("prefill/*", lambda leg: edit(leg, lambda rows: moved(rows, lambda t: 0.999 * t)))),
    "a run made of another, stretched": ("elsewhere", stretched),
    "another text of an answer": ("elsewhere", other_answer),
    "an idle slot that was seen sooner": ("own", polls("first-piece-1", idle_sooner)),
    "a stream closed after its first piece, said to have ended": ("own", end("cancel/first-piece-1", end="eof")),
    "a plan of one's own": ("own", both(every("sentence/*", lambda leg: prompt(leg, lambda _: OWN_QUESTION, -1)), facts(lambda run: run["plan"].update(sentence_question=OWN_QUESTION)))),
    "a directory of before plans were kept": ("own", both(every("sentence/*", lambda leg: prompt(leg, lambda _: OWN_QUESTION, -1)), facts(lambda run: run.pop("plan")))),
    "another version's": ("own", both(replaced("sse.py", '"""', '"""Mine. '), facts(lambda run: run["versions"].update({"pytest-llm-latency": "9.9"})))),
    "documents of one's own": ("own", other_documents),
    "no log, at a URL": ("own", no_log),
    "other words in the log": ("own", replaced("server.log", "srv ", "SRV ")),
    "another machine in run.json": ("own", facts(lambda run: run["machine"].update(cpus=64))),
    "other notes": ("own", index(lambda run: run["steps"]["ttft"].update(notes=["fast"]))),
    "more requests than are recorded": ("own", facts(lambda run: run["costs"].update(requests=10**6))),
    "another day": ("own", another_run_id),
    "a file of one's own": ("own", listed("notes.txt", "ttft")),
    "a file that run.json does not name": ("own", lambda d: place(d, "ttft/7").write_text("x")),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSEEN)
def test_what_a_forger_can_still_do(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    run, forge = UNSEEN[name]
    steps = STEPS if run == "own" else ("ttft", "cancel")
    assert graded(request.getfixturevalue(run), tmp_path, forge, *steps) == {}


def test_a_plan_of_one_s_own_is_named(own: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(own, tmp_path / "x"))
    UNSEEN["a plan of one's own"][1](directory)
    assert "by a plan of one's own: sentence_question" in shown(directory, "sentence")
    facts(lambda run: run.pop("plan"))(directory)
    assert "run.json has no plan" in shown(directory, "sentence")


def shown(directory: Path, step: str) -> str:
    """The numbers of the rows that the files give."""
    lab = GradedLab(directory, MAX_BYTES)
    judged = JUDGES[step](getattr(lab, step)())
    return "\n".join(row.numbers for row in lab.extra(step, judged))


def test_the_docs_count_them() -> None:
    docs = (ROOT / "docs" / "evidence.md").read_text("utf-8")
    tried = len(REQUESTS) * len(CHATS) + len(FORGERIES) + len(FORGERIES_ELSEWHERE)
    assert f"{tried} forgeries, and {len(UNSEEN)} that pass, are tried" in docs
