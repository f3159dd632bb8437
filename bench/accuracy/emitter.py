"""Plays event streams whose every event says when it was written: the known truth.

A process of its own on a raw socket. `time.perf_counter()` is one clock for all processes of a
machine (CLOCK_MONOTONIC on Linux), so a reader's stamp minus an event's `at` is the delay from
our write to its stamp. The last event before [DONE] says when the request's last byte was read.
Events are made before the request comes, all but their stamp: back to back means the writes.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A stream: `events` of `size` bytes, `per_write` in one write, `gap_ms` between two
    writes, the first `ttft_ms` after the request's last byte; chunked or close-delimited."""

    name: str
    events: int
    per_write: int = 1
    gap_ms: float = 5.0
    ttft_ms: float = 50.0
    size: int = 90
    chunked: bool = True


SHAPES = [
    Shape("chunked, 5 ms", 200),
    Shape("close-delimited, 5 ms", 200, chunked=False),
    Shape("chunked, 50 ms", 30, gap_ms=50.0),
    Shape("close-delimited, 50 ms", 30, gap_ms=50.0, chunked=False),
    Shape("chunked, 0.5 ms", 1000, gap_ms=0.5),
    Shape("close-delimited, 0.5 ms", 1000, gap_ms=0.5, chunked=False),
    Shape("chunked, 5 ms, 4 kB", 200, size=4000),
    Shape("close-delimited, 5 ms, 4 kB", 200, size=4000, chunked=False),
    Shape("chunked, 5 ms, 8 a write", 400, per_write=8),
    Shape("close-delimited, 5 ms, 8 a write", 400, per_write=8, chunked=False),
    Shape("chunked, back to back", 20_000, gap_ms=0.0),
    Shape("close-delimited, back to back", 20_000, gap_ms=0.0, chunked=False),
    Shape("chunked, ttft 5 ms", 5, ttft_ms=5.0),
    Shape("chunked, ttft 500 ms", 5, ttft_ms=500.0),
]
WARM_UP = Shape("warm-up", 5, ttft_ms=5.0)


def template(number: int, size: int) -> bytes:
    """A chat chunk with a piece of text that tells its number, `%` for the moment, padded."""
    data = b'data: {"choices":[{"delta":{"content":"%d "}}],"at":' % number
    end = b"}\n\n"
    pad = size - len(data) - len("0000000.000000000") - len(end)
    if pad >= len(',"x":""'):
        end = b',"x":"' + b"x" * (pad - len(',"x":""')) + b'"}\n\n'
    return data + b"%.9f" + end


def wait_until(moment: float) -> None:
    """Sleep, then spin the last half millisecond: a sleep alone wakes late."""
    while (left := moment - time.perf_counter()) > 0:
        if left > 0.0005:
            time.sleep(left - 0.0005)


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def play(connection: socket.socket, shape: Shape, templates: list[bytes], asked: float) -> None:
    """Write the stream."""
    clock, send, gap_s = time.perf_counter, connection.sendall, shape.gap_ms / 1000.0
    moment = asked + shape.ttft_ms / 1000.0
    for text in templates:
        wait_until(moment)
        now = clock()
        data = text % ((now,) * shape.per_write)
        send(chunk(data) if shape.chunked else data)
        moment += gap_s
    end = b'data: {"choices":[],"asked":%.9f}\n\ndata: [DONE]\n\n' % asked
    connection.sendall(chunk(end) + b"0\r\n\r\n" if shape.chunked else end)


def serve(connection: socket.socket, shapes: list[tuple[Shape, list[bytes]]]) -> None:
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
    asked = time.perf_counter()
    shape, templates = shapes[int(head.split(b" ")[1].split(b"/")[1])]
    framing = b"Transfer-Encoding: chunked\r\n" if shape.chunked else b""
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing
        + b"Connection: close\r\n\r\n"
    )  # fmt: skip
    play(connection, shape, templates, asked)


def stay_on(index: int) -> None:
    """Keep to one core: the emitter on the first, a reader on the last. An emitter that never
    sleeps would else hold up, for milliseconds, a reader that the scheduler put beside it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[index]})


def emit(shapes: list[Shape]) -> None:
    """Print the port, then serve until killed, one request after another."""
    stay_on(0)
    ready = []
    for shape in shapes:
        texts = [template(number, shape.size) for number in range(shape.events)]
        many = shape.per_write
        ready.append((shape, [b"".join(texts[i : i + many]) for i in range(0, len(texts), many)]))
    gc.disable()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                serve(connection, ready)
            except OSError as error:
                print(f"emitter: {error}", file=sys.stderr)


if __name__ == "__main__":
    emit([*SHAPES, WARM_UP])
