"""Read the event stream of an LLM server by hand: bytes in, timed pieces of text out.

This file stands alone on requests and knows nothing of pytest or of the package around it:
it is copied into the directory of every run, where `python sse.py --url URL` reads a stream
again. Two laws: a read is stamped before anything looks at its bytes, and bytes are decoded
only where a line is complete, so that no split of the stream can change what it says.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import urlsplit

DEFAULT_URL = os.environ.get("LLM_URL", "http://127.0.0.1:8080")
DEFAULT_MODEL = os.environ.get("LLM_MODEL")
DONE = "[DONE]"
READ_SIZE_BYTES = 65536
CONNECT_TIMEOUT_S = 10.0
GAP_TIMEOUT_S = 300.0

MESSAGES = [
    {
        "role": "system",
        "content": "You are a clinic phone assistant. Answer in one short sentence.",
    },
    {"role": "user", "content": "What should a new patient bring?"},
]

_DONE_BYTES = DONE.encode("ascii")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One dispatched event: `data` lines joined by newlines, and the event's type and id."""

    data: str
    type: str = "message"
    id: str = ""


class Decoder:
    """Turns the bytes of an event stream into events, wherever the bytes were split.

    Follows "Interpreting an event stream" of the WHATWG HTML standard: lines end with CRLF,
    LF or CR; one leading byte order mark is dropped; a line that starts with a colon is a
    comment; several `data` lines make one event; an event without data is none; an event
    that is not closed by a blank line is discarded. Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()  # a line without its end: no byte of it is searched twice
        self._at_start = True
        self._after_cr = False
        self._data: list[str] = []
        self._type = ""
        self._id = ""

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes of the stream; return the events that they complete."""
        if self._at_start:
            data = self._without_bom(data)
        if self._after_cr and data:
            # The LF of a CRLF that was split between two reads ends no second line.
            data = data.removeprefix(b"\n")
            self._after_cr = False
        has_cr = b"\r" in data
        if not has_cr and b"\n" not in data:
            self._buffer += data
            return []
        text = bytes(self._buffer) + data
        # Most streams have LF alone, and splitting at one byte is the faster.
        *lines, rest = _LINE_END.split(text) if has_cr else text.split(b"\n")
        self._buffer = bytearray(rest)
        self._after_cr = has_cr and text.endswith(b"\r")
        events: list[Event] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(_value(line[5:]))
            elif not line:
                self._dispatch(events)
            else:
                self._field(line)
        return events

    def _without_bom(self, data: bytes) -> bytes:
        """Without the byte order mark; nothing while the bytes so far could still become one."""
        data = bytes(self._buffer) + data
        self._buffer.clear()
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._buffer += data
            return b""
        self._at_start = False
        return data.removeprefix(_BOM)

    def _field(self, line: bytes) -> None:
        """A line other than `data:` with a colon."""
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(_value(value))
        elif name == b"event":
            self._type = _value(value)
        elif name == b"id" and b"\0" not in value:
            self._id = _value(value)

    def _dispatch(self, events: list[Event]) -> None:
        if self._data:
            events.append(Event("\n".join(self._data), self._type or "message", self._id))
            self._data = []
        self._type = ""


def _value(value: bytes) -> str:
    """A field's value: one leading blank is no part of it."""
    return value.removeprefix(b" ").decode("utf-8", "replace")


class Read(NamedTuple):
    """What one return of the socket brought: `data`, `t_ms` milliseconds after the start."""

    t_ms: float
    data: bytes


Arrival = tuple[float, bytes]  # the `time.perf_counter()` of a read's return, and its bytes


class Readable(Protocol):
    """The part of urllib3's response that reading needs."""

    def read1(self, amt: int, decode_content: bool) -> bytes: ...


def arrivals(raw: Readable) -> Iterator[Arrival]:
    """The body of a urllib3 response (requests: `response.raw`), every read stamped.

    `read1` returns what has come, in chunked and in close-delimited bodies alike;
    `iter_lines` and `iter_content` wait for full buffers and would delay a stamp by seconds.
    """
    while data := raw.read1(READ_SIZE_BYTES, decode_content=True):
        yield time.perf_counter(), data


def read_stream(body: Iterable[Arrival], started: float) -> Iterator[Read]:
    """The one reading loop: yield every read of an event stream up to its `[DONE]`.

    `started` is the `time.perf_counter()` from which times count.
    """
    decoder: Decoder | None = None  # from the read on that has the word, if only in a text
    undecoded: list[bytes] = []  # since a blank line, where decoding can begin
    window = b""
    for now, data in body:
        yield Read(round((now - started) * 1000.0, 3), data)
        # Decoding takes time from the next stamp: it waits until the word is there at all.
        undecoded.append(data)
        if decoder is None:
            window = window[1 - len(_DONE_BYTES) :] + data
            if _DONE_BYTES in window:
                decoder = Decoder()
            elif (blank := data.rfind(b"\n\n")) >= 0:
                undecoded = [data[blank + 2 :]]
        if decoder is not None:
            if any(event.data == DONE for part in undecoded for event in decoder.feed(part)):
                return
            undecoded.clear()


class StreamFailure(RuntimeError):
    """The server answered with an error, or with something that is no event stream."""


def timed_events(reads: Iterable[Read]) -> Iterator[tuple[float, Event]]:
    """Yield (t_ms, event) for every event, t_ms being that of the read that completed it."""
    decoder = Decoder()
    for read in reads:
        for event in decoder.feed(read.data):
            yield read.t_ms, event


