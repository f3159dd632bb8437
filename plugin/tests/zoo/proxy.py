"""A proxy with one thing wrong, between the suite and the real server."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scripted import Connection, Request, Script

Events = Iterator[bytes]
Answer = Callable[[Events, Request], Events]


def as_it_is(events: Events, _: Request) -> Events:
    """The stream as it came."""
    yield from events


@dataclass(frozen=True)
class Proxy:
    """`edit` changes a request on its way; `reply` answers one without the server (None: does
    not); `answer` changes the events of a stream; `json` an answer that is none. A client's
    close is passed on if `passes_close(whether text was sent)`, after `holds_close_s`; `on_close`
    is called first."""

    edit: Callable[[Request], None] = lambda request: None
    reply: Callable[[Request], tuple[int, Any] | None] = lambda request: None
    answer: Answer = as_it_is
    json: Callable[[Request, Any], Any] = lambda request, value: value
    passes_close: Callable[[bool], bool] = lambda sent: True
    holds_close_s: float = 0.0
    on_close: Callable[[], None] = lambda: None

    def script(self, upstream_url: str) -> Script:
        """For `serving`."""
        address = upstream_url.removeprefix("http://")

        def run(connection: Connection, request: Request) -> None:
            answer = self.reply(request)
            if answer is not None:
                connection.reply(answer[1], f"{answer[0]} As The Test Wants")
                return
            self.edit(request)
            self._pass_on(address, connection, request)

        return run

    def _pass_on(self, address: str, connection: Connection, request: Request) -> None:
        upstream = http.client.HTTPConnection(address, timeout=60)
        body = None if request.body is None else json.dumps(request.body)
        upstream.request(request.method, request.target, body, {"Content-Type": "application/json"})
        sent = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(connection.socket, upstream.sock, sent), daemon=True
        )
        watcher.start()
        with contextlib.closing(upstream), contextlib.suppress(OSError, http.client.HTTPException):
            response = upstream.getresponse()
            if response.getheader("Content-Type", "").startswith("text/event-stream"):
                connection.head()
                for part in self.answer(_events(response), request):
                    sent.set()
                    with contextlib.suppress(OSError):  # the client may be gone
                        connection.send(part)
            else:
                value = self.json(request, json.loads(response.read()))
                connection.reply(value, f"{response.status} {response.reason}")
        # The watcher's recv keeps the socket open; a shutdown ends both.
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)

    def _watch(self, client: socket.socket, upstream: socket.socket, sent: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while client.recv(65536):
                pass
        self.on_close()
        if self.passes_close(sent.is_set()):
            time.sleep(self.holds_close_s)
            with contextlib.suppress(OSError):
                upstream.shutdown(socket.SHUT_RDWR)


def _events(response: http.client.HTTPResponse) -> Events:
    rest = b""
    while data := response.read1(65536):
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            yield event + b"\n\n"
    if rest:
        yield rest
