"""The grader: a true run passes, and no change of a number, a file or a line goes unnoticed."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import told

from pytest_llm_latency.errors import LatencyError
from pytest_llm_latency.lab.graded import GradedLab
from pytest_llm_latency.servers.own_command import own_command
from pytest_llm_latency.servers.process import free_port, guarded
from pytest_llm_latency.steps.judges import JUDGES

from .conftest import summary

BY_HAND = Path(__file__).parents[1] / "by_hand.py"
MAX_BYTES = 64 * 1024 * 1024
STEPS = ("server", "sse", "ttft", "prefill", "cache", "sentence", "cancel", "report")


def grade(directory: Path) -> dict[str, str]:
    """What is wrong, by step; empty: all hold. The same calls as the lab's tests make."""
    wrong: dict[str, str] = {}
    try:
        lab = GradedLab(directory, MAX_BYTES)
    except LatencyError as error:
        return {step: str(error) for step in STEPS}
    for step in STEPS:
        try:
            judged = JUDGES[step](getattr(lab, step)())
            extra = lab.extra(step, judged)
            verdicts = [*told(lambda rows: rows, judged), *extra]
        except LatencyError as error:
            wrong[step] = str(error)
            continue
        bad = [verdict for verdict in verdicts if verdict.outcome != "holds"]
        if bad:
            wrong[step] = "\n".join(line for verdict in bad for line in verdict.lines())
    return wrong


@pytest.fixture(scope="module")
def true_run(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Path:
    """The directory of a real run."""
    for _ in range(6):  # a busy machine may leave a run undecided; this one must be decided
        directory = tmp_path_factory.mktemp("true") / "llm"
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "--pyargs", "test_llm_latency", "-p", "no:cacheprovider",
                f"--llm-gguf={tiny_gguf}", "--llm-server=local", "--llm-server-args=-t 1",
                f"--llm-artifacts={directory}",
            ],
            cwd=directory.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if "8 passed" in done.stdout or "broken" in done.stdout:
            break
    assert "8 passed" in done.stdout, done.stdout
    return directory


