"""What is derived from recordings: three different first moments, counts, sentences, ends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pytest_llm_latency.evidence.derive import derive
from pytest_llm_latency.evidence.recording import End, EndKind, Recording, Request, dump, load
from pytest_llm_latency.evidence.timeline import Piece, Timeline
from pytest_llm_latency.sse import Read
from pytest_llm_latency.steps.sentence.result import first_sentence


def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}


def recording(
    *events: tuple[float, Any], status: int = 200, end: EndKind = "eof", detail: str = ""
) -> Recording:
    """One read per event; a str is taken as raw bytes of the stream."""
    reads = tuple(
        Read(t, e.encode() if isinstance(e, str) else f"data: {json.dumps(e)}\n\n".encode())
        for t, e in events
    )
    last = events[-1][0] if events else 0.0
    request = Request("POST", "/v1/chat/completions", {}, {"messages": []})
    return Recording("own/1", request, status, (), 0.1, 1.0, reads, End(end, last, detail))


DONE = "data: [DONE]\n\n"


def test_headers_role_and_text_are_three_moments() -> None:
    timeline = derive(
        recording(
            (10.0, chunk({"role": "assistant", "content": None})),
            (1000.0, chunk({"content": "Hi"})),
            (1100.0, chunk({}, "stop")),
            (1101.0, DONE),
        )
    )
    assert timeline.ttft_ms == timeline.first_token_ms == 1000.0
    assert timeline.total_ms == 1101.0
    assert [piece.text for piece in timeline.pieces] == ["Hi"]
    assert timeline.done
    assert not timeline.cut_short


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_a_first_token_but_no_first_text(name: str) -> None:
    timeline = derive(
        recording(
            (50.0, chunk({"content": "", name: "hm"})),
            (90.0, chunk({"content": "So"})),
            (95.0, DONE),
        )
    )
    assert (timeline.first_token_ms, timeline.ttft_ms) == (50.0, 90.0)


def test_reasoning_only_has_no_first_text() -> None:
    timeline = derive(recording((50.0, chunk({"reasoning": "hm"}, "length")), (60.0, DONE)))
    assert timeline.ttft_ms is None
    assert timeline.first_token_ms == 50.0
    assert timeline.finish_reason == "length"


def test_tokens_come_from_the_server_never_from_pieces() -> None:
    pieces = [(float(t), chunk({"content": "a"})) for t in range(3)]
    assert derive(recording(*pieces, (9.0, DONE))).tokens is None
    usage = {"choices": [], "usage": {"completion_tokens": 12, "prompt_tokens": 7}}
    timeline = derive(recording(*pieces, (8.0, usage), (9.0, DONE)))
    assert timeline.tokens == 12
    assert timeline.prompt_total == 7
    assert timeline.prompt_n is None  # how many of the 7 were cached is not said: not zero


def test_the_last_timings_count() -> None:
    timeline = derive(
        recording(
            (1.0, chunk({"content": "a"}, timings={"prompt_n": 1, "cache_n": 0})),
            (2.0, {"choices": [], "timings": {"prompt_n": 60, "cache_n": 40, "predicted_n": 5}}),
            (3.0, DONE),
        )
    )
    assert (timeline.prompt_n, timeline.cache_n, timeline.prompt_total) == (60, 40, 100)
    assert timeline.tokens == 5
    assert timeline.cold is False


def test_cached_tokens_null_is_not_zero() -> None:
    usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": None}}
    timeline = derive(recording((1.0, chunk({"content": "a"}, usage=usage)), (2.0, DONE)))
    assert timeline.cache_n is None
    assert timeline.cold is None
    usage["prompt_tokens_details"] = {"cached_tokens": 5}
    timeline = derive(recording((1.0, chunk({"content": "a"}, usage=usage)), (2.0, DONE)))
    assert (timeline.prompt_n, timeline.cold) == (95, True)


def test_an_error_inside_the_stream_is_no_success() -> None:
    timeline = derive(
        recording(
            (1.0, chunk({"content": "a"})), (2.0, {"error": {"message": "T", "code": 500}}), (3.0, DONE)
        )
    )  # fmt: skip
    assert timeline.error == "the server reports inside the stream: T"


def test_the_text_of_a_prompt_is_measured_as_tokens_hold_it() -> None:
    def characters(content: Any) -> int:
        made = recording((1.0, DONE))
        body = {"messages": [{"role": "user", "content": content}]}
        return derive(replace(made, request=replace(made.request, body=body))).prompt_characters

    assert characters("four words of text") == 18
    assert characters("a" + "=" * 4000) == 4  # a ruler is few tokens
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A1" * 9000}}
    assert characters([{"type": "text", "text": "what is it?"}, image]) == 11
    assert characters(None) == 0


def test_done_inside_the_text_is_text() -> None:
    timeline = derive(
        recording((1.0, chunk({"content": "data: [DONE]"})), (2.0, chunk({}, "stop")), end="eof")
    )
    assert timeline.text == "data: [DONE]"
    assert not timeline.done
    assert not timeline.cut_short  # a finish_reason came


def test_cut_short() -> None:
    assert derive(recording((1.0, chunk({"content": "a"})), end="eof")).cut_short
    assert not derive(recording((1.0, chunk({"content": "a"})), end="closed")).cut_short


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (recording((1.0, '{"error":{"message":"no such model"}}'), status=404, end="eof"),
         "HTTP 404: no such model"),
        (recording((1.0, "<html>hello"), end="eof"), "the answer is no event stream: <html>hello"),
        (recording((1.0, "data: {oops\n\n"), end="eof"), "an event is not a JSON object: '{oops'"),
        (recording(end="deadline", detail="gap deadline: x"), "gap deadline: x"),
    ],
)  # fmt: skip
def test_what_is_no_answer(made: Recording, words: str) -> None:
    assert derive(made).error == words


def test_a_recording_survives_its_file() -> None:
    made = recording((1.0, "data: \u4f60"), (2.5, "\r\n\r\n"))
    half = made.reads[0].data[:-1]
    made = Recording(
        **{**vars(made), "reads": (Read(1.0, half), Read(2.0, b"\xa0\xff"), *made.reads)}
    )
    assert load(dump(made).decode(), "x") == made


def pieces(*texts: str) -> list[Piece]:
    return [Piece(float(number), text) for number, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("texts", "sentence", "moment"),
    [
        (["It is 3", ".5", " now.", " Yes"], "It is 3.5 now.", 4.0),
        (["Open at 9 a.m", ". to one"], "Open at 9 a.m.", 2.0),
        (["a.m.x? ", "b"], "a.m.x?", 1.0),
        (["No end"], "No end", 1.0),
        (["Ends here", "."], "Ends here.", 2.0),
        (["One!", "\n", "Two"], "One!", 2.0),
        (["Wait...", " what"], "Wait...", 2.0),
    ],
)
def test_first_sentence(texts: list[str], sentence: str, moment: float) -> None:
    assert first_sentence(pieces(*texts)) == (sentence, moment)


def test_an_empty_timeline_claims_nothing() -> None:
    timeline = Timeline()
    assert timeline.ttft_ms is timeline.prompt_n is timeline.tokens is timeline.cold is None


@pytest.mark.parametrize("value", [-5, True, 10**400, 2**53, "7", [7], 7.5, float("nan")])
def test_what_is_no_count_is_not_said(value: Any) -> None:
    """A server's odd number is never read as a count."""
    timings = {"prompt_n": value, "predicted_n": value}
    timeline = derive(recording((1.0, chunk({"content": "a"}, timings=timings)), (2.0, DONE)))
    assert timeline.prompt_n is timeline.tokens is None


