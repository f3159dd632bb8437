"""A server that does exactly what a script says, for what a real one cannot be made to do.

A script is a function of (connection, request): it gets the accepted socket and the parsed
request, and writes bytes when it likes. `seen` collects what clients did.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    """A request as it came: `target` is its path."""

    method: str
    target: str
    headers: dict[str, str]
    body: Any


Script = Callable[["Connection", Request], None]


@dataclass
class Connection:
    """The server's end of a connection."""

    socket: socket.socket

    def send(self, text: str | bytes) -> None:
        """Write in one call."""
        self.socket.sendall(text.encode() if isinstance(text, str) else text)

    def head(self, *, status: str = "200 OK", content_type: str = "text/event-stream") -> None:
        """The head of a close-delimited answer."""
        self.send(f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n")

    def chunked_head(self) -> None:
        """The head of a chunked answer."""
        self.send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        )

    def chunk(self, text: str) -> None:
        """One HTTP chunk, one write."""
        data = text.encode()
        self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def reply(self, value: Any, status: str = "200 OK") -> None:
        """A JSON answer."""
        body = json.dumps(value)
        self.head(status=status, content_type="application/json")
        self.send(body)

    def wait_for_close(self, seconds: float = 10.0) -> str:
        """How the client's close is seen: "eof", "reset", or "open" after `seconds`."""
        self.socket.settimeout(seconds)
        try:
            return "eof" if self.socket.recv(1) == b"" else "data"
        except ConnectionResetError:
            return "reset"
        except TimeoutError:
            return "open"


@dataclass
class Scripted:
    """A running scripted server."""

    base_url: str
    port: int
    requests: list[Request] = field(default_factory=list)
    closes: list[str] = field(default_factory=list)


@contextlib.contextmanager
def serving(script: Script, *, close: bool = True) -> Iterator[Scripted]:
    """Serve on a free loopback port; one thread per connection. Without `close` the script's
    connection is left open when it returns."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    state = Scripted(f"http://127.0.0.1:{port}", port)
    kept: list[socket.socket] = []

    def serve(accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = _read_request(accepted)
            state.requests.append(request)
            script(Connection(accepted), request)
            if not close:
                kept.append(accepted)
                return
        accepted.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                threading.Thread(target=serve, args=(accepted,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield state
    finally:
        # shutdown wakes the accept; close alone would leave it waiting.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for accepted in kept:
            accepted.close()


def _read_request(accepted: socket.socket) -> Request:
    data = b""
    while b"\r\n\r\n" not in data:
        more = accepted.recv(65536)
        if not more:
            raise OSError("no request")
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += accepted.recv(65536)
    return Request(method, target, headers, json.loads(body) if body else None)


def relay(
    upstream_url: str,
    edit: Callable[[Request], None] = lambda request: None,
    *,
    passes_close: bool = True,
) -> Script:
    """A script that hands the request, as `edit` left it, to a real server and its answer back
    as the bytes come. The server's close is passed on; the client's only if `passes_close`."""
    host, _, port = upstream_url.removeprefix("http://").partition(":")

    def script(connection: Connection, request: Request) -> None:
        edit(request)
        body = json.dumps(request.body).encode() if request.body is not None else b""
        with socket.create_connection((host, int(port))) as upstream:
            upstream.sendall(
                f"{request.method} {request.target} HTTP/1.1\r\nHost: {host}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + body
            )
            watched = [upstream, connection.socket] if passes_close else [upstream]
            while True:
                ready, _, _ = select.select(watched, [], [])
                if connection.socket in ready and not connection.socket.recv(65536):
                    return
                if upstream in ready:
                    data = upstream.recv(65536)
                    if not data:
                        return
                    with contextlib.suppress(OSError):  # the client may be gone
                        connection.send(data)

    return script


def text_event(text: str, **fields: Any) -> str:
    """A chunk with a piece of text, as llama-server frames it."""
    return event(
        {"choices": [{"index": 0, "finish_reason": None, "delta": {"content": text}}]} | fields
    )


def role_event() -> str:
    """The chunk that carries the role and no text."""
    return event(
        {
            "choices": [
                {"index": 0, "finish_reason": None, "delta": {"role": "assistant", "content": None}}
            ]
        }
    )


def end_events(prompt_n: int = 10, cache_n: int = 0, tokens: int = 3, reason: str = "stop") -> str:
    """The finish chunk, the usage chunk with timings, and [DONE]."""
    timings = {
        "prompt_n": prompt_n,
        "cache_n": cache_n,
        "prompt_ms": 1.0,
        "predicted_n": tokens,
        "predicted_ms": 1.0,
    }
    usage = {"prompt_tokens": prompt_n + cache_n, "completion_tokens": tokens}
    return (
        event({"choices": [{"index": 0, "finish_reason": reason, "delta": {}}]})
        + event({"choices": [], "usage": usage, "timings": timings})
        + "data: [DONE]\n\n"
    )


def event(value: Any) -> str:
    """One event with a JSON payload."""
    return f"data: {json.dumps(value)}\n\n"


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Poll a condition to a deadline; say whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
