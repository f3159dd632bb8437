"""What shows that a server is idle: /slots, a gauge in /metrics, or an answer of one token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llm_latency import sse
from pytest_llm_latency.evidence.activity import ONE_TOKEN, Poll, answer_of
from pytest_llm_latency.evidence.recording import End, Recording, Reply, Request
from pytest_llm_latency.sse import Read
from pytest_llm_latency.steps.cancel import measure, watch
from pytest_llm_latency.steps.cancel.case import cancel_case
from pytest_llm_latency.steps.cancel.idle import watched_by
from pytest_llm_latency.steps.cancel.measure import _closed_in_prefill
from pytest_llm_latency.steps.cancel.watch import Watcher
from pytest_llm_latency.steps.legs import Recordings

PIECE = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("text", "busy"),
    [
        ("llamacpp:requests_processing 0\n", 0),
        ("# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\n", 2),
        (
            'vllm:num_requests_running{engine="0",model_name="a b"} 1.0\nvllm:num_requests_running{engine="1"} 2.0\n',
            3,
        ),
        ('sglang:num_running_reqs{model_name="m"} 0.0 1732900000000\r\n', 0),
        ("vllm:num_requests_running_total 7\n", None),
        ("my_vllm:num_requests_running 7\n", None),
        ("vllm:num_requests_running NaN\n", None),
        ("vllm:num_requests_running " + "9" * 400 + "\n", 2**53),
        ("", None),
    ],
)
def test_a_gauge_of_running_requests(text: str, busy: int | None) -> None:
    assert answer_of(200, text).busy == busy
    assert answer_of(404, text).busy is None


def answered(status: int, body: bytes) -> Recording:
    return Recording(
        "x",
        Request("GET", "/", {}, {}),
        status,
        (),
        None,
        None,
        (Read(1.0, body),),
        End("eof", 1.0),
    )


def streamed(times: list[float], end: bytes, max_tokens: int = 256) -> Recording:
    reads = (*(Read(t_ms, PIECE) for t_ms in times), Read(times[-1] + 1, end))
    return Recording(
        "x",
        Request("POST", "/", {}, {"max_tokens": max_tokens}),
        200,
        (),
        0.1,
        1.0,
        reads,
        End("eof", times[-1] + 1),
    )


LONG = streamed([100.0 + 10 * n for n in range(50)], FINISH)  # 490 ms
NONE = answered(404, b"{}")


@pytest.mark.parametrize(
    ("beside", "found", "words"),
    [
        ({"slots": answered(200, b'[{"is_processing": false}]')}, "/slots", None),
        ({"slots": answered(200, b'[{"is_processing": true}]')}, None, "/slots says that the server is busy"),
        ({"metrics": answered(200, b"llamacpp:requests_processing 0\n")}, "/metrics", None),
        ({"metrics": answered(200, b"vllm:num_requests_running 1\n")}, None, "/metrics says that the server is busy"),
        ({}, None, "it has no gauge of running requests"),
        ({"two-at-once-long": LONG, "two-at-once-short": streamed([480.0], FINISH)}, "1-token request", None),
        ({"two-at-once-long": LONG, "two-at-once-short": streamed([120.0], FINISH)}, None, "it answers two requests at once"),
        ({"two-at-once-long": streamed([100.0, 110.0], DONE), "two-at-once-short": streamed([20.0], FINISH)}, None, "a second request ends the first"),
        ({"two-at-once-long": LONG, "two-at-once-short": answered(429, b"slow down")}, None, "two requests at once failed: HTTP 429"),
        ({"two-at-once-long": streamed([1.0, 1.2], FINISH), "two-at-once-short": streamed([9.0], FINISH)}, None, "over too soon to tell"),
    ],
)  # fmt: skip
def test_what_is_watched(beside: Recordings, found: str | None, words: str | None) -> None:
    way, why = watched_by({"slots": NONE, **beside})
    assert way == found
    assert (why is None) == (words is None)
    assert words is None or words in str(why)


def closed_after(pieces: int) -> Recording:
    reads = tuple(Read(100.0 + 10 * n, PIECE) for n in range(pieces))
    body = {"max_tokens": 256}
    return Recording(
        "x", Request("POST", "/", {}, body), 200, (), 0.1, 1.0, reads, End("closed", 500.0)
    )


@pytest.mark.parametrize(
    ("answered_ms", "stop"),
    [(80.0, "stopped"), (1500.0, "unknown"), (2500.0, "ran on")],
)
def test_a_one_token_answer_tells_by_its_time(answered_ms: float, stop: str) -> None:
    """256 tokens at a beat of 10 ms; a 1-token request takes 50 ms on an idle server."""
    beside = {
        "two-at-once-long": LONG,
        **{f"one-token-{n}": streamed([50.0], FINISH) for n in (1, 2, 3)},
        "control": streamed([100.0, 110.0, 120.0], FINISH, 16),
    }
    polls = [Poll(1.0, answered_ms, 200, ONE_TOKEN)]
    for pieces in (1, 20):  # the beat is the long answer's, or its own
        case = cancel_case("first-piece-1", closed_after(pieces), polls, None, None, None, beside)
        assert case.stop == stop
        assert case.idle_after_ms == pytest.approx(answered_ms - 50.0)
    # In prefill the time that passes proves nothing but a stop.
    case = cancel_case("prefill", closed_after(0), polls, None, None, None, beside)
    assert case.stop == ("stopped" if stop == "stopped" else "unknown")


@pytest.mark.parametrize(
    ("control_gap_ms", "stop"),
    [(10.0, "stopped"), (5.0, "unknown"), (2.0, "ran on"), (None, "unknown")],
)
def test_time_alone_proves_nothing_without_a_control(
    control_gap_ms: float | None, stop: str
) -> None:
    """Idle 600 ms after a close with 236 tokens to go at a beat of 10 ms. Where the server is five
    times as fast after it (other work has ended), that is the rest of the answer; where nothing
    was measured after it, nobody knows."""
    polls = [
        Poll(590.0, 595.0, 200, '[{"id": 0, "state": 1}]'),
        Poll(599.0, 600.0, 200, '[{"id": 0, "state": 0}]'),
    ]
    beside = (
        {}
        if control_gap_ms is None
        else {"next": streamed([100.0 + control_gap_ms * n for n in range(8)], FINISH, 16)}
    )
    case = cancel_case("first-piece-1", closed_after(20), polls, None, None, None, beside)
    assert (case.stop, case.shown_busy) == (stop, True)


@pytest.mark.parametrize(
    ("idle_ms", "stop", "late"),
    [
        (40.0, "stopped", False),
        (1000.0, "stopped", False),
        (1400.0, "stopped", True),
        (2300.0, "ran on", True),
    ],
)
def test_a_log_that_lies(idle_ms: float, stop: str, late: bool) -> None:
    """The line alone is what the server says: 236 tokens to go at a beat of 10 ms."""
    polls = [
        Poll(idle_ms - 5, idle_ms - 4, 200, '[{"id": 0, "state": 1}]'),
        Poll(idle_ms - 1, idle_ms, 200, '[{"id": 0, "state": 0}]'),
    ]
    beside = {"next": streamed([100.0 + 10 * n for n in range(8)], FINISH, 16)}
    log = b"task 7 | processing task\nstop: cancel task, id_task = 7\n"
    case = cancel_case("close-at", closed_after(20), polls, log, None, None, beside)
    assert (case.stop, case.late, case.log_line is not None) == (stop, late, True)


def test_what_polls_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stays busy, with answers of any length, is asked no more."""
    body = b'[{"id": 0, "is_processing": true, "padding": "%b"}]' % (b"x" * 300)
    asked: list[str] = []

    def get(path: str, **_: Any) -> Reply:
        asked.append(path)
        return Reply(200, body, 1.0)

    monkeypatch.setattr(Watcher, "way", "/slots")
    monkeypatch.setattr(Watcher, "path", "/slots")
    monkeypatch.setattr(watch, "POLLED_AT_MOST", 1000)
    bench: Any = SimpleNamespace(behind=SimpleNamespace(get=get))
    polls = Watcher(bench, None, {})._poll("x", sse.now(), False)
    assert len(polls) == len(asked) == 3