@pytest.mark.parametrize("value", [-5.0, True, 10**400, float("nan"), float("inf"), "7"])
def test_what_is_no_time_is_not_said(value: Any) -> None:
    timings = {"prompt_ms": value, "predicted_ms": value}
    timeline = derive(recording((1.0, chunk({"content": "a"}, timings=timings)), (2.0, DONE)))
    assert timeline.prompt_ms is timeline.predicted_ms is None


def test_the_careful_rule_moves_the_moment() -> None:
    """ "8 a.m." ends nothing until the next word tells."""
    parts = pieces("We open at 8 a.m.", " ", "on Monday", ".", " ", "Come.")
    assert first_sentence(parts)[0] == "We open at 8 a.m."
    assert first_sentence(parts, "careful") == ("We open at 8 a.m. on Monday.", parts[4].t_ms)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (b"data: plain\n\n", "text"),
        ('data: 好 "quoted"\r\n\t'.encode(), "text"),
        (b"\x00" * 100 + b"\x1b[0m", "base64"),
        (b"data: \xff", "base64"),
        (b"\x1b[1mbold\x1b[0m and much more text than escapes", "text"),
    ],
)
def test_a_read_is_kept_in_the_shorter_form(data: bytes, key: str) -> None:
    """JSON writes a NUL as six characters: what is sent as one byte would be six on the disk."""
    made = replace(recording(), reads=(Read(1.0, data),))
    line = dump(made).splitlines()[1]
    assert set(json.loads(line)) == {"t_ms", key}
    assert len(line) < 2 * len(data) + 60
    assert load(dump(made).decode(), "x").reads == made.reads
