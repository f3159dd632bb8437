"""Whatever a server says, the directory of its run can be graded, and gives what the run gave."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from pytest_llm_latency.compare.baseline import Measured
from pytest_llm_latency.compare.directory import _ratio
from pytest_llm_latency.compare.ratios import Ratio
from pytest_llm_latency.errors import ArtifactError
from pytest_llm_latency.evidence.recording import End, Recording, Request
from pytest_llm_latency.evidence.run_directory import ERROR_CHARACTERS, RunDirectory
from pytest_llm_latency.evidence.server_log import LINE_BYTES_SHOWN, cancel_line
from pytest_llm_latency.lab.files import MAX_SMALL_BYTES, Files, first_difference
from pytest_llm_latency.lab.graded import GradedLab
from pytest_llm_latency.servers.capabilities import MODELS_KEPT, Capabilities
from pytest_llm_latency.sse import Read
from pytest_llm_latency.steps.server.judge import judge_server
from pytest_llm_latency.steps.server.result import server_result
from pytest_llm_latency.verdicts.verdict import Verdict
from pytest_llm_latency.wire.dialect import Dialect

MAX_BYTES = 64 * 1024 * 1024
PROPS = b'{"model_path": "/m.gguf", "total_slots": 1, "default_generation_settings": {"n_ctx": 8}}'
LONG = 5 << 20


def measured(directory: Path, health: bytes, props: bytes = PROPS) -> list[Verdict]:
    """A run's step 1 with these answers, as the lab measures it; its verdicts."""
    run = RunDirectory(directory, {})
    run.begin_step("server")
    recordings = {}
    for name, body in (("health", health), ("props", props)):
        end = End("eof", 2.0)
        request = Request("GET", f"/{name}", {}, {})
        reads = (Read(1.0, body),)
        recordings[name] = Recording(f"server/{name}", request, 200, (), 0.0, 1.0, reads, end)
        run.keep(recordings[name])
    result = server_result(recordings)
    for name, reply in result.files():
        run.write(name, reply.body, "server")
    run.commit_step("server")
    verdicts = judge_server(result)
    run.add_verdicts("server", [asdict(verdict) for verdict in verdicts])
    broken = any(verdict.outcome == "broken" for verdict in verdicts)
    run.finish_step("server", outcome="failed" if broken else "passed")
    run.save()
    run.close()
    return verdicts


ODD = {
    "NaN": b'{"status": NaN}',
    "NaN beside": b'{"status": "ok", "load": NaN, "more": [NaN]}',
    "infinite": b'{"status": "ok", "load": 1e999, "more": -Infinity}',
    "minus zero": b'{"status": "ok", "load": -0.0}',
    "half a pair": b'{"status": "ok\\ud83d"}',
    "a key twice": b'{"status": "loading", "status": "ok"}',
    "5,000 digits": b'{"status": "ok", "load": ' + b"9" * 5_000 + b"}",
    "nested": b'{"status": "ok", "load": ' + b"[" * 700 + b"]" * 700 + b"}",
    "nested without end": b'{"status": "ok", "load": ' + b"[" * 100_000,
    "UTF-16": '{"status": "ok"}'.encode("utf-16"),
    "a mark before it": b'\xef\xbb\xbf{"status": "ok"}',
    "not UTF-8": b'{"status": "\xff"}',
    "long": b'{"status": "ok' + b"M" * LONG + b'"}',
    "long, and escaped": b'{"status": "ok' + b'\\"' * (LONG // 2) + b'"}',
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
@pytest.mark.parametrize("name", ["health", "props"])
def test_an_odd_answer_is_graded_as_it_ran(tmp_path: Path, name: str, body: bytes) -> None:
    if name == "props":
        body = body.replace(b"{", PROPS[:-1] + b", ", 1)
    answers = (body, PROPS) if name == "health" else (b'{"status": "ok"}', body)
    verdicts = measured(tmp_path, *answers)
    lab = GradedLab(tmp_path, MAX_BYTES)
    judged = judge_server(lab.server())
    assert judged == verdicts
    assert [one for one in lab.extra("server", judged) if one.outcome != "holds"] == []


def test_json_that_is_written_otherwise_is_the_same(tmp_path: Path) -> None:
    files = Files(tmp_path, MAX_BYTES)
    (tmp_path / "a.json").write_text('{\n"a": [NaN, 1e999, -0.0]}')
    assert files.difference("a.json", b'{"a":[NaN,Infinity,0.0]}') is None
    assert (
        files.difference("a.json", b'{"a":[1.0,Infinity,0.0]}') == "a.json.a[0]: NaN, expected 1.0"
    )
    assert (
        files.difference("a.json", b'{"a":[NaN,Infinity,1.0]}') == "a.json.a[2]: -0.0, expected 1.0"
    )
    (tmp_path / "raw.txt").write_text("a")
    assert files.difference("raw.txt", b"a") is None
    assert files.difference("raw.txt", b"b") == "raw.txt: differs from the recorded bytes"
    assert first_difference(float("nan"), None, "x") is not None


def test_what_a_server_says_of_itself_is_bounded(tmp_path: Path) -> None:
    long = "M" * LONG
    models = (long, *(f"model-{number}" for number in range(200_000)))
    said = Capabilities(
        Dialect(long), models=models, props=f"/props?model={long}", slots_missing=long, stream_error=long
    )  # fmt: skip
    kept = said.facts()["models"]
    assert kept[1:3] == ["model-0", "model-1"]
    assert len(kept) == MODELS_KEPT + 1
    assert kept[-1] == f"... ({200_001 - MODELS_KEPT:,} more)"
    assert len(json.dumps(said.facts())) < 20_000
    few = Capabilities(Dialect(None, None), models=("a", "b"))
    assert few.facts()["models"] == ["a", "b"]
    run = RunDirectory(tmp_path, {"offers": said.facts()})
    run.begin_step("sse")
    run.fail_step("sse", long)
    run.save()
    run.close()
    assert (tmp_path / "run.json").stat().st_size < 20_000 + ERROR_CHARACTERS


def test_a_line_of_the_log_is_bounded() -> None:
    part = b"task 7 | processing task\nsrv cancel task, id_task = 7 " + b"x" * LONG
    line = cancel_line(part)
    assert line is not None
    assert line.startswith("srv cancel task, id_task = 7 x")
    assert len(line) == LINE_BYTES_SHOWN


def test_a_text_that_is_compared_is_kept_in_short() -> None:
    ratio = Ratio("sentence", (0.5,), 0.0, text=("One.", "M" * LONG))
    kept = _ratio(Measured((), ratio, lambda: None))
    assert kept["text"][0] == "One."
    assert len(kept["text"][1]) < 1_000
    assert len(ratio.text[1]) == LONG


def test_a_small_file_may_not_be_large(tmp_path: Path) -> None:
    """Only what holds a server's words grows with them."""
    files = Files(tmp_path, 2 * MAX_SMALL_BYTES)
    for name, limit in (("ttft.json", MAX_SMALL_BYTES), ("health.json", 2 * MAX_SMALL_BYTES)):
        (tmp_path / name).write_bytes(b" " * limit)
        assert len(files.read_bytes(name)) == limit
        (tmp_path / name).write_bytes(b" " * (limit + 1))
        with pytest.raises(ArtifactError, match=f"{name}: {limit + 1:,} bytes are more than"):
            files.read_bytes(name)
