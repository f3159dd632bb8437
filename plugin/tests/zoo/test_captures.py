"""Streams of real servers and proxies, as received on a raw socket, played again at their times.

`data/captures/NAME.http` has the bytes, status line and headers included; `NAME.reads` a line per
read: milliseconds since the request, bytes (0: the end).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripted import Connection, Request, serving

from pytest_llm_latency.evidence.derive import derive
from pytest_llm_latency.sse import MESSAGES
from pytest_llm_latency.verdicts import causes
from pytest_llm_latency.wire.client import Client
from pytest_llm_latency.wire.exchange import Exchange
from pytest_llm_latency.wire.stamps import measure_stamps

pytestmark = pytest.mark.zoo
DATA = Path(__file__).parents[1] / "data" / "captures"


@dataclass
class Player:
    """Writes each read at its time after the request; `written` has the moments, by
    `time.perf_counter()`, and the bytes."""

    name: str
    written: list[tuple[float, bytes]] = field(default_factory=list)

    def script(self, connection: Connection, _: Request) -> None:
        begun = time.perf_counter()
        data = (DATA / f"{self.name}.http").read_bytes()
        for line in (DATA / f"{self.name}.reads").read_text().splitlines():
            at_ms, size = line.split()
            part, data = data[: int(size)], data[int(size) :]
            time.sleep(max(0.0, begun + float(at_ms) / 1000 - time.perf_counter()))
            if part:
                self.written.append((time.perf_counter(), part))
                connection.send(part)
        assert not data

    def moment_of(self, text: bytes) -> float:
        """When the bytes with `text` were written."""
        return next(moment for moment, part in self.written if text in part)


@dataclass(frozen=True)
class Expected:
    """`first` is a text in the first read with a piece; `held_back` the cause code of a stream
    that did not come as it was made."""

    name: str
    pieces: int
    first: bytes = b'"content":"'
    done: bool = True
    tokens: int | None = None
    held_back: str | None = None


CAPTURES = [
    Expected("llama-server", 120, tokens=120),
    # Eleven of its twelve pieces came in one write, 231 ms after the first.
    Expected("llama-server-2024", 12, done=False, tokens=12, held_back="held-back"),
    Expected("llama-server-long-prefill", 8, tokens=8),
    Expected("llama-server-ping", 8, tokens=8),
    Expected("llama-server-via-haproxy", 120, tokens=120, held_back="coalesced"),
    Expected("llama-server-via-haproxy-no-delay", 120, tokens=120),
    Expected("llama-server-via-litellm", 120),
    Expected("llama-cpp-python", 12, first=b'"content": "'),
    Expected("vllm-0.32.0-cpu", 64, first=b'"content":"Sure"', tokens=64),
    Expected("transformers-serve", 64, first=b'"content":"At"', done=False, tokens=64),
]


@pytest.mark.parametrize("expected", CAPTURES, ids=lambda expected: expected.name)
def test_a_capture_says_what_it_said(expected: Expected) -> None:
    stamps = measure_stamps()
    assert stamps is not None
    player = Player(expected.name)
    with serving(player.script) as server:
        exchange = Exchange(Client(server.base_url, jitter_ms=stamps.jitter_ms), "own/1")
        recording = exchange.run({"messages": MESSAGES, "max_tokens": 120, "stream": True})
    timeline = derive(recording)
    assert timeline.error is None
    assert recording.end.kind == "eof"
    assert (len(timeline.pieces), timeline.done, timeline.tokens, timeline.finish_reason) == (
        expected.pieces, expected.done, expected.tokens, "length",
    )  # fmt: skip
    cause = causes.why_not_as_made(timeline)
    assert (cause.code if cause is not None else None) == expected.held_back
    # A null is no text: llama-server's role chunk has it.
    written_ms = (player.moment_of(expected.first) - exchange.started_at) * 1000.0
    assert timeline.ttft_ms is not None
    late_ms = timeline.ttft_ms - written_ms
    assert -0.01 <= late_ms <= max(1.0, 5 * stamps.jitter_ms)


def test_a_read_timeout_of_nginx_is_cut_short() -> None:
    player = Player("llama-server-via-nginx-read-timeout")
    with serving(player.script) as server:
        timeline = Client(server.base_url).stream(MESSAGES)
    assert timeline.pieces == ()
    assert timeline.error == "the connection broke: the body was cut off before its end"