def payload(event: Event) -> dict[str, Any]:
    """The JSON object of an event. Raises StreamFailure where there is none."""
    try:
        value = json.loads(event.data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise StreamFailure(f"an event is not a JSON object: {event.data[:80]!r}")
    return value


def error_words(value: Mapping[str, Any]) -> str | None:
    """The server's own words if the payload is an error, else None."""
    error = value.get("error")
    if error is None:
        return None
    words = error.get("message") if isinstance(error, Mapping) else error
    return str(words if words else error)


def mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object inside a payload, empty where there is none of that name."""
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def delta(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """`choices[0].delta` of a chunk, empty where the chunk has none."""
    choices = value.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return mapping(first, "delta") if isinstance(first, Mapping) else {}


def content(value: Mapping[str, Any]) -> str:
    """The answer text in a chunk; empty for the role chunk and all others without text."""
    text = delta(value).get("content")
    return text if isinstance(text, str) else ""


def request_body(
    messages: Sequence[Mapping[str, str]], max_tokens: int, cache_prompt: bool
) -> dict[str, Any]:
    """The JSON body of a streamed chat completion."""
    return {
        "messages": [dict(message) for message in messages],
        "max_tokens": max_tokens,
        "cache_prompt": cache_prompt,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def post(url: str, body: Mapping[str, Any]) -> Iterator[Read]:
    """POST `body` to `url`/v1/chat/completions and yield the reads of the answer.

    The clock starts just before the request is sent; opening the connection is part of the
    times. `LLM_API_KEY` of the environment is sent as the key.
    Raises StreamFailure for a status other than 200 and requests' own errors.
    """
    import requests

    base_url = url.rstrip("/").removesuffix("/v1")
    key = os.environ.get("LLM_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with requests.Session() as session:
        # A proxy of the environment is never meant for a server on this machine.
        session.trust_env = urlsplit(base_url).hostname not in ("localhost", "127.0.0.1", "::1")
        request = session.prepare_request(
            requests.Request("POST", base_url + "/v1/chat/completions", json=body, headers=headers)
        )
        settings = session.merge_environment_settings(request.url, {}, True, None, None)
        settings["stream"] = True
        started = time.perf_counter()
        response = session.send(request, timeout=(CONNECT_TIMEOUT_S, GAP_TIMEOUT_S), **settings)
        with response:
            if response.status_code != 200:
                raise StreamFailure(f"HTTP {response.status_code}: {response.text[:300]}")
            yield from read_stream(arrivals(response.raw), started)


def stream(
    messages: Sequence[Mapping[str, str]],
    max_tokens: int = 64,
    cache_prompt: bool = True,
    raw_out: str | os.PathLike[str] | BinaryIO | None = None,
    *,
    send: Callable[[Mapping[str, Any]], Iterable[Read]] | None = None,
) -> tuple[list[dict[str, Any]], float, dict[str, Any]]:
    """Stream one answer; return (pieces, total ms, timings).

    `pieces` is a list of `{"t_ms": float, "text": str}`, one for every chunk with text;
    `timings` the server's own, of the last chunk that has them (empty if none has).
    `raw_out` (a path or a binary file) gets the lines exactly as received, also when the
    stream fails. `send` takes the body and yields the reads; left out, it is `post` to
    DEFAULT_URL. Raises StreamFailure if the stream holds an error, or no JSON.
    """
    received: list[Read] = []
    try:
        for read in (send or functools.partial(post, DEFAULT_URL))(
            request_body(messages, max_tokens, cache_prompt)
        ):
            received.append(read)
    finally:
        if raw_out is not None:
            _write_raw(raw_out, b"".join(read.data for read in received))
    pieces: list[dict[str, Any]] = []
    timings: dict[str, Any] = {}
    for t_ms, event in timed_events(received):
        if event.data == DONE:
            break
        value = payload(event)
        words = error_words(value)
        if words is not None:
            raise StreamFailure(f"the server reports inside the stream: {words}")
        text = content(value)
        if text:
            pieces.append({"t_ms": t_ms, "text": text})
        timings = dict(mapping(value, "timings") or timings)
    return pieces, received[-1].t_ms if received else 0.0, timings


def _write_raw(raw_out: str | os.PathLike[str] | BinaryIO, data: bytes) -> None:
    if isinstance(raw_out, (str, os.PathLike)):
        Path(raw_out).write_bytes(data)
    else:
        raw_out.write(data)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON for people where it can be: a lone surrogate, which UTF-8 cannot carry, is escaped.

    A server sends half an emoji so; NaN, which is no JSON, raises ValueError.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent, allow_nan=False)
    return text


def chunk_lines(pieces: Iterable[Mapping[str, Any]]) -> str:
    """The text of `chunks.jsonl`: one `{"t_ms", "text"}` object a line."""
    return "".join(json_text(dict(piece)) + "\n" for piece in pieces)


def main(argv: Sequence[str] | None = None) -> int:
    """Ask the lab's question once; write sse_raw.txt and chunks.jsonl into --out."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--url", default=DEFAULT_URL, help="the server (default: %(default)s)")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="its model's name, where it has several"
    )
    parser.add_argument("--out", default=".", type=Path, help="directory (default: here)")
    options = parser.parse_args(argv)
    named = {"model": options.model} if options.model else {}
    try:
        pieces, total_ms, timings = stream(
            MESSAGES,
            raw_out=options.out / "sse_raw.txt",
            send=lambda body: post(options.url, {**body, **named}),
        )
        (options.out / "chunks.jsonl").write_text(chunk_lines(pieces), encoding="utf-8")
    except (OSError, StreamFailure) as error:  # requests' errors are OSErrors
        print(f"sse.py: {options.url}: {error}", file=sys.stderr)
        return 1
    first = f"first text after {pieces[0]['t_ms']:.1f} ms, " if pieces else ""
    print(f"{len(pieces)} pieces, {first}total {total_ms:.1f} ms, timings: {timings or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