@pytest.mark.parametrize(
    ("stops", "counts", "noted"),
    [
        (["stopped"], "stopped", 0),
        (["unknown"], "unknown", 0),
        (["ran on", "stopped"], "stopped", 1),
        (["ran on", "ran on"], "ran on", 1),
    ],
)
def test_a_close_in_prefill_that_did_not_stop_it_is_made_once_more(
    monkeypatch: pytest.MonkeyPatch, stops: list[str], counts: str, noted: int
) -> None:
    """llama.cpp's own server, with nothing before it, did not look at its client in 6.5 s, once."""
    recordings: dict[str, Any] = {}
    notes: list[str] = []
    left = iter(stops)

    def extra_close(name: str, *_: Any, **__: Any) -> list[Any]:
        case = SimpleNamespace(
            stop=next(left), prompt_processed=9, prompt_tokens=9, idle_after_ms=1
        )
        recordings[name] = case
        return [SimpleNamespace(case=lambda _: case)]

    monkeypatch.setattr(measure, "_long_prompt", lambda _: SimpleNamespace(messages=[]))
    bench: Any = SimpleNamespace(
        progress=lambda _: None,
        token_question=lambda _: None,
        note=lambda _, text: notes.append(text),
    )
    watcher: Any = SimpleNamespace(extra_close=extra_close)
    (close,) = _closed_in_prefill(bench, watcher, recordings)
    assert (close.case(recordings).stop, len(notes), list(left)) == (counts, noted, [])
