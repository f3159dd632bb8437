"""What servers, gateways and models put into a stream: text in other clothes, failures in all
forms, keep-alives, reasoning between tags, counts in other places. Each as public reports,
documentation or sources have it (docs/field.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_llm_latency import sse
from pytest_llm_latency.evidence.derive import derive
from pytest_llm_latency.evidence.recording import End, Recording, Reply, Request, dump, load
from pytest_llm_latency.evidence.thoughts import TAGS, thought_in
from pytest_llm_latency.evidence.timeline import Timeline
from pytest_llm_latency.steps.sentence.result import first_sentence
from pytest_llm_latency.steps.sse.judge import pieces_are_raw_content
from pytest_llm_latency.steps.sse.measure import stream_notes
from pytest_llm_latency.steps.sse.result import sse_result
from pytest_llm_latency.verdicts import causes
from pytest_llm_latency.verdicts.stream import comes_as_made, ttft_below_total

DONE = "data: [DONE]\n\n"


def event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


def chunk(delta: dict[str, Any], finish: Any = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def text(words: str) -> str:
    return event(chunk({"content": words}))


STOP = event(chunk({}, "stop"))


def recorded(events: Sequence[str], kind: Any = "eof") -> Recording:
    """An event every 10 ms from 100 ms on."""
    reads = tuple(sse.Read(100.0 + 10.0 * i, one.encode()) for i, one in enumerate(events))
    request = Request("POST", "/v1/chat/completions", {}, {"messages": [], "max_tokens": 64})
    last = reads[-1].t_ms if reads else 0.0
    return Recording("sse/stream-1", request, 200, (), 1.0, 50.0, reads, End(kind, last))


def read(*events: str) -> Timeline:
    return derive(recorded(events))


FAILURES: dict[str, tuple[str, str]] = {
    "error at the top": (event({"error": {"message": "out of memory", "code": 500}}), "out of memory"),
    "error as text": (event({"error": "model crashed"}), "model crashed"),
    "error true": (event({"error": True, "message": "out of luck"}), "out of luck"),
    "error true alone": (event({"error": True}), "without words"),
    "error as a list": (event({"error": [{"message": "first"}]}), "first"),
    "errors (Cloudflare)": (event({"success": False, "errors": [{"code": 7003, "message": "no route"}]}), "no route"),
    "in the choice (OpenRouter)": (event({"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": {"code": 502, "message": "provider gone"}}]}), "provider gone"),
    "finish_reason error": (event(chunk({}, "error")), "finish_reason 'error'"),
    "finish_reason network_error (Zhipu)": (event(chunk({}, "network_error")), "network_error"),
    "finish_reason of DeepSeek": (event(chunk({}, "insufficient_system_resource")), "insufficient_system_resource"),
    "an abort (SGLang)": (event(chunk({}, {"type": "abort", "message": "aborted by the scheduler"})), "aborted by the scheduler"),
    "object error (vLLM)": (event({"object": "error", "message": "engine died", "code": 500}), "engine died"),
    "type error (Anthropic)": (event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), "Overloaded"),
    "event error": ('event: error\ndata: {"message": "busy"}\n\n', "busy"),
    "event error in plain words": ("event: error\ndata: upstream timed out\n\n", "upstream timed out"),
    "event error without words": ("event: error\ndata:\n\n", "without words"),
    "field error (llama.cpp of 2024)": ('error: {"code": 500, "message": "slot failed"}\n\n', "slot failed"),
    "error_type (TGI)": (event({"error": "Request failed during generation", "error_type": "generation"}), "Request failed"),
    "error_message": (event({"error_message": "quota", "error_type": "limit"}), "quota"),
    "error_code (Baidu)": (event({"error_code": 336003, "error_msg": "the max length is 20000"}), "the max length"),
    "base_resp (MiniMax)": (event({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}), "insufficient balance"),
    "detail (FastAPI)": (event({"detail": "Internal failure"}), "Internal failure"),
    "detail as a list": (event({"detail": [{"loc": ["body"], "msg": "field required"}]}), "field required"),
    "code and message (DashScope)": (event({"code": "InvalidParameter", "message": "bad request"}), "bad request"),
    "status and message": (event({"status": 503, "message": "no worker"}), "no worker"),
    "an empty code (Cerebras)": (event({"status_code": 500, "error": {"message": "Encountered a server error", "type": "server_error", "param": "", "code": "", "id": ""}}), "Encountered a server error"),
    "code none": (event({"error": {"code": "none", "message": "no worker"}}), "no worker"),
    "code 0, and a type": (event({"error": {"code": 0, "type": "server_error", "message": "no worker"}}), "no worker"),
    "in x_groq (Groq)": (event(chunk({}, "stop", x_groq={"id": "r", "error": "over capacity"})), "over capacity"),
    "finish_reason ERROR (Cohere)": (event(chunk({}, "ERROR")), "finish_reason 'ERROR'"),
    "finish_reason TIMEOUT (Cohere)": (event(chunk({}, "TIMEOUT")), "finish_reason 'TIMEOUT'"),
    "event ERROR": ('event: ERROR\ndata: {"message": "busy"}\n\n', "busy"),
    "event exception": ('event: exception\ndata: {"message": "busy"}\n\n', "busy"),
    "statusCode": (event({"statusCode": 500, "message": "Internal server error"}), "Internal server error"),
    "errorType (AWS Lambda)": (event({"errorMessage": "Task timed out", "errorType": "Sandbox.Timedout"}), "Task timed out"),
    "an exception (Bedrock)": (event({"modelStreamErrorException": {"message": "model gone"}}), "model gone"),
    "response.failed": (event({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "it failed"}}}), "it failed"),
    "event in the data": (event({"event": "error", "message": "it failed"}), "it failed"),
    "text that is no JSON": ("data: oops\n\n", "is not a JSON object: 'oops'"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_inside_a_stream(name: str) -> None:
    failure, words = FAILURES[name]
    for rest in ((DONE,), (STOP, DONE), ()):
        timeline = read(text("a "), text("b "), failure, *rest)
        cause = causes.unusable(timeline)
        assert cause is not None, name
        assert cause.code == "stream-error"
        assert words in cause.sentence
        assert len(timeline.pieces) == 2
        with pytest.raises(sse.StreamFailure, match=words.replace("(", r"\(")):
            sse.stream([], send=lambda _, rest=rest: recorded([text("a "), failure, *rest]).reads)


NO_FAILURE: dict[str, dict[str, Any]] = {
    **{f"error {value!r}": {"error": value} for value in (None, False, "", {}, [], 0, {"code": 0}, {"message": "", "code": None}, {"code": 0, "message": "success"}, "null")},
    "error_code 0": {"error_code": 0, "error_msg": ""},
    "base_resp 0": {"base_resp": {"status_code": 0, "status_msg": ""}},
    "errors empty": {"errors": [], "success": True},
    "a code beside choices": {"code": 200, "message": "ok"},
    "a status word": {"status": "in_progress"},
    "error of code 200": {"error": {"code": 200, "message": "OK"}},
    "x_groq without an error": {"x_groq": {"id": "r", "error": None}},
}  # fmt: skip


@pytest.mark.parametrize("name", NO_FAILURE)
def test_what_only_looks_like_a_failure(name: str) -> None:
    timeline = read(event(chunk({"content": "a "}, **NO_FAILURE[name])), text("b"), STOP, DONE)
    assert (timeline.error, timeline.text, timeline.done) == (None, "a b", True)


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "tool_calls", "eos_token"])
def test_reasons_that_are_no_failure(reason: str) -> None:
    timeline = read(text("a"), event(chunk({}, reason)), DONE)
    assert (timeline.error, timeline.finish_reason) == (None, reason)


@pytest.mark.parametrize(
    "between",
    [
        "data:\n\n", "data: \n\n", ":\n\n", ": ping - 2026\n\n", "event: ping\ndata: 12:00:01\n\n",
        "event: heartbeat\ndata:\n\n", "event: ping\n\n", 'event: ping\ndata: {"type": "ping"}\n\n',
        "event: status\ndata: loading\n\n", "id: 7\nretry: 3000\n\n", 'data: {"status": "queued", "message": "waiting"}\n\n',
        'event: metadata\ndata: {"model": "m"}\n\n', 'data: {"choices": []}\n\n', "foo: bar\n\n",
    ],
)  # fmt: skip
def test_what_is_no_piece_no_end_and_no_failure(between: str) -> None:
    timeline = read(between, text("a "), between, text("b"), STOP, between, DONE)
    assert (timeline.error, timeline.done) == (None, True)
    assert [piece.t_ms for piece in timeline.pieces] == [110.0, 130.0]


@pytest.mark.parametrize("end", ["data: [DONE] \n\n", "data:  [DONE]\n\n", "data:[DONE]\n\n", "data: [DONE]\t\r\n\r\n", "event: done\ndata: [DONE]\n\n"])  # fmt: skip
def test_the_end_with_blanks(end: str) -> None:
    timeline = read(text("a"), STOP, end, text("not read"))
    assert (timeline.done, timeline.text) == (True, "a")
    reads = [(0.0, text("a").encode()), (0.1, end.encode()), (0.2, b"")]
    assert len(list(sse.read_stream(reads, 0.0))) == 2


def test_done_inside_a_text_is_no_end() -> None:
    timeline = read(text("[DONE]"), text(" data: [DONE]"), STOP, DONE)
    assert timeline.text == "[DONE] data: [DONE]"


CLOTHES: dict[str, list[dict[str, Any]]] = {
    "delta": [chunk({"content": "Good "}), chunk({"content": "day."})],
    "parts (Mistral)": [chunk({"content": [{"type": "text", "text": "Good "}]}), chunk({"content": [{"type": "text", "text": "da"}, {"type": "text", "text": "y."}]})],
    "parts without a type": [chunk({"content": ["Good "]}), chunk({"content": {"text": "day."}})],
    "output_text": [chunk({"content": [{"type": "output_text", "text": "Good "}]}), chunk({"content": "day."})],
    "message": [{"choices": [{"message": {"content": "Good "}}]}, {"choices": [{"message": {"content": "day."}}]}],
    "text (completions)": [{"choices": [{"index": 0, "text": "Good "}]}, {"choices": [{"index": 0, "text": "day."}]}],
    "a delta that is text": [{"choices": [{"delta": "Good "}]}, {"choices": [{"delta": "day."}]}],
    "delta null beside text": [{"choices": [{"delta": None, "text": "Good "}]}, {"choices": [{"delta": None, "text": "day."}]}],
    "delta beside the message so far (Perplexity)": [{"choices": [{"index": 0, "delta": {"content": "Good "}, "message": {"content": "Good "}}]}, {"choices": [{"index": 0, "delta": {"content": "day."}, "message": {"content": "Good day."}}]}],
    "an index that counts the chunks (Foundry Local)": [{"choices": [{"index": i, "delta": {"content": one}}]} for i, one in enumerate(["Go", "od ", "da", "y", "."])],
    "an index that counts from 1 (TGI)": [{"choices": [{"index": i, "delta": {"content": one}}]} for i, one in enumerate(["Go", "od ", "da", "y", "."], 1)],
    "two answers, one after the other": [*(chunk({"content": one}) for one in ["Go", "od ", "da", "y."]), *({"choices": [{"index": 1, "delta": {"content": "BAD"}}]} for _ in range(4))],
    "two answers": [{"choices": [{"index": 1, "delta": {"content": "BAD"}, "finish_reason": "length"}]}, chunk({"content": "Good "}), {"choices": [{"index": 1, "delta": {"content": "BAD"}}, {"index": 0, "delta": {"content": "day."}}]}],
}  # fmt: skip


@pytest.mark.parametrize("name", CLOTHES)
def test_text_in_other_clothes(name: str) -> None:
    events = [*map(event, CLOTHES[name]), STOP, DONE]
    timeline = read(*events)
    assert (timeline.text, timeline.finish_reason, timeline.error) == ("Good day.", "stop", None)
    result = sse_result({"stream-1": recorded(events)})
    assert pieces_are_raw_content(result.raw, result.chunks).outcome == "holds"
    pieces, _, _ = sse.stream([], send=lambda _: recorded(events).reads)
    assert [piece["text"] for piece in pieces] == [piece.text for piece in timeline.pieces]


@pytest.mark.parametrize("number", [1, -1, 7])
def test_the_only_answer_may_have_any_index(number: int) -> None:
    chunks = [
        {"choices": [{"index": number, "delta": {"content": one}, "finish_reason": None}]}
        for one in ("Good ", "day.")
    ]
    chunks.append({"choices": [{"index": number, "delta": {}, "finish_reason": "stop"}]})
    timeline = read(*map(event, chunks), DONE)
    assert (timeline.text, timeline.finish_reason) == ("Good day.", "stop")


@pytest.mark.parametrize(
    "delta",
    [
        {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}]},
        {"content": "hm", "extra_content": {"google": {"thought": True}}},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": [{"type": "reasoning", "text": "hm"}]},
        {"content": {"parts": [{"text": "hm", "thought": True}]}},
        {"reasoning_content": "hm"}, {"reasoning": "hm", "content": ""}, {"thinking": "hm"},
    ],
)  # fmt: skip
def test_reasoning_in_its_own_channel(delta: dict[str, Any]) -> None:
    timeline = read(event(chunk(delta)), text("Yes."), STOP, DONE)
    assert (timeline.text, timeline.first_token_ms, timeline.ttft_ms) == ("Yes.", 100.0, 110.0)
    assert timeline.reasoning is not None


def test_white_space_before_the_reasoning_is_no_answer() -> None:
    """GLM sends a line end before its reasoning."""
    hm = event(chunk({"reasoning_content": "hm"}))
    timeline = read(text("\n"), hm, hm, text("\n\n"), text("Yes."), STOP, DONE)
    assert (timeline.text, timeline.first_token_ms, timeline.ttft_ms) == ("Yes.", 100.0, 140.0)
    assert "".join(piece.text for piece in timeline.sent) == "\n\n\nYes."
    cut_off = read(text("\n"), hm, event(chunk({}, "length")), DONE)
    cause = ttft_below_total(cut_off).cause
    assert cause is not None
    assert cause.code == "only-reasoning"
    # Words before it are an answer; white space without any reasoning is the answer's own.
    assert read(text("Well. "), hm, text("Yes."), STOP, DONE).text == "Well. Yes."
    assert read(text("\n"), text("Yes."), STOP, DONE).ttft_ms == 100.0


@pytest.mark.parametrize("reason", ["null", "none", "", None])
def test_a_finish_reason_that_is_none(reason: Any) -> None:
    timeline = read(event(chunk({"content": "a "}, reason)), event(chunk({"content": "b"}, reason)))
    cause = causes.unusable(timeline)
    assert cause is not None
    assert cause.code == "cut-short"


@pytest.mark.parametrize("status", [200, 201, 202, 206])
def test_any_status_of_success_is_read(status: int) -> None:
    timeline = derive(replace(recorded([text("a"), STOP, DONE]), status=status))
    assert (timeline.error, timeline.text, timeline.done) == (None, "a", True)


@pytest.mark.parametrize(
    "body",
    [
        '{"choices": [{"message": {"content": "Bring your data: name, age."}}]}',
        '<html><img src="data:image/png;base64,AA"></html>',
        '{"metadata: 1": 2}\n{"error: 3": 4}\n',
    ],
)
def test_a_body_that_only_speaks_of_data_is_no_event_stream(body: str) -> None:
    assert (read(body).error or "").startswith("the answer is no event stream: ")


@pytest.mark.parametrize(
    "failure",
    [
        '{"error": {"code": 429, "message": "Resource exhausted"}}\n',
        '{\n  "error": {\n    "code": 429,\n    "message": "Resource exhausted",\n  "status": "X"\n  }\n}\n',
        '[{\n  "error": {"code": 429, "message": "Resource exhausted"}\n}]',
    ],
)
def test_a_failure_beside_the_events(failure: str) -> None:
    """As Gemini sends it in mid-stream, without `data:`."""
    cause = causes.unusable(read(text("a "), text("b "), failure))
    assert cause is not None
    assert (cause.code, "Resource exhausted" in cause.sentence) == ("stream-error", True)


def test_deltas_that_repeat_all_text_so_far() -> None:
    words = ["Good ", "morning ", "to ", "you."]
    so_far = ["".join(words[: n + 1]) for n in range(4)]
    timeline = read(*map(text, [*so_far, so_far[-1]]), STOP, DONE)
    assert [piece.text for piece in timeline.pieces] == words
    assert timeline.repeats
    assert any("repeats all text so far" in note for note in stream_notes(timeline))


@pytest.mark.parametrize("words", [["ha", "ha", "ha"], ["1", "12"], ["a", "ab", "c"], ["no ", "no ", "no way"]])  # fmt: skip
def test_texts_that_repeat_nothing(words: list[str]) -> None:
    timeline = read(*map(text, words), STOP, DONE)
    assert timeline.text == "".join(words)
    assert not timeline.repeats


def test_a_last_message_says_the_answer_again() -> None:
    whole = event(
        {
            "choices": [
                {
                    "index": 0,
                    "message": {"content": "Good morning to you."},
                    "finish_reason": "stop",
                }
            ]
        }
    )
    timeline = read(*map(text, ["Good ", "morning ", "to ", "you."]), whole, DONE)
    assert timeline.text == "Good morning to you."


@pytest.mark.parametrize(("opening", "closing"), TAGS)
@pytest.mark.parametrize("split", [1, 3, 1000])
def test_reasoning_between_tags(opening: str, closing: str, split: int) -> None:
    answer = "We open at nine. Come early."
    whole = f"{opening}\nThe caller asks. Be short.\n{closing}\n\n{answer}"
    parts = [whole[at : at + split] for at in range(0, len(whole), split)]
    timeline = read(*map(text, parts), STOP, DONE)
    assert timeline.text == answer
    assert "".join(piece.text for piece in timeline.sent) == whole
    assert timeline.first_token_ms == 100.0
    first = next(i for i in range(len(parts)) if len("".join(parts[: i + 1])) > whole.index(answer))
    assert timeline.ttft_ms == 100.0 + 10.0 * first
    assert first_sentence(timeline.pieces)[0] == "We open at nine."
    assert timeline.reasoning == f"{opening} in the text"
    assert any(opening in note and "--reasoning" in note for note in stream_notes(timeline))


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("I should be short.</think>\n\nAt nine.", "At nine."),
        ("hm[/THINK]At nine.", "At nine."),
        ("<think>\n\n</think>\n\nAt nine.", "At nine."),
        ("<think>a</think>\n<think>b</think> At nine.", "At nine."),
        ("<think>hm</think>\n<answer>\nAt nine.", "At nine."),
        (" \n<think>hm</think>At nine.", "At nine."),
        ("Close with </think> before you answer. At nine.", "Close with </think> before you answer. At nine."),
        ("I should be short. [BEGIN FINAL RESPONSE]\nAt nine.", "At nine."),
        ("Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\nAt nine.", "At nine."),
        ("<|channel|>final<|message|>At nine.", "At nine."),
        ("<|channel|>commentary<|message|>hm<|channel|>final<|message|>At nine.", "At nine."),
        ("hm</longcat_think>\nAt nine.", "At nine."),
        ("Write <think> and </think> around it.", "Write <think> and </think> around it."),
        ("Here is my response: at nine.", "Here is my response: at nine."),
        ("At nine.", "At nine."),
        ("<b>At nine.</b>", "<b>At nine.</b>"),
    ],
)  # fmt: skip
def test_where_the_answer_begins(words: str, answer: str) -> None:
    thought = thought_in(words)
    assert (words if thought is None else words[thought.answer_at :]) == answer


def test_reasoning_that_never_ends() -> None:
    timeline = read(text("<think>"), text("hm "), text("hm"), event(chunk({}, "length")), DONE)
    assert (timeline.text, timeline.ttft_ms, timeline.first_token_ms) == ("", None, 100.0)
    verdict = ttft_below_total(timeline)
    assert (verdict.outcome, verdict.cause and verdict.cause.code) == (
        "inconclusive",
        "only-reasoning",
    )


def test_events_without_blank_lines() -> None:
    events = [one.replace("\n\n", "\n") for one in (text("a "), text("b"), STOP, DONE)]
    for last in (events[-1], "data: [DONE]", "data: [DONE]\n\n"):
        timeline = read(*events[:-1], last)
        cause = causes.unusable(timeline)
        assert cause is not None
        assert cause.code == "no-blank-lines"
        assert "no blank line between them" in cause.sentence


@pytest.mark.parametrize("last", ["data: [DONE]\n", "data: [DONE]", "data:[DONE]\r\n"])
def test_a_last_line_without_its_blank_line(last: str) -> None:
    timeline = read(text("a "), text("b"), STOP, last)
    assert causes.unusable(timeline) is None
    (note,) = stream_notes(timeline)
    assert note.startswith("the last event ('[DONE]') was not ended by a blank line")


def test_a_stream_cut_off_within_its_last_event() -> None:
    cause = causes.unusable(read(text("a "), text("b").rstrip()))
    assert cause is not None
    assert cause.code == "no-blank-lines"
    # What we closed ourselves ends anywhere.
    assert derive(recorded([text("a "), text("b").rstrip()], "closed")).unended is None


def test_an_event_of_several_data_lines() -> None:
    lines = json.dumps(chunk({"content": "a"}), indent=1).split("\n")
    events = ["".join(f"data: {line}\n" for line in lines) + "\n", STOP, DONE]
    result = sse_result({"stream-1": recorded(events)})
    assert result.timeline.text == "a"
    assert pieces_are_raw_content(result.raw, result.chunks).outcome == "holds"


USAGE = {"prompt_tokens": 100, "completion_tokens": 2}


@pytest.mark.parametrize(
    ("last", "cached"),
    [
        ({"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 90}}}, 90),
        ({"usage": {**USAGE, "input_tokens_details": {"cached_tokens": 90}}}, 90),
        ({"usage": {**USAGE, "cached_tokens": 90}}, 90),
        ({"usage": {**USAGE, "prompt_cache_hit_tokens": 90, "prompt_cache_miss_tokens": 10}}, 90),
        ({"usage": {**USAGE, "cache_read_input_tokens": 90}}, 90),
        ({"x_groq": {"id": "r", "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 90}}}}, 90),
        ({"x_groq": {"usage": USAGE}}, None),
        ({"usage": {**USAGE, "prompt_tokens_details": None}}, None),
        ({"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": None}}}, None),
    ],
)  # fmt: skip
def test_counts_in_other_places(last: dict[str, Any], cached: int | None) -> None:
    timeline = read(text("a"), event({"choices": [], **last}), DONE)
    assert (timeline.prompt_total, timeline.tokens, timeline.cache_n) == (100, 2, cached)
    assert timeline.prompt_n == (None if cached is None else 10)


@pytest.mark.parametrize(
    ("counts", "total", "cached"),
    [
        ({"input_tokens": 100, "output_tokens": 2}, 100, None),
        ({"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 2}, 100, 90),
        ({"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output_tokens": 2}, 100, 90),
    ],
)  # fmt: skip
def test_counts_by_other_names(counts: dict[str, int], total: int, cached: int | None) -> None:
    timeline = read(text("a"), event({"choices": [], "usage": counts}), DONE)
    assert (timeline.prompt_total, timeline.tokens, timeline.cache_n) == (total, 2, cached)


def test_counts_in_parts() -> None:
    """A later chunk that leaves a count empty does not take it back."""
    counts = [
        {"prompt_tokens": 100},
        {"completion_tokens": 2},
        {"prompt_tokens": 0, "completion_tokens": None},
    ]
    timeline = read(text("a"), *(event({"choices": [], "usage": one}) for one in counts), DONE)
    assert (timeline.prompt_total, timeline.tokens) == (100, 2)
    told = {"choices": [], "usage": {**USAGE, "reasoning_tokens": 7}}
    assert read(text("a"), event(told), DONE).reasoning == "hidden"


def test_usage_in_the_choice() -> None:
    kimi = {
        "choices": [
            {
                "index": 0,
                "delta": {},
                "finish_reason": "stop",
                "usage": {**USAGE, "cached_tokens": 64},
            }
        ]
    }
    timeline = read(text("a"), event(kimi), DONE)
    assert (timeline.prompt_total, timeline.cache_n) == (100, 64)


@pytest.mark.parametrize(
    ("url", "root", "paths"),
    [
        ("http://h:1", "http://h:1", ("/v1", "")),
        ("http://h:1/", "http://h:1", ("/v1", "")),
        ("http://h/v1", "http://h", ("/v1",)),
        ("http://h/v1/", "http://h", ("/v1",)),
        ("http://h/proxy/a", "http://h/proxy/a", ("/v1", "")),
        ("http://h/proxy/v1", "http://h/proxy", ("/v1",)),
        ("http://h/api/paas/v4/", "http://h/api/paas", ("/v4",)),
        ("http://h/api/v3", "http://h/api", ("/v3",)),
        ("http://h/v1beta/openai/", "http://h", ("/v1beta/openai", "/v1beta/openai/v1")),
        ("http://h/v1/chat/completions", "http://h", ("/v1",)),
        ("http://h/chat/completions", "http://h", ("",)),
        ("http://h/openai/v1/chat/completions/", "http://h/openai", ("/v1",)),
    ],
)  # fmt: skip
def test_any_base_url(url: str, root: str, paths: tuple[str, ...]) -> None:
    assert sse.api_places(url) == (root, paths)


@pytest.mark.parametrize("location", ["https://h/v1/chat/completions", "https://h/v1/chat/completions?key=S3CRET"])  # fmt: skip
def test_a_redirect_says_where_and_what_to_do(location: str) -> None:
    recording = recorded([])
    request = recording.request
    redirected = Recording(
        "a/b", request, 308, (("Location", location),), 1.0, 2.0, (), End("eof", 3.0)
    )
    error = derive(redirected).error or ""
    assert "redirects to https://h/v1/chat/completions;" in error
    assert "--llm-url=https://h/v1" in error
    assert "S3CRET" not in error


def test_a_recording_of_before_has_no_other_clock() -> None:
    lines = dump(recorded([STOP])).decode().split("\n")
    head = {key: value for key, value in json.loads(lines[0]).items() if key != "clock_off_ms"}
    assert load("\n".join([json.dumps(head), *lines[1:]]), "x").clock_off_ms == 0.0


@pytest.mark.parametrize("off_ms", [-900.0, 2500.0])
def test_a_clock_that_disagrees_blames_nobody(off_ms: float) -> None:
    """A burst by the clock that stood still; well by the one that slept: neither is proven."""
    for gap_ms in (0.0, 30.0):
        reads = tuple(sse.Read(300.0 + gap_ms * i, text("w ").encode()) for i in range(20))
        request = Request("POST", "/", {}, {})
        ended = (sse.Read(reads[-1].t_ms + 1.0, (STOP + DONE).encode()),)
        recording = Recording(
            "a/b",
            request,
            200,
            (),
            1.0,
            2.0,
            (*reads, *ended),
            End("eof", 1.0),
            clock_off_ms=off_ms,
        )
        timeline = derive(load(dump(recording).decode(), "x"))
        for verdict in (ttft_below_total(timeline), comes_as_made(timeline)):
            assert (verdict.outcome, verdict.cause and verdict.cause.code) == (
                "inconclusive",
                "clock-off",
            )


def test_a_hold_is_looked_for_at_any_piece() -> None:
    """An answer without a sentence's end has its last piece as the moment."""
    timeline = read(*(text("w ") for _ in range(12)), STOP, DONE)
    assert [causes.hold_of(timeline, at) for at in (0, 5, 11, -1)] == [None] * 4


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_what_no_file_may_hold_is_null(number: str) -> None:
    """Python's parser takes them, and its writer refuses to write them down."""
    body = f'{{"status": {number}, "n": [1.5, {number}]}}'
    assert sse.value_of(body) == {"status": None, "n": [1.5, None]}
    assert Reply(200, body.encode(), 1.0).json() == {"status": None, "n": [1.5, None]}


@pytest.mark.parametrize(
    "body",
    [
        "[" * 101 + "1" + "]" * 101,
        '{"a":' * 200 + "1" + "}" * 200,
        "[" + "{}," * 100_000 + "{}]",
        '"' + "x" * sse.JSON_BYTES_AT_MOST + '"',
        "[" + "9" * 5000 + "]",
    ],
    ids=["deep", "deeper", "many objects", "long", "a long number"],
)
def test_json_that_nobody_can_look_into_is_none(body: str) -> None:
    assert sse.value_of(body) is None
    assert sse.value_of(body.encode()) is None


def test_json_within_the_bounds_is_read() -> None:
    deep = "[" * 100 + "1" + "]" * 100
    assert sse.value_of(deep) == json.loads(deep)
    wide = [{"id": n} for n in range(90_000)]
    assert sse.value_of(json.dumps(wide).encode()) == wide


def test_an_event_that_is_too_long_is_the_answers_failure() -> None:
    """What came before it stays."""
    timeline = read(text("a "), "data: " + "x" * sse.EVENT_BYTES_AT_MOST)
    assert "no end so far" in (timeline.error or "")
    assert timeline.text == "a "
