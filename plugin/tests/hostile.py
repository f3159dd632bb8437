"""Servers that send what no honest one does, as fast as they can, until the client closes."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterator, Mapping

from scripted import Connection, Request, Script, end_events, text_event

BLOCK = 65536
STREAM = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
PLAIN = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
REDIRECT = "HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/\r\nConnection: close\r\n"
CHAT = "/v1/chat/completions"
ANSWERS = {
    "/health": {"status": "ok"},
    "/v1/models": {"data": [{"id": "fake"}]},
    "/slots": [{"id": 0, "is_processing": False}],
    "/props": {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 1},
    "/apply-template": {"prompt": "hi"},
    "/tokenize": {"tokens": [1]},
}
Answer = Callable[[], Iterator[bytes]]


def good(connection: Connection, request: Request) -> None:
    """A server with all endpoints."""
    if request.target == CHAT:
        connection.send(STREAM + "\r\n" + "".join(text_event(f"{n} ") for n in range(12)))
        connection.send(end_events())
    elif request.target in ANSWERS:
        connection.reply(ANSWERS[request.target])
    else:
        connection.reply({"error": {"message": "not found"}}, "404 X")


def sends(answer: Answer, *targets: str) -> Script:
    """A good server that gives `answer` at the paths that begin with one of `targets`."""

    def script(connection: Connection, request: Request) -> None:
        if not request.target.startswith(targets):
            good(connection, request)
            return
        for part in answer():
            connection.send(part)

    return script


def endless(head: str, block: bytes, first: bytes = b"") -> Answer:
    """A head, and a block again and again."""
    many = block * (BLOCK // len(block)) if len(block) < BLOCK else block
    return lambda: itertools.chain((head.encode() + b"\r\n" + first,), itertools.repeat(many))


def bomb(head: str, block: bytes = bytes(16 * 1024 * 1024), encoding: str = "gzip") -> Answer:
    """Bytes that become a thousand times as many, or a thousand times a thousand."""

    def answer() -> Iterator[bytes]:
        yield f"{head}Content-Encoding: {encoding}\r\n\r\n".encode()
        data = gzip.compress(block)
        yield from itertools.repeat(data if encoding == "gzip" else gzip.compress(64 * data))

    return answer


def once(head: str, body: bytes) -> Answer:
    """A whole answer."""
    return lambda: iter((head.encode() + b"\r\n" + body,))


def byte_by_byte() -> Iterator[bytes]:
    """A return of recv for every byte."""
    yield (STREAM + "\r\ndata: ").encode()
    yield from itertools.repeat(b":")


def event_of(json_text: str) -> bytes:
    return b"data: " + json_text.encode() + b"\n\n"


WIDE = "[" + "{}," * 300_000 + "{}]"
DEEP = '{"choices": [{"index": 0, "delta": {"content": ' + "[" * 900 + "]" * 900 + "}}]}"
KEYS = "{" + ",".join(f'"{n:x}":0' for n in range(100_000)) + "}"
EMOJI = json.dumps({"error": {"message": "x" * 900_000 + "\U0001f600"}}, ensure_ascii=False)
TINY = event_of('{"choices":[{"delta":"a"}]}')

CHATS: Mapping[str, Answer] = {
    "redirect": endless(REDIRECT, b"y"),
    "redirect with a gzip bomb": bomb(REDIRECT),
    "error without an end": endless(STREAM.replace("200 OK", "500 X"), b'{"error": "'),
    "gzip bomb": bomb(STREAM),
    "gzip bomb of events": bomb(STREAM, block=TINY * 30_000),
    "gzip bomb in a bomb": bomb(STREAM, encoding="gzip, gzip"),
    "blank lines": endless(STREAM, b"\n"),
    "blank lines of CR": endless(STREAM, b"\r"),
    "comments": endless(STREAM, b":\n"),
    "comments and blank lines": endless(STREAM, b": ping\n\n"),
    "an event without an end": endless(STREAM, b"x", b"data: "),
    "an event of many lines": endless(STREAM, b"data: x\n"),
    "an event after [DONE] in a text": endless(STREAM, b"x", event_of('"[DONE]"') + b"data: "),
    "tiny events": endless(STREAM, TINY),
    "large events": endless(STREAM, event_of(EMOJI.replace("error", "note"))),
    "events of all kinds of JSON": once(
        STREAM, b"".join(map(event_of, (WIDE, KEYS, DEEP, "9" * 5000, "1e999", '"\\ud83d"')))
    ),
    "tiny reads": byte_by_byte,
    "headers": endless(STREAM[:-2], b"X-A: b\r\n"),
    "a header without an end": endless(STREAM + "X-A: ", b"y"),
    "interim answers": endless("HTTP/1.1 100 Continue\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "early hints": endless("HTTP/1.1 103 X\r\n", b"HTTP/1.1 103 X\r\nLink: </a>\r\n\r\n"),
    "a chunk's size without an end": endless(STREAM + "Transfer-Encoding: chunked\r\n", b"0"),
    "chunks of a byte": endless(STREAM + "Transfer-Encoding: chunked\r\n", b"1\r\n\n\r\n"),
    "trailers": endless(STREAM + "Transfer-Encoding: chunked\r\n", b"X-A: b\r\n", b"0\r\n"),
    "many encodings": endless(STREAM + f"Content-Encoding: {'gzip, ' * 5000}\r\n", b"y"),
}  # fmt: skip
PLAINS: Mapping[str, Answer] = {
    "redirect": endless(REDIRECT, b"y"),
    "redirect with a gzip bomb": bomb(REDIRECT),
    "an answer without an end": endless(PLAIN, b" "),
    "gzip bomb": bomb(PLAIN),
    "gzip bomb in a bomb": bomb(PLAIN, encoding="gzip, gzip"),
    "many values": once(PLAIN, WIDE.encode()),
    "many lists": once(PLAIN, ("[" + "[]," * 1_300_000 + "[]]").encode()),
    "many keys": once(PLAIN, KEYS.encode()),
    "many models": once(PLAIN, ('{"data": [' + '{"id":"m"},' * 90_000 + '{"id":"n"}]}').encode()),
    "more models": once(PLAIN, ('{"data": [' + '{"id":"m"},' * 200_000 + '{"id":"n"}]}').encode()),
    "deep": once(PLAIN, DEEP.encode()),
    "a long number": once(PLAIN, b'{"n_ctx": ' + b"9" * 5000 + b"}"),
    "headers": endless(PLAIN[:-2], b"X-A: b\r\n"),
    "interim answers": endless("HTTP/1.1 103 X\r\n", b"HTTP/1.1 103 X\r\n\r\n"),
}  # fmt: skip
