"""Any bytes as an answer: the end is a recording or a sentence, never another exception."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from collections.abc import Iterator
from dataclasses import asdict

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scripted import Connection, Request, Scripted, serving

from pytest_llm_latency import sse
from pytest_llm_latency.errors import ServerError
from pytest_llm_latency.evidence.activity import answer_of
from pytest_llm_latency.evidence.derive import derive
from pytest_llm_latency.evidence.endpoints import is_offered, is_props, lists_models
from pytest_llm_latency.evidence.recording import Reply, dump, load
from pytest_llm_latency.steps.bench import context_size
from pytest_llm_latency.verdicts import causes
from pytest_llm_latency.wire.channel import Deadlines
from pytest_llm_latency.wire.client import Client

DEADLINES = Deadlines(connect=5.0, first_byte=1.0, gap=1.0, total=1.5, query=1.5)
SECONDS_AT_MOST = 6.0  # on a busy machine

NAMES = [
    *(
        "choices",
        "delta",
        "content",
        "index",
        "finish_reason",
        "message",
        "text",
        "error",
        "errors",
    ),
    *("code", "status", "status_code", "detail", "type", "object", "usage", "timings", "prompt_n"),
    *("cache_n", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "completion_tokens"),
    *("reasoning_content", "thinking", "tool_calls", "data", "id", "is_processing", "state"),
    *("id_task", "next_token", "n_ctx", "default_generation_settings", "total_slots", "base_resp"),
    *(
        "msg",
        "loc",
        "x_groq",
        "parts",
        "value",
        "success",
        "prompt_ms",
        "predicted_n",
        "error_code",
    ),
]
SCALARS = [
    *("null", "true", "false", "0", "-1", "1", "0.5", "NaN", "-Infinity", "1e999", "9" * 400),
    *("9" * 5000, '"9999999999999999999999"', f'"{"9" * 5000}"', '""', '"a"', '"\\ud83d"', '"\\u0000"'),
    *('"<think>"', '"error"', '"stop"', '"\u2028"', "[" * 300 + "]" * 300, '"data: [DONE]"', "\x00"),
]  # fmt: skip


def _json(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    rows = st.lists(inner, max_size=3).map(lambda found: "[" + ",".join(found) + "]")
    pairs = st.lists(st.tuples(st.sampled_from(NAMES), inner), max_size=4)
    return rows | pairs.map(lambda p: "{" + ",".join(f'"{name}":{v}' for name, v in p) + "}")


JSON = st.recursive(st.sampled_from(SCALARS), _json, max_leaves=8)
CHUNK = JSON.map(lambda v: f'{{"choices":[{{"index":0,"delta":{v},"finish_reason":{v}}}],"a":{v}}}')
ENDS = st.sampled_from(["\n\n", "\r\n\r\n", "\r\r", "\n", ""])
FIELDS = st.sampled_from(["data: ", "data:", "event: ", "error: ", ": ", "id: ", "", "\ufeff"])
EVENT = st.tuples(FIELDS, JSON | CHUNK | st.just("[DONE]"), ENDS).map("".join)
BODY = st.one_of(
    st.lists(EVENT, max_size=5).map(lambda events: "".join(events).encode("utf-8")),
    JSON.map(str.encode),
    st.binary(max_size=60),
    st.sampled_from([b"5\r\nhello\r\n", b"0\r\n\r\n", b"-1\r\n", b"FFFFFFFFFFFFFFF\r\n", b"\r\n"]),
)
CODED = st.tuples(
    BODY, st.sampled_from([bytes, gzip.compress, lambda data: b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)])
).map(lambda pair: pair[1](pair[0]))  # fmt: skip
STATUS = st.sampled_from(
    [
        *("HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.1 200", "HTTP/1.0 200 OK", "HTTP/1.1 204 X"),
        *("HTTP/1.1 400 X", "HTTP/1.1 307 X", "HTTP/1.1 401 X", "HTTP/1.1 500 \xff", "HTTP/1.1 100 X"),
        *("HTTP/1.1 101 X", "HTTP/1.1 103 X", "HTTP/2 200", "HTTP/1.1 99999 X", "HTTP/1.1 -20", "ICY"),
        *("HTTP/1.1 304 X", "HTTP/9.9 200 OK", "", "HTTP/1.1 \u0661\u0662\u0663 X", "HTTP/1.1 999 X"),
    ]
)  # fmt: skip
HEADER = st.sampled_from(
    [
        *("Content-Length: 5", "Content-Length: -1", "Content-Length: 5, 6", "Content-Length: 1_0"),
        *("Content-Length: 99999999999999999999", "Content-Length: x", "Content-Length: \u0665"),
        *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Content-Encoding: gzip"),
        *("Content-Encoding: deflate", "Content-Encoding: br", "Content-Encoding: gzip, deflate"),
        *("Content-Encoding: \xff", "Location: http://[::1", "Location: \xff", "Location: //", "x"),
        *("Set-Cookie: a=b; expires=never", "Set-Cookie: \xff=;;;=", "Retry-After: 1", ": x", " x"),
        *("Content-Type: text/event-stream; charset=\xff", "Content-Type: multipart/x; boundary="),
        *("Connection: close", "Connection: keep-alive", "Upgrade: h2c", "X: " + "y" * 70_000, "A:b\rc"),
        *("Trailer: x", "Link: <a>; rel=\x00", "Content-Type: message/rfc822", "X-A: =?utf-8?q?=ff?="),
    ]
)  # fmt: skip
HEAD = st.tuples(STATUS, st.lists(HEADER, max_size=4)).map(
    lambda head: "\r\n".join((head[0], *head[1])).encode("utf-8") + b"\r\n\r\n"
)
ANSWER = st.one_of(
    st.tuples(HEAD, CODED).map(b"".join),
    st.tuples(HEAD, HEAD, CODED).map(b"".join),
    st.tuples(HEAD, CODED, st.integers(0, 200)).map(lambda a: (a[0] + a[1])[: -a[2] or None]),
    st.binary(max_size=200),
)
OK = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Scripted, list[bytes]]]:
    """A server and what it answers to everything."""
    answer = [b""]

    def script(connection: Connection, _: Request) -> None:
        connection.send(answer[0])

    with serving(script) as running:
        yield running, answer


def check(server: tuple[Scripted, list[bytes]], answer: bytes) -> None:
    running, answers = server
    answers[0] = answer
    client = Client(running.base_url, deadlines=DEADLINES, api_key="sk-0123456789")
    began = time.perf_counter()
    recording = client.record([{"role": "user", "content": "hi"}], close_on_token=True)
    timeline = derive(recording)
    causes.unusable(timeline)
    assert load(dump(recording).decode(), "x") == recording
    sse.json_text([asdict(piece) for piece in timeline.pieces])
    assert not (timeline.error or "").startswith("Error -3")  # zlib's words are behind ours
    try:
        look_at(client.get("/props"))
    except ServerError as error:
        told = str(error)
        assert told.startswith(f"GET {running.base_url}/props: "), told
        assert "/props: Error -3" not in told, told
    assert time.perf_counter() - began < SECONDS_AT_MOST


def look_at(reply: Reply) -> None:
    is_offered(reply), is_props(reply), lists_models(reply), context_size(reply)
    answer_of(reply.status, reply.body)
    value = sse.value_of(reply.body)
    sse.json_text(value)


QUICK = settings(max_examples=200, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=4_000)


@QUICK
@example(OK + b'{"status": "' + b"9" * 5000 + b'"}')
@example(OK + b'data: {"status": "' + b"9" * 5000 + b'", "message": "m"}\n\n')
@example(OK + b'data: {"choices":[{"finish_reason":{"type":[]}}]}\n\n')
@example(OK + b"data: " + b'{"content":' * 90 + b"1" + b"}" * 90 + b"\n\n")
@example(b"HTTP/1.1 200 OK\r\nContent-Encoding: " + b"gzip, " * 5 + b"\r\n\r\nx")
@example(b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n\x78\x9cgarbage")
@example(b"HTTP/1.1 307 X\r\nLocation: http://[::1\r\nContent-Encoding: gzip\r\n\r\ngarbage")
@given(ANSWER)
def test_any_bytes(server: tuple[Scripted, list[bytes]], answer: bytes) -> None:
    check(server, answer)


@pytest.mark.zoo
@pytest.mark.timeout(1200)
@LONG
@given(ANSWER)
def test_many_bytes(server: tuple[Scripted, list[bytes]], answer: bytes) -> None:
    check(server, answer)


STREAM = st.tuples(st.lists(EVENT, max_size=6), st.integers(0, 300))


def check_stream(events: list[str], at: int) -> None:
    """`stream()`, which users call, raises nothing but what it says."""
    data = "".join(events).encode()
    reads = [sse.Read(1.0, data[:at]), sse.Read(2.0, data[at:])]
    with contextlib.suppress(sse.StreamFailure):
        pieces, _, timings = sse.stream([], send=lambda _: reads)
        sse.chunk_lines(pieces)
        json.dumps(timings)


@QUICK
@example((['data: {"choices":[{"finish_reason":{"type":[]}}]}\n\n'], 0))
@given(STREAM)
def test_any_stream(stream: tuple[list[str], int]) -> None:
    check_stream(*stream)


@pytest.mark.zoo
@pytest.mark.timeout(1200)
@LONG
@given(STREAM)
def test_many_streams(stream: tuple[list[str], int]) -> None:
    check_stream(*stream)