@pytest.fixture(scope="module")
def hand_made(tmp_path_factory: pytest.TempPathFactory, slow_gguf: Path) -> Path:
    """A directory made with http.client, without a line of ours; the documents are a third as long
    as the lab's, which this model takes half a minute for."""
    kb = tmp_path_factory.mktemp("kb")
    for number in range(1, 13):
        (kb / f"{number:02}.md").write_text(f"Room {number} opens at {number}.\n" * 4)
    directory = tmp_path_factory.mktemp("hand") / "llm"
    directory.mkdir()
    port, log = free_port(), directory.parent / "log"
    url = f"http://127.0.0.1:{port}"
    with guarded(own_command("local", slow_gguf, port, ()), log, url, 60.0, lambda _: None):
        done = subprocess.run(
            [sys.executable, str(BY_HAND), url, str(kb), str(log)],
            cwd=directory, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(params=["true_run", "hand_made"])
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of both kinds of directory, under a neutral name."""
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "x"))


def rehash(directory: Path) -> None:
    """Make run.json's hashes those of the files as they are now."""
    path = directory / "run.json"
    if path.exists():
        run = json.loads(path.read_text())
        for name, entry in run["artifacts"].items():
            if (directory / name).exists():
                entry["sha256"] = hashlib.sha256((directory / name).read_bytes()).hexdigest()
        path.write_text(json.dumps(run))


def change(directory: Path, name: str, edit: Callable[[Any], Any]) -> None:
    """Edit a JSON file; `edit` changes the value in place or returns another."""
    path = directory / name
    value = json.loads(path.read_text())
    changed = edit(value)
    path.write_text(json.dumps(value if changed is None else changed))
    rehash(directory)


def test_a_run_and_a_hand_made_directory_pass(copied: Path) -> None:
    assert grade(copied) == {}


def test_pytest_grades_without_a_socket(
    copied: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any socket that is opened ends the process."""
    guard = pytester.mkdir("guard")
    (guard / "sitecustomize.py").write_text(
        "import sys, os\n"
        "def hook(event, args):\n"
        "    if event.startswith('socket.'):\n"
        "        os.write(2, b'SOCKET ' + event.encode()); os._exit(99)\n"
        "sys.addaudithook(hook)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(guard))
    for path in copied.rglob("*"):  # a grader only reads
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    result = pytester.runpytest_subprocess(
        # (pytest-rerunfailures opens a socket when it is imported.)
        "--pyargs",
        "test_llm_latency",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:rerunfailures",
        f"--llm-grade={copied}",
    )
    result.assert_outcomes(passed=8)
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before
    level = "evidence" if (copied / "run.json").exists() else "contract"
    assert f"holds   on {level}" in summary(result)
    assert not (pytester.path / "voice").exists()


def test_the_file_and_the_value_are_named(
    true_run: Path, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    directory = Path(shutil.copytree(true_run, tmp_path / "x"))
    change(directory, "ttft.json", lambda value: value.update(ttft_p50=1.0))
    result = pytester.runpytest_subprocess(
        "--pyargs", "test_llm_latency", f"--llm-grade={directory}", "-k", "ttft"
    )
    result.assert_outcomes(failed=1, deselected=7)
    assert "ttft.json.ttft_p50: 1.0, expected " in summary(result)
    assert "pytest_llm_latency/" not in summary(result)


@pytest.mark.parametrize(
    ("path", "words"),
    [("nowhere", "--llm-grade: *nowhere is not a directory"), ("file", "file is not a directory")],
)
def test_nothing_to_grade(pytester: pytest.Pytester, path: str, words: str) -> None:
    (pytester.path / "file").write_text("")
    result = pytester.runpytest_subprocess("--pyargs", "test_llm_latency", f"--llm-grade={path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{words}"])


def test_an_own_test_says_that_grading_has_no_server(
    pytester: pytest.Pytester, true_run: Path
) -> None:
    path = pytester.makepyfile("def test_one(llm_client): pass")
    result = pytester.runpytest_subprocess(f"--llm-grade={true_run}", path)
    result.assert_outcomes(errors=1)
    assert "this test measures a server, which a grading (--llm-grade) does not have" in summary(
        result
    )


# --- cheats and slips, each on both kinds of directory ---


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]


def edit_chunks(directory: Path, edit: Callable[[list[str]], Any]) -> None:
    rows = lines(directory / "chunks.jsonl")
    edit(rows)
    (directory / "chunks.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    rehash(directory)


def swap(rows: list[Any], a: int, b: int) -> None:
    rows[a], rows[b] = rows[b], rows[a]


def swap_keys(value: dict[str, Any], a: str, b: str) -> None:
    value[a], value[b] = value[b], value[a]


def cut_log(directory: Path) -> None:
    path = directory / "server.log"
    path.write_bytes(path.read_bytes().replace(b"cancel task", b"finish task"))
    rehash(directory)


def truncate(name: str) -> Callable[[Path], None]:
    def cut(directory: Path) -> None:
        content = (directory / name).read_bytes()
        (directory / name).write_bytes(content[: len(content) // 2])
        rehash(directory)

    return cut


def as_first_sentence(value: dict[str, Any], text: str, sentence: str) -> None:
    value.update(text=text, first_sentence=sentence)


def link_out(directory: Path) -> None:
    outside = directory.parent / "outside.json"
    shutil.move(directory / "cache.json", outside)
    (directory / "cache.json").symlink_to(outside)


def huge(directory: Path) -> None:
    with (directory / "sse_raw.txt").open("wb") as file:
        file.truncate(2 * 1024**3)  # sparse: no such disk is needed


def fifo(directory: Path) -> None:
    (directory / "ttft.json").unlink()
    os.mkfifo(directory / "ttft.json")


CHEATS: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "a piece dropped": ("sse", "chunks.jsonl|piece", lambda d: edit_chunks(d, lambda r: r.pop(3))),
    "a piece doubled": ("sse", "chunks.jsonl|piece", lambda d: edit_chunks(d, lambda r: r.insert(3, r[3]))),
    "pieces reordered": ("sse", "chunks.jsonl|piece", lambda d: edit_chunks(d, lambda r: swap(r, 2, 5))),
    "an empty raw file": ("sse", "sse_raw.txt|0 in the raw file", lambda d: ((d / "sse_raw.txt").write_bytes(b""), rehash(d))),
    "no [DONE]": ("sse", "sse_raw.txt|[DONE]", lambda d: ((d / "sse_raw.txt").write_bytes((d / "sse_raw.txt").read_bytes().replace(b"[DONE]", b"[]").replace(b'"finish_reason":"length"', b'"finish_reason":null')), rehash(d))),
    "no stream in sse.py": ("sse", "sse.py defines no function stream", lambda d: ((d / "sse.py").write_text("x = 1\n"), rehash(d))),
    "sse.py that does not parse": ("sse", "sse.py does not parse", lambda d: ((d / "sse.py").write_text("def stream(:\n"), rehash(d))),
    "ttft above total": ("ttft", "ttft", lambda d: change(d, "ttft.json", lambda v: v["runs"][1].update(ttft_ms=v["runs"][1]["total_ms"] + 1))),
    "a median that is none": ("ttft", "median|ttft_p50", lambda d: change(d, "ttft.json", lambda v: v.update(ttft_p50=v["ttft_p50"] + 0.001))),
    "copied runs": ("ttft", "copied|runs", lambda d: change(d, "ttft.json", lambda v: v["runs"].__setitem__(slice(None), [v["runs"][2]] * 5))),
    "four runs": ("ttft", "runs", lambda d: change(d, "ttft.json", lambda v: v["runs"].pop())),
    "prefill with the cache on": ("prefill", "prompt_n", lambda d: change(d, "prefill.json", lambda v: v[2].update(prompt_n=5))),
    "other documents": ("prefill", "docs", lambda d: change(d, "prefill.json", lambda v: v[1].update(docs=6))),
    "first and second swapped": ("cache", "prompt_n", lambda d: change(d, "cache.json", lambda v: swap_keys(v, "first", "second"))),
    "cut inside 3.5": ("sentence", "first_sentence|text", lambda d: change(d, "sentence.json", lambda v: as_first_sentence(v, "Wait 3.5 hours. Then eat.", "Wait 3."))),
    "cut after the first dot of a.m.": ("sentence", "first_sentence|text", lambda d: change(d, "sentence.json", lambda v: as_first_sentence(v, "At 9 a.m. we open.", "At 9 a."))),
    "the answer had ended": ("cancel", "256|received", lambda d: change(d, "cancel.json", lambda v: v.update(received_tokens=v["max_tokens"]))),
    "a log without the cancel": ("cancel", "cancel", cut_log),
    "a rounded report": ("report", "report.json|differ", lambda d: change(d, "report.json", lambda v: v.update(ttft_p50_ms=round(v["ttft_p50_ms"])))),
    "NaN": ("cache", "expected a number, found NaN", lambda d: change(d, "cache.json", lambda v: v["first"].update(ttft_ms=float("nan")))),
    "a negative time": ("cancel", "at least 0", lambda d: change(d, "cancel.json", lambda v: v.update(closed_at_ms=-1.0))),
    "a number as a string": ("sentence", 'expected a number, found "', lambda d: change(d, "sentence.json", lambda v: v.update(total_ms=str(v["total_ms"])))),
    "a missing key": ("cache", "expected the key 'changed_prefix'", lambda d: change(d, "cache.json", lambda v: v.pop("changed_prefix") and None)),
    "a truncated JSON": ("ttft", "ttft.json: not JSON", truncate("ttft.json")),
    "truncated chunks": ("sse", "chunks.jsonl|piece", truncate("chunks.jsonl")),
    "a truncated raw file": ("sse", "sse_raw.txt|piece", truncate("sse_raw.txt")),
    "a missing file": ("cancel", "cancel.json: is missing", lambda d: (d / "cancel.json").unlink()),
    "a link out of the directory": ("cache", "cache.json: is a link, expected a regular file", link_out),
    "a file of 2 GB": ("sse", "sse_raw.txt: 2,147,483,648 bytes are more than", huge),
    "a pipe": ("ttft", "ttft.json: is a pipe, expected a regular file", fifo),
    "health that is not ok": ("server", "status|health", lambda d: change(d, "health.json", lambda v: v.update(status="error"))),
    "props without slots": ("server", "total_slots|props", lambda d: change(d, "props.json", lambda v: v.update(total_slots=0))),
}  # fmt: skip


def edit_evidence(directory: Path, name: str, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    path = directory / "evidence" / name
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    edit(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rehash(directory)


def run_json(directory: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = directory / "run.json"
    run = json.loads(path.read_text())
    edit(run)
    path.write_text(json.dumps(run))


EVIDENCE_CHEATS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "asked with the cache on": ("ttft", lambda d: edit_evidence(d, "ttft/2.jsonl", lambda r: r[0]["request"]["body"].update(cache_prompt=True))),
    "asked with the cache off": ("cache", lambda d: edit_evidence(d, "cache/second-1.jsonl", lambda r: r[0]["request"]["body"].update(cache_prompt=False))),
    "another request's label": ("ttft", lambda d: edit_evidence(d, "ttft/2.jsonl", lambda r: r[0].update(label="ttft/1"))),
    "a file that is not listed": ("sse", lambda d: run_json(d, lambda run: run["artifacts"].pop("sse.py"))),
    "a failure that is hidden": ("ttft", lambda d: run_json(d, lambda run: run["failures"].update(ttft={"run": "x"}))),
    "an outcome that was none": ("cache", lambda d: run_json(d, lambda run: run["steps"]["cache"].update(outcome="failed"))),
    "a key twice": ("ttft", lambda d: ((d / "ttft.json").write_text((d / "ttft.json").read_text().replace("{", '{"ttft_p50": 0.001,', 1)), rehash(d))),
    "polls-unlisted": ("cancel", lambda d: run_json(d, lambda r: r["artifacts"].pop("evidence/cancel/prefill.polls.jsonl"))),
    "first-token-sse": ("sse", lambda d: run_json(d, lambda r: r["steps"]["sse"].update(first_token_ms=-1))),
    "first-token-ttft": ("ttft", lambda d: run_json(d, lambda r: r["steps"]["ttft"]["first_token_ms"].reverse())),
    "log-source": ("cancel", lambda d: run_json(d, lambda r: r["steps"]["cancel"].update(log_source=["x"]))),
}  # fmt: skip


@pytest.mark.parametrize("cheat", EVIDENCE_CHEATS)
def test_a_cheat_with_the_evidence_is_caught(true_run: Path, tmp_path: Path, cheat: str) -> None:
    directory = Path(shutil.copytree(true_run, tmp_path / "x"))
    step, apply = EVIDENCE_CHEATS[cheat]
    apply(directory)
    assert step in grade(directory)


JUNK_PLACES = {
    "ttft/1.jsonl": "ttft",
    "cache/second-1.jsonl": "cache",
    "cancel/close-at.jsonl": "cancel",
    "cancel/prefill.polls.jsonl": "cancel",
}
JUNK: dict[str, Any] = {
    "null": None, "text": "x", "number": 5, "list": ["x"], "object": {"a": 1}, "NaN": float("nan"),
    "huge": 10**400, "negative": -1, "nested": "[" * 5000,
}  # fmt: skip
JUNK_IN_THE_ZOO = ("number", "list", "negative", "nested")


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(value, id=name, marks=pytest.mark.zoo if name in JUNK_IN_THE_ZOO else ())
        for name, value in JUNK.items()
    ],
)
def test_junk_in_the_evidence_is_a_sentence(true_run: Path, tmp_path: Path, junk: Any) -> None:
    """Any value in any place: wrong, or harmless, but never an exception that is not ours."""
    directory = Path(shutil.copytree(true_run, tmp_path / "x"))
    for name, step in JUNK_PLACES.items():
        path = directory / "evidence" / name
        text = path.read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.split("\n") if line]
        for place in {tuple(p[:4]) for p in leaves(rows) if p[0] in (0, 1, len(rows) - 1)}:
            changed = copy.deepcopy(rows)
            inner: Any = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = junk
            path.write_text("".join(json.dumps(row) + "\n" for row in changed), encoding="utf-8")
            lab = GradedLab(directory, MAX_BYTES)
            with contextlib.suppress(LatencyError):
                judged = JUDGES[step](getattr(lab, step)())
                lab.extra(step, judged)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("null", ["cache.json", "prefill.json"])
def test_a_null_count_made_by_hand_is_no_pass(hand_made: Path, tmp_path: Path, null: str) -> None:
    directory = Path(shutil.copytree(hand_made, tmp_path / "x"))
    change(
        directory,
        null,
        lambda v: (v["second"] if isinstance(v, dict) else v[1]).update(prompt_n=None),
    )
    assert "not measurable" in grade(directory)[null.removesuffix(".json")]


def test_honest_variations_made_by_hand_pass(hand_made: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(hand_made, tmp_path / "x"))
    change(directory, "cache.json", lambda v: v.update(changed_suffix=20.0, salt=7, mine="x"))
    change(
        directory,
        "prefill.json",
        lambda v: [row.update(prompt_n=float(row["prompt_n"])) for row in v] and None,
    )
    change(
        directory,
        "sentence.json",
        lambda v: v.update(text=" Take nothing. Then eat.", first_sentence="Take nothing. "),
    )
    program = (directory / "sse.py").read_text()
    (directory / "sse.py").write_text(
        "LIMIT = 64\n" + program.replace("max_tokens=64", "max_tokens: int = LIMIT")
    )
    raw = (directory / "sse_raw.txt").read_bytes()
    (directory / "sse_raw.txt").write_bytes(
        b"\xef\xbb\xbf" + b"".join(x + b"\n" for x in raw.split(b"\n") if x)
    )
    (directory / "server.log").write_bytes((directory / "server.log").read_text().encode("utf-16"))
    assert grade(directory) == {}


@pytest.mark.parametrize(
    "program", ["x=" + "-" * 100_000 + "1", "a" + ".a" * 50_000, "async def stream(): pass"]
)
def test_a_program_that_breaks_parsers_is_a_sentence(
    hand_made: Path, tmp_path: Path, program: str
) -> None:
    directory = Path(shutil.copytree(hand_made, tmp_path / "x"))
    (directory / "sse.py").write_text(program)
    assert "sse.py" in grade(directory)["sse"]


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_or_a_slip_is_caught_in_its_step(copied: Path, cheat: str) -> None:
    step, words, apply = CHEATS[cheat]
    apply(copied)
    wrong = grade(copied)
    assert step in wrong
    assert any(word in wrong[step] for word in words.split("|")), wrong[step]
    allowed = {step, "report"}  # the report copies what was changed
    assert set(wrong) <= allowed


def test_other_line_ends_are_fine_where_they_are_fine(hand_made: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(hand_made, tmp_path / "x"))
    for path in directory.iterdir():
        if path.suffix in (".json", ".jsonl", ".txt"):
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (directory / "ttft.json").write_bytes(b"\xef\xbb\xbf" + (directory / "ttft.json").read_bytes())
    assert grade(directory) == {}


def test_without_a_log_nothing_is_proven(hand_made: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(hand_made, tmp_path / "x"))
    (directory / "server.log").unlink()
    assert "voice-llm log > server.log" in grade(directory)["cancel"]


def test_a_directory_of_before_has_closes_that_say_less(true_run: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(true_run, tmp_path / "copy"))

    def older(run: dict[str, Any]) -> None:
        for case in run["steps"]["cancel"]["cases"]:
            del case["others"], case["log_talks"]

    run_json(directory, older)
    assert grade(directory) == grade(true_run)
    run_json(directory, lambda run: run["steps"]["cancel"]["cases"][0].update(others=True))
    assert grade(directory) != grade(true_run)


def test_files_of_two_runs_are_not_one_run(true_run: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(true_run, tmp_path / "x"))

    def other_run(value: dict[str, Any]) -> None:
        value["artifacts"]["cache.json"]["run"] = "20200101T000000Z-00000000"

    change(directory, "run.json", other_run)
    wrong = grade(directory)
    assert "cache.json: made by run 20200101T000000Z-00000000" in wrong["cache"]
    assert "cache.json: run 20200101T000000Z-00000000" in wrong["report"]


def test_what_sse_py_overwrites_no_longer_belongs_to_the_run(
    true_run: Path, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(true_run, tmp_path / "x"))
    raw = (directory / "sse_raw.txt").read_bytes()
    (directory / "sse_raw.txt").write_bytes(raw + b"\n")  # read again: no new hashes
    assert "sse_raw.txt: changed since the run" in grade(directory)["sse"]


# --- any number, any piece of text, anywhere: with hashes made anew ---


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers and strings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))
    else:
        yield path


def mutated(value: Any, how: int) -> Any:
    """Another value; most stay of the same type and close by."""
    if isinstance(value, bool) or value is None:
        return 1 if value is None else not value
    if isinstance(value, (int, float)):
        number: float = value
        return [number + 1, number * 1.0001 + 0.001, -number - 1, str(number), None][how % 5]
    return [value + "x", value[1:] if len(value) > 1 else value * 2 + "y", None, 7][how % 4]


FILES = (
    "health.json", "props.json", "chunks.jsonl", "ttft.json", "prefill.json", "cache.json",
    "sentence.json", "cancel.json", "report.json",
)  # fmt: skip


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_change_of_a_run_goes_unnoticed(
    true_run: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Every key of every file, hashes in run.json made anew after each change."""
    name = data.draw(st.sampled_from(FILES), "file")
    directory = Path(shutil.copytree(true_run, tmp_path_factory.mktemp("mutant") / "x"))
    try:
        text = (directory / name).read_text(encoding="utf-8")
        is_lines = name.endswith(".jsonl")
        value = [json.loads(x) for x in text.split("\n") if x] if is_lines else json.loads(text)
        path = data.draw(st.sampled_from(list(leaves(value))), "key")
        inner = copied_value = copy.deepcopy(value)
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = mutated(inner[path[-1]], data.draw(st.integers(0, 19), "change"))
        if is_lines:
            text = "".join(json.dumps(row) + "\n" for row in copied_value)
        else:
            text = json.dumps(copied_value)
        (directory / name).write_text(text, encoding="utf-8")
        rehash(directory)
        assert grade(directory) != {}
    finally:
        shutil.rmtree(directory.parent)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_change_of_the_raw_stream_goes_unnoticed(
    true_run: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = Path(shutil.copytree(true_run, tmp_path_factory.mktemp("mutant") / "x"))
    try:
        raw = bytearray((directory / "sse_raw.txt").read_bytes())
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
        (directory / "sse_raw.txt").write_bytes(raw)
        rehash(directory)
        assert "sse" in grade(directory)
    finally:
        shutil.rmtree(directory.parent)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("steps", "ttft", "verdicts", 0, "numbers"), "closest: 1 ms of 2 ms"),
        (("steps", "cancel", "cases", 0, "received_tokens"), 1000),
        (("steps", "cancel", "cases", 0, "log_span", "log_from"), 10**9),
        (("steps", "cache", "verdicts"), []),
        (("version",), 99),
        (("format",), "other"),
        (("artifacts",), []),
    ],
)
def test_no_change_of_run_json_s_verdicts_goes_unnoticed(
    true_run: Path, tmp_path: Path, path: tuple[Any, ...], value: Any
) -> None:
    directory = Path(shutil.copytree(true_run, tmp_path / "x"))

    def edit(run: dict[str, Any]) -> None:
        inner: Any = run
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    text = json.loads((directory / "run.json").read_text())
    edit(text)
    (directory / "run.json").write_text(json.dumps(text))
    assert grade(directory) != {}


def test_the_rule_for_sentences_is_the_run_s(pytester: pytest.Pytester, tiny_gguf: Path) -> None:
    lab = ["--pyargs", "test_llm_latency", "-k", "sentence", "-p", "no:cacheprovider"]
    own = [f"--llm-gguf={tiny_gguf}", "--llm-server=local", "--llm-sentence=careful"]
    pytester.runpytest_subprocess(*lab, *own).assert_outcomes(passed=1, deselected=7)
    run = json.loads((pytester.path / "voice/llm/run.json").read_text("utf-8"))
    assert run["runs"][run["run"]]["options"]["sentence"] == "careful"
    graded = pytester.runpytest_subprocess(*lab, "--llm-grade=voice/llm")
    graded.assert_outcomes(passed=1, deselected=7)
