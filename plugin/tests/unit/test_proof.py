"""What a grading looks for in a run's recordings, where bounds, secrets and dialects meet it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scripted import Connection, Request, serving

from pytest_llm_latency import sse
from pytest_llm_latency.evidence.derive import TokenWatch
from pytest_llm_latency.evidence.recording import End, Recording
from pytest_llm_latency.evidence.recording import Request as Sent
from pytest_llm_latency.proof.closes import _first_token
from pytest_llm_latency.proof.recordings import _read_with_done
from pytest_llm_latency.proof.requests import _differing
from pytest_llm_latency.wire.client import Client
from pytest_llm_latency.wire.exchange import Exchange

TOKEN = b'data: {"choices": [{"index": %d, "delta": {"content": "hi"}}]}\n\n'


def recorded(*parts: bytes) -> Recording:
    reads = tuple(sse.Read(10.0 * number, part) for number, part in enumerate(parts, 1))
    request = Sent("POST", "/v1/chat/completions", {}, {"max_tokens": 8})
    return Recording("cancel/x", request, 200, (), 1.0, 2.0, reads, End("closed", 99.0))


def test_an_event_too_long_to_be_looked_at_is_no_traceback() -> None:
    recording = recorded(b"data: " + b"x" * (sse.EVENT_BYTES_AT_MOST + 1), TOKEN % 0)
    assert _read_with_done(recording) is None
    assert _first_token(recording) is None


@pytest.mark.parametrize("index", [0, 1, -1])
def test_the_first_token_is_the_one_that_a_close_waits_for(index: int) -> None:
    recording = recorded(b": ping\n\n", TOKEN % index, TOKEN % index)
    watch = TokenWatch()
    live = next(i for i, read in enumerate(recording.reads) if watch.feed(read.data))
    assert _first_token(recording) == live == 1


def messages(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": content}], "max_tokens": 8}


def test_stars_stand_for_as_much_of_a_text_and_nothing_else() -> None:
    wanted = messages("You are a clinic phone assistant. Be short.")
    starred = messages("You are a ********************** Be short.")
    assert _differing(starred, wanted, "sse") is None
    for forged in ("You are a *** Be short.", "You are a ********", "You were ********* Be short."):
        assert _differing(messages(forged), wanted, "sse") is not None
    assert _differing({**wanted, "max_tokens": "********"}, wanted, "sse") is not None
    own = {"key": "hunter2-hunter2"}
    asked = {**wanted, "key": "********"}
    assert _differing(asked, {**wanted, **own}, "sse", own) is None


def test_a_refusal_that_looks_like_a_stream_has_no_token() -> None:
    """Else what is started with the first token is started again with the next try."""
    tries: list[int] = []

    def script(connection: Connection, _: Request) -> None:
        tries.append(1)
        if len(tries) == 1:
            connection.head(status="429 Too Many Requests\r\nRetry-After: 0")
        else:
            connection.head()
        connection.send((TOKEN % 0).decode() + "data: [DONE]\n\n")

    seen: list[int] = []
    with serving(script) as server:
        exchange = Exchange(Client(server.base_url), "x/y", on_token=lambda: seen.append(1))
        recording = exchange.run(sse.request_body([], 8, True))
    assert (recording.status, len(tries), len(seen)) == (200, 2, 1)


def test_a_look_that_a_limit_refused_asks_for_no_model() -> None:
    from pytest_llm_latency.errors import ConfigError
    from pytest_llm_latency.servers.capabilities import Capabilities
    from pytest_llm_latency.session.server import check_model_named
    from pytest_llm_latency.wire.dialect import Dialect

    failed = Capabilities(Dialect(), models=("a", "b"), stream_error="HTTP 429")
    with pytest.raises(ConfigError, match="--llm-model=a"):
        check_model_named("http://h", failed, "--llm-model")
    check_model_named("http://h", replace(failed, rate_limited=True), "--llm-model")
