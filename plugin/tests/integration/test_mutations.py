"""Wrong directories as learners make them by hand: each is caught by a sentence that names the
mistake, or stands in the list of what files cannot show; right ones of all kinds pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_llm_latency.errors import LatencyError, NotDoneYet
from pytest_llm_latency.lab.graded import GradedLab
from pytest_llm_latency.steps.judges import JUDGES, is_supporting

WORDS = [
    "Please ",
    "bring ",
    "your ",
    "card. ",
    "And ",
    "a ",
    "list ",
    "of ",
    "your ",
    "medicines.",
]
TIMINGS = {
    "prompt_n": 58,
    "prompt_ms": 150.0,
    "predicted_n": 10,
    "predicted_ms": 500.0,
    "cache_n": 0,
}
SSE_PY = "def stream(messages, max_tokens=64, cache_prompt=True, raw_out=None):\n    pass\n"
TEXT = "Eat nothing for twelve hours. Drink water only. Come in the morning."
LOG = """0.01.000.000 I slot launch_slot_: id  0 | task 3 | processing task, is_child = 0
0.01.600.000 I slot      release: id  0 | task 3 | stop processing: n_tokens = 68, truncated = 0
0.40.000.000 I slot launch_slot_: id  0 | task 9 | processing task, is_child = 0
0.40.502.000 W srv          stop: cancel task, id_task = 9
0.40.510.000 I slot      release: id  0 | task 9 | stop processing: n_tokens = 59, truncated = 0
"""


# Another run of the server, whose tasks have the same numbers.
RESTARTED = """0.00.300.000 I slot launch_slot_: id  0 | task 9 | processing task, is_child = 0
0.00.900.000 I slot      release: id  0 | task 9 | stop processing: n_tokens = 1300, truncated = 0
"""


def chunk(delta: dict[str, Any], **more: Any) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta}], **more}) + "\n\n"


def right() -> dict[str, Any]:
    """A right directory; JSON values, or texts."""
    raw = chunk({"role": "assistant", "content": None}) + "".join(
        chunk({"content": w}) for w in WORDS
    )
    raw += chunk({}, timings=TIMINGS) + "data: [DONE]\n\n"
    runs = [
        {"ttft_ms": 160.0 + n * n, "total_ms": 1660.0 + 3 * n, "tokens": 10}
        for n in (2, 0, 4, 1, 3)
    ]
    return {
        "health.json": {"status": "ok"},
        "props.json": {"model_path": "m.gguf", "total_slots": 1, "default_generation_settings": {"n_ctx": 8192}},
        "sse.py": SSE_PY,
        "sse_raw.txt": raw,
        "chunks.jsonl": "".join(json.dumps({"t_ms": 161.5 + 50 * n, "text": w}) + "\n" for n, w in enumerate(WORDS)),
        "ttft.json": {"runs": runs, "ttft_p50": 164.0, "total_p50": 1666.0},
        "prefill.json": [{"docs": d, "prompt_n": n, "prompt_ms": 3.0 * n, "ttft_ms": 3.0 * n + 8} for d, n in ((0, 58), (4, 520), (12, 1363))],
        "cache.json": {"first": {"prompt_n": 1362, "ttft_ms": 4100.0}, "second": {"prompt_n": 1, "ttft_ms": 61.0}, "changed_prefix": {"prompt_n": 1372, "ttft_ms": 4150.0}},
        "sentence.json": {"ttft_ms": 170.0, "first_sentence_ms": 700.0, "total_ms": 1700.0, "first_sentence": "Eat nothing for twelve hours.", "text": TEXT},
        "cancel.json": {"max_tokens": 256, "received_tokens": 7, "closed_at_ms": 501.0, "slot_idle_after_ms": 30.0},
        "server.log": LOG,
        "report.json": {"ttft_p50_ms": 164.0, "total_p50_ms": 1666.0, "ttft_12docs_ms": 4097.0, "prompt_n_12docs": 1363, "cache_ttft_ms": 61.0, "first_sentence_ms": 700.0, "cancel_idle_ms": 30.0},
    }  # fmt: skip


def graded(directory: Path, files: dict[str, Any]) -> dict[str, str]:
    """What is wrong, by step."""
    for name, value in files.items():
        data = value if isinstance(value, (str, bytes)) else json.dumps(value)
        (directory / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    lab = GradedLab(directory, 2**20)
    wrong = {}
    for step, judge in JUDGES.items():
        try:
            rows = judge(getattr(lab, step)())
            rows = [*rows, *lab.extra(step, rows)]
        except LatencyError as error:
            wrong[step] = f"{type(error).__name__}: {error}"
            continue
        bad = [
            row for row in rows
            if row.outcome != "holds" and not (row.outcome == "not measurable" and is_supporting(row.relation))
        ]  # fmt: skip
        if bad:
            wrong[step] = "\n".join(line for row in bad for line in row.lines())
    return wrong


def put(name: str, *path: Any) -> Callable[[dict[str, Any]], None]:
    """Set the value at a path of a file: `put("ttft.json", "ttft_p50", 1.0)`."""

    def change(files: dict[str, Any]) -> None:
        inner = files[name]
        for key in path[:-2]:
            inner = inner[key]
        inner[path[-2]] = path[-1]

    return change


def scale(name: str, factor: float, *keys: str) -> Callable[[dict[str, Any]], None]:
    """Multiply all values of these keys in a file."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                k: v * factor if k in keys and v is not None else walk(v) for k, v in value.items()
            }
        return [walk(one) for one in value] if isinstance(value, list) else value

    def change(files: dict[str, Any]) -> None:
        if name.endswith(".jsonl"):
            rows = [walk(json.loads(line)) for line in files[name].splitlines()]
            files[name] = "".join(json.dumps(row) + "\n" for row in rows)
        else:
            files[name] = walk(files[name])

    return change


