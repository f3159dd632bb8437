"""Slots, the server's log, the knowledge base, artifacts' checks, the terminal's safety."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llm_latency import kb
from pytest_llm_latency.errors import ArtifactError, ConfigError
from pytest_llm_latency.evidence.activity import Poll, answer_of, slots_state
from pytest_llm_latency.evidence.artifacts import Cache, Cancel, Prefill, Ttft, dump, parse
from pytest_llm_latency.evidence.server_log import cancel_line
from pytest_llm_latency.lab.files import first_difference
from pytest_llm_latency.report.inert import inert


@pytest.mark.parametrize(
    ("body", "busy"),
    [
        ('[{"id": 0, "is_processing": false}]', 0),
        ('[{"is_processing": true}, {"is_processing": false}]', 1),
        ('[{"state": 1}, {"state": 0}]', 1),
    ],
)
def test_slots_today_and_before(body: str, busy: int) -> None:
    assert answer_of(200, body).busy == busy


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            501,
            '{"error": {"message": "This server does not support slots endpoint."}}',
            "HTTP 501 This",
        ),
        (404, "", "HTTP 404"),
        (200, "<html>", "no list of slots"),
        (200, "[]", "no list of slots"),
        (200, "[" * 5000, "no list of slots"),
        (200, '[{"id": 0}]', "neither is_processing nor state"),
    ],
)
def test_slots_that_say_nothing_are_not_idle(status: int, body: str, words: str) -> None:
    answer = answer_of(status, body)
    assert answer.busy is None
    assert words in (answer.missing or "")


@pytest.mark.parametrize(
    ("slots", "finished"),
    [
        ([{"is_processing": False, "id_task": 3, "next_token": [{"has_next_token": False}]}], True),
        ([{"is_processing": False, "id_task": 3, "next_token": {"has_next_token": True}}], False),
        ([{"is_processing": False}], None),
        ([{"is_processing": False, "id_task": 3, "next_token": [{"has_next_token": False}]},
          {"is_processing": False, "id_task": 8, "next_token": [{"has_next_token": True}]}], False),
    ],
)  # fmt: skip
def test_an_answer_that_came_to_its_end_is_told_from_a_cancelled_one(
    slots: list[dict[str, object]], finished: bool | None
) -> None:
    assert answer_of(200, json.dumps(slots)).finished is finished


def poll(asked: float, busy: bool) -> Poll:
    return Poll(asked, asked + 1.0, 200, json.dumps([{"is_processing": busy}]))


def test_idle_is_known_to_the_time_since_it_was_busy() -> None:
    idle = slots_state([poll(0.5, True), poll(10.0, True), poll(20.0, False)])
    assert (idle.idle_after_ms, idle.resolution_ms) == (21.0, 11.0)
    idle = slots_state([poll(0.5, False)])
    assert (idle.idle_after_ms, idle.resolution_ms) == (1.5, 1.5)
    assert slots_state([poll(0.5, True)]).idle_after_ms is None


LOG = b"""0.1 I slot launch_slot_: id  0 | task 7 | processing task, is_child = 0
0.2 W srv          stop: cancel task, id_task = 3
0.3 W srv          stop: cancel task, id_task = 7
"""


def test_only_our_task_s_cancel_counts() -> None:
    assert (cancel_line(LOG) or "").endswith("id_task = 7")
    assert cancel_line(LOG.replace(b"id_task = 7", b"id_task = 8")) is None
    assert cancel_line(b"srv cancel_tasks: cancel task, id_task = 9") is not None
    assert cancel_line(b'{"msg":"cancel task, id_task = 9"}\n') is not None
    assert cancel_line(b"task 7 | processing task") is None


def test_a_long_line_is_read_once() -> None:
    """Work in proportion to the bytes: a pattern that looks back would take hours here."""
    for words in (b"x", b"cancel task ", b"processing task ", b"cancel task, id_task = x "):
        assert cancel_line(words * 200_000 + b"\n" + LOG) is not None


JSON_LOG = b"""{"level":"INFO","msg":"slot is processing task","id_slot":0,"id_task":7}
{"level":"INFO","msg":"cancel task","id_task":3}
{"level":"INFO","msg":"cancel task","id_task":7}
"""


def test_a_log_of_json_lines() -> None:
    assert (cancel_line(JSON_LOG) or "").endswith('"id_task":7}')
    assert cancel_line(JSON_LOG[: JSON_LOG.rindex(b"{")]) is None  # another task's alone


def documents(directory: Path, number: int = 12) -> Path:
    for i in range(number):
        (directory / f"{i:02}.md").write_text(f"\n# {i}\n\n", encoding="utf-8")
    return directory


def test_kb_in_name_order(tmp_path: Path) -> None:
    documents(tmp_path)
    (tmp_path / "notes.txt").write_text("no document")
    assert kb.read(tmp_path, "x") == tuple(f"# {i}" for i in range(12))


def test_kb_errors_name_option_file_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--llm-kb: .*gone does not exist"):
        kb.read(tmp_path / "gone", "--llm-kb")
    with pytest.raises(ConfigError, match=r"has 0 \*.md files; the lab needs at least 12"):
        kb.read(tmp_path, "--llm-kb")
    documents(tmp_path, 11)
    with pytest.raises(ConfigError, match="has 11"):
        kb.read(tmp_path, "--llm-kb")
    documents(tmp_path)
    with pytest.raises(ConfigError, match="is not a directory"):
        kb.read(tmp_path / "00.md", "--llm-kb")
    (tmp_path / "05.md").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"05\.md is not UTF-8 \(byte 0xe9 at offset 3\)"):
        kb.read(tmp_path, "--llm-kb")
    (tmp_path / "05.md").write_bytes(b" \n")
    with pytest.raises(ConfigError, match=r"05\.md is empty"):
        kb.read(tmp_path, "--llm-kb")


def test_whole_numbers_and_numbers_that_no_float_holds() -> None:
    assert (
        parse(
            Cancel,
            '{"max_tokens": 256.0, "received_tokens": 3, "closed_at_ms": 1, "slot_idle_after_ms": null}',
            "x",
        ).max_tokens
        == 256
    )
    for number in ("1" + "0" * 400, "9007199254740992", "Infinity"):
        with pytest.raises(ArtifactError, match="expected a"):
            parse(
                Cancel,
                f'{{"max_tokens": {number}, "received_tokens": 3, "closed_at_ms": 1, "slot_idle_after_ms": null}}',
                "x",
            )
    with pytest.raises(ArtifactError, match="a key twice"):
        parse(Cancel, '{"max_tokens": 1, "max_tokens": 2}', "x")


LEG = '{"prompt_n": 1, "ttft_ms": 2.0}'


def test_artifacts_round_trip() -> None:
    text = f'{{"first": {LEG}, "second": {LEG}, "changed_prefix": {LEG}, "more": 1}}'
    cache = parse(Cache, text, "cache.json")
    assert cache.second.prompt_n == 1
    assert parse(Cache, dump(cache), "x") == cache
    assert "changed_suffix" not in dump(cache)
    null = parse(Cancel, dump(Cancel(256, 3, 500.0, None)), "x")
    assert null.slot_idle_after_ms is None


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (Cache, f'{{"first": {LEG}, "second": {LEG}}}', "x: expected the key 'changed_prefix'"),
        (Cache, "[]", "x: expected an object, found list"),
        (Cache, "{", "x: not JSON"),
        (Ttft, '{"runs": [], "ttft_p50": 1, "total_p50": 1}', "x.runs: expected at least 1 items"),
        (Ttft, '{"runs": [{"ttft_ms": "1", "total_ms": 2, "tokens": 3}], "ttft_p50": 1, "total_p50": 1}',
         'x.runs[0].ttft_ms: expected a number, found "1"'),
        (Ttft, '{"runs": [{"ttft_ms": NaN, "total_ms": 2, "tokens": 3}], "ttft_p50": 1, "total_p50": 1}',
         "x.runs[0].ttft_ms: expected a number, found NaN"),
        (Ttft, '{"runs": [{"ttft_ms": -1, "total_ms": 2, "tokens": 3}], "ttft_p50": 1, "total_p50": 1}',
         "x.runs[0].ttft_ms: expected a number of at least 0"),
        (Ttft, '{"runs": [{"ttft_ms": 1, "total_ms": 2, "tokens": true}], "ttft_p50": 1, "total_p50": 1}',
         "x.runs[0].tokens: expected an integer, found true"),
        (Prefill, '[{"docs": 0, "prompt_n": 1.5, "prompt_ms": 1, "ttft_ms": 1}, {}]',
         "x[0].prompt_n: expected an integer, found 1.5"),
    ],
)  # fmt: skip
def test_artifact_errors_name_path_and_expectation(kind: type, text: str, words: str) -> None:
    with pytest.raises(ArtifactError) as error:
        parse(kind, text, "x")
    assert str(error.value).startswith(words)


def test_deep_data_is_compared_in_time_that_grows_with_its_size() -> None:
    deep: Any = 1
    other: Any = 2
    for _ in range(60):
        deep, other = {"x": deep}, {"x": other}
    assert first_difference(deep, deep, "it") is None
    assert str(first_difference(deep, other, "it")).endswith("1, expected 2")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("::error::x", ": :error::x"),
        ("  ::error::x", "  : :error::x"),
        ("test.py::test", "test.py::test"),
        ("a ##[error]b", "a ## [error]b"),
        ("a\u2028b\u2029c", "a\ufffdb\ufffdc"),
    ],
)
def test_commands_to_who_reads_the_output_are_none(said: str, shown: str) -> None:
    assert inert(said) == shown


def test_text_of_a_model_is_inert() -> None:
    nasty = "a\x1b[31mb\r\nc\x07\u202e\u200bd\U000e0041"
    assert inert(nasty) == "a\ufffd[31mb\ufffd c\ufffd\ufffd\ufffdd\ufffd"
