"""Plays event streams whose every event says when it was written: the known truth.

A process of its own on a raw socket. `time.perf_counter()` is one clock for all processes of a
machine (CLOCK_MONOTONIC on Linux), so a reader's stamp minus an event's `sent` is the delay from
our write to its stamp. The first event also says when the request's last byte was read.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A stream: `events` of about `size` bytes, `per_write` in one write, `gap_ms` between two
    writes, the first `ttft_ms` after the request's last byte; chunked or close-delimited."""

    name: str
    events: int
    per_write: int = 1
    gap_ms: float = 5.0
    ttft_ms: float = 50.0
    size: int = 90
    chunked: bool = True


SHAPES = [
    Shape("chunked 5 ms", 200),
    Shape("close-delimited 5 ms", 200, chunked=False),
    Shape("chunked 50 ms", 30, gap_ms=50.0),
    Shape("chunked 0.5 ms", 1000, gap_ms=0.5),
    Shape("close-delimited 0.5 ms", 1000, gap_ms=0.5, chunked=False),
    Shape("chunked 5 ms, 4 kB", 200, size=4000),
    Shape("close-delimited 5 ms, 4 kB", 200, size=4000, chunked=False),
    Shape("chunked 5 ms, 8 a write", 400, per_write=8),
    Shape("close-delimited 5 ms, 8 a write", 400, per_write=8, chunked=False),
    Shape("back to back, chunked", 20_000, gap_ms=0.0),
    Shape("back to back, close-delimited", 20_000, gap_ms=0.0, chunked=False),
    Shape("ttft 5 ms", 5, ttft_ms=5.0),
    Shape("ttft 500 ms", 5, ttft_ms=500.0),
]


def event(number: int, sent: float, requested: float, size: int) -> bytes:
    """A chat chunk with a piece of text that tells its number, and the two moments."""
    value = {
        "choices": [{"index": 0, "delta": {"content": f"{number} "}, "finish_reason": None}],
        "n": number,
        "sent": sent,
        "requested": requested,
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "m",
    }
    data = json.dumps(value, separators=(",", ":"))
    return f'data: {data[:-1]},"pad":"{"x" * max(0, size - len(data))}"}}\n\n'.encode()


def wait_until(moment: float) -> None:
    """Sleep, then spin the last half millisecond: a sleep alone wakes late."""
    while (left := moment - time.perf_counter()) > 0:
        if left > 0.0005:
            time.sleep(left - 0.0005)


def writes(shape: Shape, requested: float) -> Iterator[tuple[float, list[bytes]]]:
    """(moment, events) of each write. Events are stamped when they are made, just before."""
    moment = requested + shape.ttft_ms / 1000.0
    for first in range(0, shape.events, shape.per_write):
        wait_until(moment)
        numbers = range(first, min(first + shape.per_write, shape.events))
        sent = time.perf_counter()
        yield sent, [event(number, sent, requested, shape.size) for number in numbers]
        moment += shape.gap_ms / 1000.0


def serve(connection: socket.socket) -> None:
    """Answer one request; its path is the shape's number."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length:
        body += connection.recv(65536)
    requested = time.perf_counter()
    shape = SHAPES[int(head.split(b" ")[1].split(b"/")[1])]
    framing = b"Transfer-Encoding: chunked\r\n" if shape.chunked else b""
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing
        + b"Connection: close\r\n\r\n"
    )  # fmt: skip
    for _, events in writes(shape, requested):
        data = b"".join(events)
        if shape.chunked:
            data = f"{len(data):x}\r\n".encode() + data + b"\r\n"
        connection.sendall(data)
    end = b"data: [DONE]\n\n"
    connection.sendall(b"e\r\n" + end + b"\r\n0\r\n\r\n" if shape.chunked else end)


def main() -> None:
    """Print the port, then serve until killed, one request after another."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                serve(connection)
            except OSError as error:
                print(f"emitter: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
