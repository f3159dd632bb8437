"""The edges of reading a stream: failures by their framing, what only looks like one, a last event
without its blank line, text that is said again, marks of reasoning, and recordings of before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llm_latency import sse
from pytest_llm_latency.evidence.derive import derive
from pytest_llm_latency.evidence.recording import End, EndKind, Recording, Request, dump, load
from pytest_llm_latency.evidence.thoughts import thought_in
from pytest_llm_latency.evidence.timeline import Timeline
from pytest_llm_latency.steps.sse.raw import by_events, raw_contents
from pytest_llm_latency.verdicts import causes


def event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


def choice(**fields: Any) -> str:
    return event({"choices": [{"index": 0, "finish_reason": None, **fields}]})


def delta(text: Any, finish: str | None = None, **more: Any) -> str:
    one = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return event({"choices": [one], **more})


WORD, FINISH, DONE = delta("word "), delta("", "stop"), "data: [DONE]\n\n"


def recorded(stream: str, end: EndKind = "eof") -> Recording:
    """A read for each event."""
    parts = [part for part in stream.replace("\n\n", "\n\n\0").split("\0") if part]
    reads = tuple(sse.Read(float(number), part.encode()) for number, part in enumerate(parts, 1))
    request = Request("POST", "/v1/chat/completions", {}, {"messages": []})
    return Recording("own/1", request, 200, (), 0.1, 1.0, reads, End(end, float(len(parts))))


def read(stream: str) -> Timeline:
    return derive(recorded(stream))


def pieces(stream: str) -> list[str]:
    """The pieces of an answer, which every reader of ours must find the same."""
    timeline = read(stream)
    assert timeline.error is None
    texts = [piece.text for piece in timeline.sent]
    found, _, _ = sse.stream([], send=lambda _: recorded(stream).reads)
    assert [piece["text"] for piece in found] == texts
    assert [text for text in raw_contents(stream.encode()) if text] == texts
    assert [text for text in raw_contents(by_events(stream.encode())) if text] == texts
    return texts


# --- failures ---


@pytest.mark.parametrize(
    "framed",
    [
        'event: error\ndata: {"message": "T"}\n\n',
        'event: error\ndata: "T"\n\n',
        'data: {"error": {"message": "T"}}\ndata: [DONE]\n\n',  # BerriAI/litellm#25492
        'data: {"error": {"message": "T"}}',  # and the end of the body
        'data: {"error": {"message": "T"}}\n',
        'error: {"code": 500, "message": "T"}\n',  # llama.cpp before 2025
        'error: {"message": "T"}',
        'data: [{"error": {"code": 429, "message": "T"}}]\n\n',  # Google's
        choice(delta={"error": "T"}),
        event({"error": True, "message": "T"}),
    ],
)
def test_a_failure_by_its_framing(framed: str) -> None:
    for before in ("", WORD, WORD + FINISH):
        assert read(before + framed).error == "the server reports inside the stream: T"
        with pytest.raises(sse.Reported, match="T"):
            sse.stream([], send=lambda _, before=before: recorded(before + framed).reads)
    # What stands behind it is not the answer's, in the raw file, either.
    raw = (WORD + framed.rstrip() + "\n\n" + WORD).encode()
    assert [text for text in raw_contents(raw) if text] == ["word "]


@pytest.mark.parametrize(
    "beat",
    [
        'event: status\ndata: {"code": 7, "message": "third in line"}\n\n',
        'event: status\ndata: {"detail": "third in line"}\n\n',
        'event: queue\ndata: {"status": "failed over", "message": "third"}\n\n',
        'data: {"type": "heartbeat"}\n\n',  # PhilflowIO/dav-mcp#31
        "data\n\n",
    ],
)
def test_what_a_queue_tells_is_no_failure(beat: str) -> None:
    assert pieces(beat + WORD + beat + WORD + beat + FINISH + DONE) == ["word ", "word "]


# --- the last event ---


@pytest.mark.parametrize("end", ["\n", "", "\r", "\r\n"])
def test_a_last_chunk_without_its_blank_line_is_read(end: str) -> None:
    for last in (FINISH, delta("end", "stop")):
        timeline = read(WORD + last[:-2] + end)
        assert causes.unusable(timeline) is None
        assert timeline.unended is not None
        assert timeline.finish_reason == "stop"
        assert pieces(WORD + last[:-2] + end) == ["word ", "end"][: 1 + (last != FINISH)]


def test_an_event_that_was_cut_off_is_cut_short() -> None:
    for part in (WORD[:20], WORD[:-8], "data: [DO"):
        timeline = read(WORD + part)
        cause = causes.unusable(timeline)
        assert cause is not None
        assert cause.code == "cut-short"
        assert timeline.unended is None
    cause = causes.unusable(read((WORD * 3).replace("\n\n", "\n") + WORD[:20]))
    assert cause is not None
    assert cause.code == "no-blank-lines"


def test_a_file_made_by_hand_may_lack_blank_lines() -> None:
    glued = (WORD * 2 + FINISH + DONE).replace("\n\n", "\n")
    for raw in (glued, glued + "\n", WORD + glued):
        assert derive(recorded(by_events(raw.encode()).decode())).text == "word " * (
            3 if raw.startswith(WORD) else 2
        )
    many = "".join(
        f"data: {line}\n" for line in json.dumps(json.loads(WORD[6:]), indent=1).split("\n")
    )
    assert pieces(many + "\n" + many + "\n" + FINISH + DONE) == ["word ", "word "]


# --- text ---


@pytest.mark.parametrize("last", [{"delta": {}}, {"delta": None}, {}])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_whole_text_as_a_message_at_the_end_does_not_double_it(
    last: dict[str, Any], count: int
) -> None:
    end = choice(**last, message={"role": "assistant", "content": "word " * count})
    assert pieces(WORD * count + end + FINISH + DONE) == ["word "] * count


@pytest.mark.parametrize("fields", [{"delta": {}, "text": "a "}, {"delta": {}, "message": {"content": "a "}}])  # fmt: skip
def test_an_empty_delta_beside_the_text(fields: dict[str, Any]) -> None:
    assert pieces(choice(**fields) * 2 + FINISH + DONE) == ["a ", "a "]


def test_text_with_annotations() -> None:
    assert pieces(delta([{"type": "text", "text": {"value": "a"}}]) + FINISH + DONE) == ["a"]


@pytest.mark.parametrize("words", [["a", "an", "ant"], [" ", "  ", "   "], ["1", "11", "111"], ["-", "--", "----"], ["ha ", "ha ", "ha ", "ha ha ha "]])  # fmt: skip
def test_short_texts_begin_with_each_other_by_chance(words: list[str]) -> None:
    assert pieces("".join(map(delta, words)) + FINISH + DONE) == words


@pytest.mark.parametrize("name", ["reasoning_details", "reasoning_text", "thinking_blocks"])
def test_further_fields_of_reasoning(name: str) -> None:
    said = [{"type": "reasoning.text", "text": "hm"}]
    timeline = read(choice(delta={"content": "", name: said}) + WORD + FINISH + DONE)
    assert (timeline.reasoning, timeline.first_token_ms, timeline.ttft_ms) == (name, 1.0, 2.0)


@pytest.mark.parametrize(
    "thought",
    [
        "<|inner_prefix|>hm<|inner_suffix|>",  # Apertus
        "<|channel>thought\nhm<channel|>",  # Gemma 4
        "analysisThe user says hi.assistantfinal",  # gpt-oss, its special tokens dropped
        "Here's my thought process:\nhm\nHere's my response:\n",  # Granite
        "<THINK>hm</Think>",
        "<think>then <think> or `</thin`</think>",
    ],
)
def test_further_marks_of_reasoning(thought: str) -> None:
    found = thought_in(thought + "Bring your card.")
    assert found is not None
    assert (thought + "Bring your card.")[found.answer_at :] == "Bring your card."


@pytest.mark.parametrize("text", ["The mark `</think>` ends it.", 'It ends with "</think>".', "Here is my thought process: first, the card.", "analysis of the finances", "<think", "<thinker>"])  # fmt: skip
def test_a_text_that_speaks_of_marks(text: str) -> None:
    assert thought_in(text) is None


# --- recordings of before ---


def test_a_recording_of_before_is_read_as_it_was() -> None:
    """What its run wrote must be derived from it again."""
    counts = {"usage": {"prompt_tokens": 9, "cached_tokens": 4}}
    saved = dump(
        recorded(delta("<think>hm</think>\n\nHello") + delta("", "stop", **counts) + DONE)
    ).decode()
    head, _, rest = saved.partition("\n")
    before = {key: value for key, value in json.loads(head).items() if key != "reading"}
    old = derive(load(json.dumps(before) + "\n" + rest, "x"))
    assert (old.text, old.cache_n) == ("<think>hm</think>\n\nHello", None)
    new = derive(load(saved, "x"))
    assert (new.text, new.cache_n) == ("Hello", 4)


# --- redirects ---


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://other/v1/models", "https://other/v1;"),
        ("/api/v1/chat/completions", "http://h/api/v1/chat/completions;"),
        ("https://me:secret@other/v1?key=secret#secret", "https://other/v1;"),
        ("https://other/" + "x" * 5000, "https://other/xxx"),
    ],
)
def test_where_a_redirect_points(location: str, shown: str) -> None:
    words = sse.redirect_words(301, "http://h/v1/models", location)
    assert f"redirects to {shown}" in words
    assert "secret" not in words
    assert len(words) < 1500
    assert "names no place" in sse.redirect_words(301, "http://h/v1/models", "")
