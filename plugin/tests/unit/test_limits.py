"""Limits of how often a server is asked: what is waited for, and what they prove: nothing."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from scripted import Connection, Request, Script, end_events, serving, text_event

from pytest_llm_latency.errors import RateLimited
from pytest_llm_latency.evidence import limits
from pytest_llm_latency.evidence.derive import derive
from pytest_llm_latency.evidence.recording import End, Recording
from pytest_llm_latency.evidence.recording import Request as Asked
from pytest_llm_latency.plan import Plan
from pytest_llm_latency.servers.capabilities import Capabilities
from pytest_llm_latency.sse import Read
from pytest_llm_latency.steps.answers import usable
from pytest_llm_latency.steps.bench import Bench
from pytest_llm_latency.steps.cancel.watch import ask_one_token
from pytest_llm_latency.steps.sse.judge import judge_sse
from pytest_llm_latency.steps.sse.result import sse_result
from pytest_llm_latency.verdicts.pairs import cached_below_uncached, long_above_short
from pytest_llm_latency.verdicts.stream import comes_as_made, ttft_below_total
from pytest_llm_latency.wire.client import Client
from pytest_llm_latency.wire.costs import Costs
from pytest_llm_latency.wire.exchange import Exchange

HELLO = [{"role": "user", "content": "hi"}]


def refused(status: int, words: str = "overloaded", **headers: str) -> Recording:
    body = json.dumps({"error": {"message": words}}).encode()
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    asked = Asked("POST", "/v1/chat/completions", {}, {"messages": HELLO})
    return Recording("ttft/1", asked, status, named, 1.0, 2.0, (Read(2.0, body),), End("eof", 3.0))


DATES = {"Retry_After": "Thu, 03 Dec 2026 12:00:30 GMT", "Date": "Thu, 03 Dec 2026 12:00:00 GMT"}


@pytest.mark.parametrize(
    ("recording", "wait_s"),
    [
        (refused(429, Retry_After="2"), 2.0),
        (refused(429, "Please try again in 1s.", Retry_After="0.5"), 0.5),
        (refused(429, **DATES), 30.0),
        (refused(429, Retry_After=DATES["Retry_After"]), None),
        (refused(429, "Rate limit reached for gpt-5. Please try again in 1s. Visit"), 1.0),
        (refused(429, "Please try again in 346ms."), 0.346),
        (refused(429, "Please try again in 7m12.5s."), 432.5),
        (refused(429, "Please retry in 27.5s."), 27.5),
        (refused(429, "Try again in 20 seconds"), 20.0),
        (refused(429, "Limit 3, Used 3 in 20 s"), None),
    ],
)
def test_the_wait_that_is_asked_for(recording: Recording, wait_s: float | None) -> None:
    assert limits.asked_wait_s(recording) == wait_s


@pytest.mark.parametrize(
    ("recording", "waits", "pause_s"),
    [
        (refused(429), 0, 1.0),
        (refused(429), 3, 8.0),
        (refused(429), 5, None),
        (refused(529), 0, 1.0),
        (refused(503, Retry_After="3"), 0, 3.0),
        (refused(503), 0, None),
        (refused(500, Retry_After="3"), 0, None),
        (refused(429, Retry_After="61"), 0, None),
        (refused(429, "insufficient_quota: check your plan and billing details"), 0, None),
    ],
)
def test_what_is_waited_for(recording: Recording, waits: int, pause_s: float | None) -> None:
    assert limits.pause_s(recording, waits) == pause_s


def limiting(times: int, after: str = "0.2") -> Script:
    """Refuses so many requests, then answers."""
    left = [times]

    def script(connection: Connection, _: Request) -> None:
        if left[0]:
            left[0] -= 1
            connection.send(
                f"HTTP/1.1 429 Slow Down\r\nRetry-After: {after}\r\nConnection: close\r\n\r\n"
                '{"error": {"message": "overloaded"}}'
            )
            return
        connection.head()
        for _ in range(3):
            connection.send(text_event("word "))
            time.sleep(0.005)
        connection.send(end_events())

    return script


def test_it_is_asked_again_with_a_clock_of_its_own() -> None:
    kept: list[Recording] = []
    waited: list[tuple[str, float]] = []
    costs = Costs(None, "")

    def wait(label: str, seconds: float) -> None:
        waited.append((label, seconds))
        time.sleep(seconds)

    with serving(limiting(2)) as server:
        client = Client(server.base_url, keep=kept.append, wait=wait, spend=costs.spend)
        recording = client.record(HELLO, label="ttft/1")
    assert waited == [("ttft/1", 0.2)] * 2
    assert kept == [recording]  # the refusals are no evidence
    assert (recording.status, costs.requests, len(server.requests)) == (200, 1, 3)
    assert usable(recording).text == "word word word "
    assert (recording.end.t_ms or 0.0) < 200.0


def test_a_refusal_leaves_nothing_for_the_reader_of_tokens() -> None:
    with serving(limiting(1)) as server:
        exchange = Exchange(Client(server.base_url), "a/b", close_on_token=True)
        reads = list(exchange.send({"messages": HELLO, "max_tokens": 8, "stream": True}))
    assert exchange.recording is not None
    assert exchange.recording.end.kind == "closed"
    assert len(derive(exchange.recording).pieces) == 1
    assert not any(b"overloaded" in read.data for read in reads)


def test_a_server_that_goes_meanwhile_cannot_be_connected_to() -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(limiting(1)))
        client = Client(server.base_url, wait=lambda *_: stack.close())
        recording = client.record(HELLO, label="a/b")
    assert (recording.status, recording.connect_ms) == (None, None)
    assert recording.end.detail.startswith("cannot connect")


def test_who_must_not_wait_does_not() -> None:
    with serving(limiting(1)) as server:
        recording = Client(server.base_url).record(HELLO, label="a/b", waits=False)
    assert (recording.status, len(server.requests)) == (429, 1)


def test_a_request_whose_moment_tells_does_not_wait() -> None:
    with serving(limiting(1)) as server:
        client = Client(server.base_url)
        offers = Capabilities(client.dialect)
        quiet: Any = lambda *_: None  # noqa: E731
        bench = Bench(client, offers, client, offers, Plan(), (), quiet, quiet, quiet)
        recording = ask_one_token(bench, "after-close-at")
    assert (recording.status, len(server.requests)) == (429, 1)


@pytest.mark.parametrize("after", ["3600", "61"])
def test_a_long_wait_is_told_instead(after: str) -> None:
    kept: list[Recording] = []
    with serving(limiting(9, after)) as server:
        recording = Client(server.base_url, keep=kept.append).record(HELLO, label="ttft/1")
    assert (kept, len(server.requests)) == ([recording], 1)
    with pytest.raises(RateLimited, match=f"wants {after} s of waiting .HTTP 429: overloaded"):
        usable(recording)


def test_a_limit_proves_nothing() -> None:
    timeline = derive(refused(429, Retry_After="90"))
    verdicts = [
        ttft_below_total(timeline),
        comes_as_made(timeline),
        long_above_short(timeline, timeline),
        cached_below_uncached(timeline, timeline),
    ]
    stream: Any = judge_sse(sse_result({"stream-1": refused(529)}))
    assert stream[0].relation == "the stream has its end"
    for verdict in (*verdicts, stream[0], stream[3]):
        assert (verdict.outcome, verdict.cause.code) == ("inconclusive", "rate-limited"), verdict
    assert all(verdict.outcome != "broken" for verdict in stream)


def test_another_failure_is_no_limit() -> None:
    verdict = ttft_below_total(derive(refused(503)))
    assert (verdict.outcome, verdict.cause and verdict.cause.code) == ("broken", "stream-error")