def chunks(edit: Callable[[list[dict[str, Any]]], Any]) -> Callable[[dict[str, Any]], None]:
    def change(files: dict[str, Any]) -> None:
        rows = [json.loads(line) for line in files["chunks.jsonl"].splitlines()]
        edit(rows)
        files["chunks.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)

    return change


def text(name: str, old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(files: dict[str, Any]) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return change


def swap(name: str, a: Any, b: Any) -> Callable[[dict[str, Any]], None]:
    def change(files: dict[str, Any]) -> None:
        value = files[name]
        value[a], value[b] = value[b], value[a]

    return change


def rename(name: str, other: str) -> Callable[[dict[str, Any]], None]:
    return lambda files: files.update({other: files.pop(name)})


TTFT = ("ttft_ms", "total_ms", "ttft_p50", "total_p50")
WRONG: dict[str, tuple[str, str, Callable[[dict[str, Any]], Any]]] = {
    "health: props saved": ("server", "health", lambda f: f.update({"health.json": f["props.json"]})),
    "health: curl -i": ("server", "not JSON", lambda f: f.update({"health.json": 'HTTP/1.1 200 OK\r\n\r\n{"status":"ok"}'})),
    "health: an error": ("server", "status", lambda f: f.update({"health.json": {"error": {"message": "Loading model"}}})),
    "health: a web page": ("server", "not JSON", lambda f: f.update({"health.json": "<html>"})),
    "props: the list of models": ("server", "model_path", lambda f: f.update({"props.json": {"data": []}})),
    "props: no context": ("server", "n_ctx", put("props.json", "default_generation_settings", "n_ctx", 0)),
    "props: no slots": ("server", "total_slots", put("props.json", "total_slots", 0)),
    "sse: the role chunk as a piece": ("sse", "this is the role chunk, it is no piece", chunks(lambda r: r.insert(0, {"t_ms": 160.0, "text": "assistant"}))),
    "sse: an empty piece": ("sse", "an empty string is no piece", chunks(lambda r: r.insert(2, {"t_ms": r[2]["t_ms"], "text": ""}))),
    "sse: [DONE] as a piece": ("sse", "found '[DONE]', expected none", chunks(lambda r: r.append({"t_ms": 700.0, "text": "[DONE]"}))),
    "sse: trimmed": ("sse", "white space is a part of a piece", chunks(lambda r: r[1].update(text="bring"))),
    "sse: two together": ("sse", "two pieces were put together", chunks(lambda r: (r[1].update(text="bring your "), r.pop(2)))),
    "sse: the last one missing": ("sse", "piece 10 is missing: expected 'medicines.'", chunks(lambda r: r.pop())),
    "sse: one left out": ("sse", "one of them was left out", chunks(lambda r: r.pop(4))),
    "sse: another answer": ("sse", "piece 1: found 'No ', expected 'Please '", chunks(lambda r: r[0].update(text="No "))),
    "sse: seconds": ("sse", "are these seconds", scale("chunks.jsonl", 0.001, "t_ms")),
    "sse: stamped at the end": ("sse", "stamp each line when it is read", chunks(lambda r: [one.update(t_ms=660.0) for one in r])),
    "sse: from the first piece on": ("sse", "not at the first piece", chunks(lambda r: [one.update(t_ms=one["t_ms"] - 161.5) for one in r])),
    "sse: falling": ("sse", "earlier than the one before", chunks(lambda r: r[4].update(t_ms=1.0))),
    "sse: no [DONE]": ("sse", "the stream has its end", text("sse_raw.txt", "data: [DONE]\n\n", "")),
    "sse: without data:": ("sse", "piece", text("sse_raw.txt", "data: ", "")),
    "sse: another default": ("sse", "another default for max_tokens", text("sse.py", "=64", "=128")),
    "sse: async": ("sse", "defines no function stream", text("sse.py", "def ", "async def ")),
    "sse: a JSON array": ("sse", "chunks.jsonl:1", lambda f: f.update({"chunks.jsonl": json.dumps([1])})),
    "ttft: seconds": ("ttft", "are these seconds", scale("ttft.json", 0.001, *TTFT)),
    "ttft: the mean": ("ttft", "this is their mean", put("ttft.json", "ttft_p50", 166.0)),
    "ttft: the largest": ("ttft", "this is the largest", put("ttft.json", "ttft_p50", 176.0)),
    "ttft: four runs": ("ttft", "4 runs", lambda f: f["ttft.json"]["runs"].pop()),
    "ttft: one run five times": ("ttft", "copied", lambda f: f["ttft.json"].update(runs=[f["ttft.json"]["runs"][3]] * 5)),
    "ttft: above total": ("ttft", "ttft < total", put("ttft.json", "runs", 1, "ttft_ms", 9e3)),
    "ttft: too many tokens": ("ttft", "expected at most 64", put("ttft.json", "runs", 1, "tokens", 300)),
    "ttft: a text": ("ttft", "expected a number", put("ttft.json", "ttft_p50", "164 ms")),
    "prefill: other documents": ("prefill", "docs [0, 4, 8]", put("prefill.json", 2, "docs", 8)),
    "prefill: reversed": ("prefill", "docs [12, 4, 0]", lambda f: f["prefill.json"].reverse()),
    "prefill: cached": ("prefill", "a part came from the cache", put("prefill.json", 2, "prompt_n", 600)),
    "prefill: prompt_ms in seconds": ("prefill", "prompt_ms: found", scale("prefill.json", 0.001, "prompt_ms")),
    "prefill: ttft in seconds": ("prefill", "ttft_ms: found", scale("prefill.json", 0.001, "ttft_ms")),
    "prefill: the headers' moment": ("prefill", "the headers or of the role chunk", put("prefill.json", 2, "ttft_ms", 2000.0)),
    "prefill: it does not grow": ("prefill", "prompt_n grows", put("prefill.json", 1, "prompt_n", 58)),
    "cache: legs swapped": ("cache", "are the two swapped", swap("cache.json", "first", "second")),
    "cache: first was warm": ("cache", "the first leg was warm already", put("cache.json", "first", "prompt_n", 40)),
    "cache: all tokens counted": ("cache", "usage.prompt_tokens", put("cache.json", "second", "prompt_n", 1362)),
    "cache: another prompt": ("cache", "character for character", put("cache.json", "second", {"prompt_n": 1365, "ttft_ms": 4101.0})),
    "cache: cache off": ("cache", "cache-never-hits", put("cache.json", "second", {"prompt_n": 1362, "ttft_ms": 4101.0})),
    "cache: the line at the end": ("cache", "at its end it is no changed prefix", put("cache.json", "changed_prefix", {"prompt_n": 47, "ttft_ms": 200.0})),
    "cache: seconds": ("cache", "another unit", scale("cache.json", 0.001, "ttft_ms")),
    "sentence: two sentences": ("sentence", "this goes on behind it", put("sentence.json", "first_sentence", "Eat nothing for twelve hours. Drink water only.")),
    "sentence: all of it": ("sentence", "this is the whole text", put("sentence.json", "first_sentence", TEXT)),
    "sentence: cut in 3.5": ("sentence", "a dot inside a number", lambda f: f["sentence.json"].update(text="Wait 3.5 hours. Then eat.", first_sentence="Wait 3.")),
    "sentence: total as its moment": ("sentence", "which is total_ms", put("sentence.json", "first_sentence_ms", 1700.0)),
    "sentence: ttft as its moment": ("sentence", "which is ttft_ms", put("sentence.json", "first_sentence_ms", 170.0)),
    "sentence: of another text": ("sentence", "prefix of text", put("sentence.json", "first_sentence", "Sleep well.")),
    "sentence: seconds": ("sentence", "are these seconds", scale("sentence.json", 0.001, "ttft_ms", "first_sentence_ms", "total_ms")),
    "cancel: seconds": ("cancel", "are these seconds", put("cancel.json", "closed_at_ms", 0.501)),
    "cancel: too soon": ("cancel", "expected about 500", put("cancel.json", "closed_at_ms", 200.0)),
    "cancel: too late": ("cancel", "expected about 500", put("cancel.json", "closed_at_ms", 60000.0)),
    "cancel: another limit": ("cancel", "expected 256", put("cancel.json", "max_tokens", 64)),
    "cancel: the answer had ended": ("cancel", "answer-ended", put("cancel.json", "received_tokens", 256)),
    "cancel: no log": ("cancel", "voice-llm log > server.log", lambda f: f.pop("server.log")),
    "cancel: a log without the line": ("cancel", "cancel-not-logged", text("server.log", "cancel task", "finish task")),
    "cancel: an earlier task": ("cancel", "not of an earlier request", text("server.log", "0.40.502.000 W srv          stop: cancel task, id_task = 9", "0.01.050.000 W srv          stop: cancel task, id_task = 3")),
    "cancel: null": ("cancel", "slot_idle_after_ms is null", put("cancel.json", "slot_idle_after_ms", None)),
    "report: the cold leg's": ("report", "cache.json's first.ttft_ms, the cold leg's", put("report.json", "cache_ttft_ms", 4100.0)),
    "report: the first row's": ("report", "the ttft_ms of 0 documents", put("report.json", "ttft_12docs_ms", 182.0)),
    "report: seconds": ("report", "in seconds", put("report.json", "total_p50_ms", 1.666)),
    "report: a key renamed": ("report", "the key 'cancel_idle_ms'", lambda f: f["report.json"].update(idle=f["report.json"].pop("cancel_idle_ms"))),
    "a file of nearly that name": ("sse", "there is chunk.jsonl: rename it", rename("chunks.jsonl", "chunk.jsonl")),
    "UTF-16": ("ttft", "is UTF-16", lambda f: f.update({"ttft.json": json.dumps(f["ttft.json"]).encode("utf-16")})),
    "a comma too many": ("ttft", "not JSON", lambda f: f.update({"ttft.json": json.dumps(f["ttft.json"])[:-1] + ",}"})),
    "a key twice": ("cancel", "a key twice", lambda f: f.update({"cancel.json": json.dumps(f["cancel.json"]).replace("{", '{"max_tokens": 256, ', 1)})),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_directory(name: str, tmp_path: Path) -> None:
    step, words, change = WRONG[name]
    files = right()
    change(files)
    wrong = graded(tmp_path, files)
    assert step in wrong
    assert words in wrong[step], wrong[step]


# What files cannot show: such directories pass, and this list says so.
UNSEEN: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "ttft measured with the cache on": ("later runs are as fast on a server that is warmed up", lambda f: None),
    "times of another day": ("no file says when it was measured", scale("sentence.json", 1.3, "ttft_ms", "first_sentence_ms", "total_ms")),
    "idle time counted from the request": ("a slow notice looks the same", put("cancel.json", "slot_idle_after_ms", 531.0)),
    "invented numbers that agree": ("nothing signs them", scale("ttft.json", 1.0, *TTFT)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSEEN)
def test_what_files_cannot_show(name: str, tmp_path: Path) -> None:
    files = right()
    UNSEEN[name][1](files)
    assert set(graded(tmp_path, files)) <= {"report"}


RIGHT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "as it is": lambda f: None,
    "Windows' line ends": lambda f: f.update({n: v.replace("\n", "\r\n") for n, v in f.items() if n in ("sse_raw.txt", "chunks.jsonl", "server.log")}),
    "no timings": lambda f: f.update({"sse_raw.txt": f["sse_raw.txt"].replace('"timings"', '"other"')}),
    "another log, without stamps": text("server.log", "0.40.502.000 W srv          stop", "srv stop"),
    "whole milliseconds": lambda f: f["sentence.json"].update(ttft_ms=170, total_ms=1700),
    "keys of one's own": lambda f: f["cache.json"].update(note="x"),
    "a first request that was slow": lambda f: (f["ttft.json"]["runs"][0].update(ttft_ms=1900.0, total_ms=2400.0), f["ttft.json"].update(ttft_p50=169.0, total_p50=1669.0), f["report.json"].update(ttft_p50_ms=169.0, total_p50_ms=1669.0)),
    "a log of two runs of the server": lambda f: f.update({"server.log": f["server.log"] + RESTARTED}),
    "a first prefill that waited": lambda f: f["prefill.json"][0].update(prompt_ms=10.0, ttft_ms=3200.0) or f["prefill.json"][1].update(ttft_ms=3300.0),
    "a first request that loaded the model": lambda f: f.update({"chunks.jsonl": "".join(json.dumps({**json.loads(line), "t_ms": json.loads(line)["t_ms"] + 6000.0}) + "\n" for line in f["chunks.jsonl"].splitlines())}),
    "a sentence that is all": lambda f: (f["sentence.json"].update(text="Eat nothing", first_sentence="Eat nothing", first_sentence_ms=1690.0), f["report.json"].update(first_sentence_ms=1690.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_directory(name: str, tmp_path: Path) -> None:
    files = right()
    RIGHT[name](files)
    assert graded(tmp_path, files) == {}


def test_what_is_not_done_yet_is_no_failure(tmp_path: Path) -> None:
    files = {
        name: value for name, value in right().items() if name in ("health.json", "props.json")
    }
    wrong = graded(tmp_path, files)
    assert "server" not in wrong
    assert all(words.startswith(NotDoneYet.__name__) for words in wrong.values())
    assert len(wrong) == 7
