"""Read the event stream of an LLM server by hand: bytes in, timed pieces of text out.

This file stands alone on requests and knows nothing of pytest or of the package around it:
it is copied into the directory of every run, where `python sse.py --url URL` reads a stream
again. Two laws: a read is stamped before anything looks at its bytes, and bytes are decoded
only where a line is complete, so that no split of the stream can change what it says.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import urljoin, urlsplit

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

CHAT = "/chat/completions"
WORDS_SHOWN_AT_MOST = 500
# What servers write as a finish reason when the generation failed, in capitals or not: OpenRouter,
# Zhipu, DeepSeek, vLLM and SGLang; Cohere.
FAILED = (
    "error", "network_error", "insufficient_system_resource", "abort", "aborted", "failed",
    "server_error", "timeout", "error_toxic", "error_limit",
)  # fmt: skip
REASONING_FIELDS = (
    "reasoning_content", "reasoning", "reasoning_details", "reasoning_text", "thinking",
    "thinking_blocks",
)  # fmt: skip
# Fewer may be as many answers.
NUMBERED_CHUNKS_AT_LEAST = 5
# Less text than this may begin with itself by chance: "1", "11", "111".
REPEATED_CHARACTERS_AT_LEAST = 12

# What no honest server sends, and what a client must not let one fill the memory with.
BYTES_AT_MOST = 16 * 1024 * 1024
EVENT_BYTES_AT_MOST = 1024 * 1024
EVENTS_AT_MOST = 50_000
JSON_BYTES_AT_MOST = 4 * 1024 * 1024
JSON_DEPTH_AT_MOST = 100
JSON_OBJECTS_AT_MOST = 100_000  # and lists: each takes thirty times its bytes

_DONE_BYTES = DONE.encode("ascii")
_VERSION = re.compile(r"v\d\w*")  # of an API, in a path: v1, v4, v1beta
_MESSAGES = (
    "message", "msg", "detail", "error_message", "error_msg", "status_msg", "reason",
    "errorMessage", "ErrorMsg", "Msg",
)  # fmt: skip
_NO_FAILURE = ("0", "200")  # codes by which a server says that all is well
_ERROR_EVENTS = ("error", "exception")
_NO_WORDS = frozenset(("", "0", "none", "null", "false", "ok", "success", "200"))
_INNER = ("text", "thinking", "content", "parts", "summary", "value")
_BLANK = (b"\n\n\n", b"\r\r\r", b"\r\n\r\n\r\n")
_BLANK_LINES = re.compile(rb"(\r\n|\n|\r)\1{2,}")
_COMMENTS = re.compile(rb"\n(?::[^\r\n]*\n)+")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":", b"error:")


def now(read: Callable[[], float] = time.perf_counter) -> float:
    """`time.perf_counter()` as it was when this was imported: a test suite may stop that of the
    module (freezegun), and what is measured by it then took no time."""
    return read()


def pause(seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """`time.sleep()`, likewise."""
    sleep(seconds)


_TAKEN = {name: getattr(time, name) for name in ("perf_counter", "monotonic", "sleep", "time")}


def patched_clock() -> str | None:
    """Which function of `time` is not what it was, and whose it is now; None: none."""
    for name, taken in _TAKEN.items():
        found = getattr(time, name)
        if found is not taken:
            return f"time.{name} is {getattr(found, '__module__', None) or type(found).__name__}'s"
    return None


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
    that is not closed by a blank line is discarded (see `end`). Bytes that are not UTF-8
    become U+FFFD. Beyond the standard, a field named `error` is the data of an event of that type:
    llama.cpp sent its failures so until 2025, and one that is passed over is a stream cut short.
    An event that grows beyond EVENT_BYTES_AT_MOST raises TooLong, and nothing can be fed any more.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()  # a line without its end: no byte of it is searched twice
        self._size = 0  # of the event's lines so far
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
            self._check_size()
            return []
        text = bytes(self._buffer) + data
        # A server may send millions of lines that say nothing: line by line they take seconds.
        if b"\n:" in text:
            text = _COMMENTS.sub(b"\n", text)
        if any(blank in text for blank in (_BLANK if has_cr else _BLANK[:1])):
            text = _BLANK_LINES.sub(rb"\1\1", text)
        # Most streams have LF alone, and splitting at one byte is the faster.
        *lines, rest = _LINE_END.split(text) if has_cr else text.split(b"\n")
        self._buffer = bytearray(rest)
        self._after_cr = has_cr and text.endswith(b"\r")
        events: list[Event] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(_value(line[5:]))
                self._size += len(line)
            elif not line:
                self._dispatch(events)
            elif not line.startswith(b":"):
                self._field(line)
                self._size += len(line)
        self._check_size()
        return events

    def end(self) -> Event | None:
        """At the end of the body: the event that no blank line has ended; None: there is none."""
        return next(iter(self.feed(b"\n\n")), None)

    def _check_size(self) -> None:
        if self._size + len(self._buffer) > EVENT_BYTES_AT_MOST:
            raise TooLong

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
        elif name == b"error":
            self._data.append(_value(value))
            self._type = "error"
        elif name == b"id" and b"\0" not in value:
            self._id = _value(value)

    def _dispatch(self, events: list[Event]) -> None:
        if self._data:
            events.append(Event("\n".join(self._data), self._type or "message", self._id))
            self._data = []
        self._type = ""
        self._size = 0


def _value(value: bytes) -> str:
    """A field's value: one leading blank is no part of it."""
    return value.removeprefix(b" ").decode("utf-8", "replace")


class Read(NamedTuple):
    """What one return of the socket brought: `data`, `t_ms` milliseconds after the start."""

    t_ms: float
    data: bytes


Arrival = tuple[float, bytes]  # the `now()` of a read's return, and its bytes


class Readable(Protocol):
    """The part of urllib3's response that reading needs."""

    def read1(self, amt: int, decode_content: bool) -> bytes: ...


def arrivals(raw: Readable) -> Iterator[Arrival]:
    """The body of a urllib3 response (requests: `response.raw`), every read stamped.

    `read1` returns what has come, in chunked and in close-delimited bodies alike;
    `iter_lines` and `iter_content` wait for full buffers and would delay a stamp by seconds.
    """
    while data := raw.read1(READ_SIZE_BYTES, decode_content=True):
        yield now(), data


def read_stream(body: Iterable[Arrival], started: float) -> Iterator[Read]:
    """The one reading loop: yield every read of an event stream up to its `[DONE]`.

    `started` is the `now()` from which times count.
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
            try:
                if any(is_done(event) for part in undecoded for event in decoder.feed(part)):
                    return
            except TooLong:
                return  # whoever decodes the reads is told
            undecoded.clear()


class StreamFailure(RuntimeError):
    """The server answered with an error, or with something that is no event stream."""


class Reported(StreamFailure):
    """The server reports a failure inside the stream."""

    def __init__(self, words: str) -> None:
        super().__init__(f"the server reports inside the stream: {words}")


class TooLong(StreamFailure):
    """An event does not end."""

    def __init__(self) -> None:
        super().__init__(
            f"an event has more than {EVENT_BYTES_AT_MOST:,} bytes, and no end so far: what "
            "follows is not looked at. An event ends with a blank line; let the server send one "
            "after each piece of the answer"
        )


class TooMany(StreamFailure):
    """Its events do not end."""

    def __init__(self) -> None:
        super().__init__(
            f"more than {EVENTS_AT_MOST:,} events came: what follows is not looked at. Let the "
            "server generate no more than it was asked for"
        )


class NoBlankLines(StreamFailure):
    """Its events are not ended by blank lines, so that they run into one."""

    def __init__(self, lines: int) -> None:
        super().__init__(
            f"{lines} `data:` lines came with no blank line between them, which makes them one "
            'event: an event ends with a blank line ("Interpreting an event stream" of the HTML '
            "standard), and most clients show nothing of such a stream. Let the server end each "
            "event with two newlines"
        )


def timed_events(
    reads: Iterable[Read], decoder: Decoder | None = None
) -> Iterator[tuple[float, Event]]:
    """Yield (t_ms, event) for every event, t_ms being that of the read that completed it. A
    `decoder` that is given has, afterwards, what no blank line has ended. Raises TooLong, TooMany.
    """
    decoder = decoder or Decoder()
    count = 0
    for read in reads:
        for event in decoder.feed(read.data):
            count += 1
            if count > EVENTS_AT_MOST:
                raise TooMany
            yield read.t_ms, event


def all_events(reads: Sequence[Read]) -> Iterator[tuple[float, Event]]:
    """`timed_events` of a body that was read to its end: with the last event, though no blank line
    has ended it, where it is whole. Many clients read it."""
    decoder = Decoder()
    yield from timed_events(reads, decoder)
    last = decoder.end()
    if last is not None and is_whole(last):
        yield reads[-1].t_ms, last


def is_whole(event: Event) -> bool:
    """Whether an event that no blank line has ended was not cut off, either."""
    if event.type.lower() in _ERROR_EVENTS or is_done(event):
        return True
    return _object(event.data) is not None or _several(event.data) is not None


def is_done(event: Event) -> bool:
    """Whether it is the end of a stream: `[DONE]`, with or without blanks around it."""
    return event.data.strip() == DONE


def chunk_of(event: Event) -> dict[str, Any] | None:
    """The JSON object of an event; None where it is neither a piece nor an end nor an error: one
    without data, or a named one that is no JSON (`event: ping`). Raises Reported with the
    server's words where it tells of an error, and StreamFailure for data that is no JSON object.
    """
    if event.type.lower() in _ERROR_EVENTS:
        raise Reported(_error_event_words(event.data))
    if not event.data.strip():
        return None
    value = value_of(event.data)
    # Google's errors stand in a list of one.
    for one in value[:10] if isinstance(value, list) else [value]:
        is_named = event.type != "message"
        words = error_words(one, is_named) if isinstance(one, dict) else None
        if words is not None:
            raise Reported(words)
    if isinstance(value, dict):
        return value
    if event.type != "message":
        return None
    raise _several(event.data) or StreamFailure(
        f"an event is not a JSON object: {event.data[:80]!r}"
    )


def _error_event_words(data: str) -> str:
    value = value_of(data)
    words = (error_words(value) or _told(value)) if isinstance(value, dict) else None
    words = words or (value if isinstance(value, str) else data)
    return shown_words(words) or "an event of the type error, without words"


def _several(data: str) -> StreamFailure | None:
    """What is wrong with data of which each line is an event's by itself, but for a last one that
    may be cut off; None: it is no such data."""
    lines = [line for line in data.split("\n") if line.strip()]
    values = [{} if is_done(Event(line)) else _object(line) for line in lines]
    if values and values[-1] is None:
        values.pop()
    if len(lines) < 2 or not values or None in values:
        return None
    for words in filter(None, map(error_words, filter(None, values))):
        return Reported(words)
    return NoBlankLines(len(lines))


def value_of(text: str | bytes) -> Any:
    """The value of a server's JSON text; None where it is none. NaN and what is beyond every float
    are no JSON, some servers send them all the same, and no file may hold them: they are null.
    One too large, or too deep for whoever looks into it, counts as none."""
    if len(text) > JSON_BYTES_AT_MOST:
        return None
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        objects = text.count("{") + text.count("[")
        value = _JSON.decode(text) if objects <= JSON_OBJECTS_AT_MOST else None
    except (ValueError, RecursionError):
        return None
    return None if objects > JSON_DEPTH_AT_MOST and _is_deep(value) else value


def _is_deep(value: Any) -> bool:
    """Whether lists and objects lie in each other beyond JSON_DEPTH_AT_MOST."""
    level = [value]
    for _ in range(JSON_DEPTH_AT_MOST):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _no_number(_: str) -> None:
    return None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if value - value == 0 else None


_JSON = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def unframed_failure(body: bytes) -> Reported | None:
    """A failure that stands in a body as plain JSON, in one line or more, beside its events
    (Gemini); None: there is none."""
    lines = _LINE_END.split(body.removeprefix(_BOM))
    beside = b"\n".join(line for line in lines if not line.startswith(_FIELDS))
    value = value_of(beside.strip())
    for one in value if isinstance(value, list) else [value]:
        words = error_words(one) if isinstance(one, dict) else None
        if words is not None:
            return Reported(words)
    return None


def has_events(body: bytes) -> bool:
    """Whether a line of the body is a field by which an event stream is known."""
    return re.search(rb"(?:\A(?:\xef\xbb\xbf)?|[\r\n])(?:data|error):", body) is not None


def _object(text: str) -> dict[str, Any] | None:
    value = value_of(text)
    return value if isinstance(value, dict) else None


def error_words(value: Mapping[str, Any], is_named: bool = False) -> str | None:
    """The server's own words if the payload reports a failure, else None.

    In all the forms in which servers and gateways do: `error` or `errors` at the top or in the
    choice, `object` or `type` "error", `error_message` and `error_type`, FastAPI's `detail`, a
    code other than 0 beside a message, a finish reason that is one. Null, false, empty and code 0
    are no error; nor are `detail`, `code` and `status` in an event that has a name of its own
    (`is_named`) and no choices: a queue tells of its places so.
    """
    choice = answer_choice(value)
    added = mapping(choice, "delta").get("error")
    groq = mapping(value, "x_groq").get("error")
    places = (value.get("error"), value.get("errors"), choice.get("error"), added, groq)
    found = next(filter(None, map(_told, places)), None)
    if value.get("error") is True:
        found = _message(value) or found
    if found is None and "error" in (value.get("object"), value.get("type")):
        found = _message(value) or _json(value)
    if found is None:
        named = [value.get(name) for name in ("error_message", "error_msg", "error_type")]
        code = value.get("error_code")
        if any(map(_is_said, named)) or _is_said(code):
            found = _first_words(*named) or f"error_code {code}"
    if found is None and _is_said(mapping(value, "base_resp").get("status_code")):  # MiniMax
        found = _message(mapping(value, "base_resp")) or _json(mapping(value, "base_resp"))
    reason = choice.get("finish_reason")
    if isinstance(reason, Mapping):  # SGLang: {"type": "abort", "message": ...}
        if found is None and reason.get("type") in FAILED:
            found = _message(reason)
        reason = reason.get("type")
    if found is None and isinstance(reason, str) and reason.lower() in FAILED:
        found = _message(value) or f"finish_reason {reason!r}"
    if found is None and not value.get("choices") and not is_named:
        found = _without_choices(value)
    return None if found is None else shown_words(found)


def _without_choices(value: Mapping[str, Any]) -> str | None:
    """The words of a failure in an object that is no chunk of a chat."""
    if _is_said(value.get("detail")):
        return _told(value.get("detail"))
    # A word such as "queued" or "processing" may be a heartbeat's.
    status = str(next(filter(None, map(value.get, ("status_code", "statusCode", "status"))), ""))
    is_number = status.isdecimal() and len(status) < 10
    failed = status.lower() in FAILED or (is_number and int(status) >= 400)
    failed = failed or value.get("success") is False or _is_said(value.get("code"))
    failed = failed or any(_is_said(value.get(name)) for name in ("errorType", "ErrorMsg"))
    failed = failed or str(value.get("event")).lower() in _ERROR_EVENTS
    if failed:
        return _first_words(*(value.get(name) for name in _MESSAGES))
    # Bedrock: {"internalServerException": {"message": ...}}; {"type": "response.failed", ...}
    inner = [value[name] for name in value if name.endswith(("Exception", "exception"))]
    inner.append(mapping(value, "response").get("error"))
    return next(filter(None, map(_told, inner)), None)


def _told(error: Any) -> str | None:
    """The words of what stands for an error; None where it is none."""
    if isinstance(error, Mapping):
        if not any(map(_is_said, error.values())):
            return None
        # An empty code says nothing; one of success does, unless a type contradicts it.
        code = str(error.get("code", error.get("status_code"))).strip()
        if code in _NO_FAILURE and "error" not in str(error.get("type")).lower():
            return None
        return _message(error) or _json(error)
    if isinstance(error, list):
        return next(filter(None, map(_told, error)), None)
    if not _is_said(error):
        return None
    return "an error without words" if error is True else str(error)


def _message(value: Mapping[str, Any]) -> str | None:
    return _first_words(*(value.get(name) for name in (*_MESSAGES, "type", "code")))


def _first_words(*values: Any) -> str | None:
    for value in values:
        if isinstance(value, (Mapping, list)) and value:
            return _json(value)
        if _is_said(value):
            return str(value)
    return None


def _is_said(value: Any) -> bool:
    return bool(value) and str(value).strip().lower() not in _NO_WORDS


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def shown_words(words: str) -> str:
    """A server's words in one line of bounded length."""
    line = " ".join(words[: 20 * WORDS_SHOWN_AT_MOST].split())
    return line if len(line) <= WORDS_SHOWN_AT_MOST else line[:WORDS_SHOWN_AT_MOST] + " ..."


def mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object inside a payload, empty where there is none of that name."""
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def answer_choice(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The choice of a chunk that belongs to the answer: that with the index 0, else, where they
    have no index, the first; empty where there is none. (See `renumbered`.)"""
    choices = value.get("choices")
    rows = [one for one in choices if isinstance(one, Mapping)] if isinstance(choices, list) else []
    for row in rows:
        if row.get("index") in (0, "0") and row.get("index") is not False:
            return row
    return rows[0] if rows and rows[0].get("index") is None else {}


def renumbered(values: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The chunks of one stream, the index of its only answer being 0.

    Some servers number the chunks there (Foundry Local from 0, TGI from 1), or give the answer
    another index. Of several answers the first stays what it is.
    """
    indices: list[int] = []
    for value in values:
        choices = value.get("choices")
        rows = choices if isinstance(choices, list) else []
        found = [one.get("index") for one in rows if isinstance(one, Mapping)]
        numbers = [index for index in found if type(index) is int]
        if len(rows) > 1 or len(numbers) < len(rows):
            return values
        indices += numbers
    if not _is_one_answer(indices):
        return values
    return [
        {**value, "choices": [{**row, "index": 0} for row in value.get("choices") or ()]}
        for value in values
    ]


def _is_one_answer(indices: Sequence[int]) -> bool:
    """Whether the indices of a stream's chunks are those of one answer, and not 0."""
    different = set(indices)
    if len(different) == 1:
        return 0 not in different
    # The last chunk, with the finish reason, may begin anew.
    pairs = itertools.pairwise(indices[:-1])
    counts = all(before <= after for before, after in pairs)
    return counts and 2 * len(different) > len(indices) >= NUMBERED_CHUNKS_AT_LEAST


def delta(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a chunk adds: `delta` of its choice, else its `message`, else its `text`; empty where
    it has none. Perplexity sends a `message` with all text so far beside the `delta`."""
    choice = answer_choice(value)
    for name in ("delta", "message"):
        found = choice.get(name)
        if isinstance(found, Mapping) and found:
            return found
        if isinstance(found, str) and found:
            return {"content": found}
    text = choice.get("text")
    return {"content": text} if isinstance(text, str) else {}


def content(value: Mapping[str, Any]) -> str:
    """The text in a chunk; empty for the role chunk and all others without text."""
    found = delta(value)
    return "" if _is_googles_thought(found) else _parts(found.get("content"))[0]


def _is_googles_thought(found: Mapping[str, Any]) -> bool:
    """Whether a delta is marked as a thought beside its content (Gemini). With tags around the
    text, too, these tell where the answer begins."""
    google = mapping(mapping(found, "extra_content"), "google")
    return google.get("thought") is True and not str(found.get("content")).startswith("<")


class Said(NamedTuple):
    """The text of a chunk, and whether it came as a `delta`."""

    text: str
    is_delta: bool = True


def said(value: Mapping[str, Any]) -> Said:
    """The text in a chunk, and how it came."""
    return Said(content(value), bool(answer_choice(value).get("delta")))


def reasoning_field(value: Mapping[str, Any]) -> str | None:
    """Where a chunk holds reasoning; None: it holds none."""
    found = delta(value)
    if _parts(found.get("content"))[1]:
        return "thinking parts"
    if _is_googles_thought(found) and found.get("content"):
        return "extra_content"
    return next((name for name in REASONING_FIELDS if found.get(name)), None)


def is_token(value: Mapping[str, Any]) -> bool:
    """Whether a chunk holds what the model generated: text, reasoning, a refusal or a tool
    call."""
    others = any(delta(value).get(name) for name in ("tool_calls", "refusal"))
    return bool(content(value) or reasoning_field(value) or others)


def _parts(content: Any) -> tuple[str, str]:
    """(text, reasoning) of a content: a string, a part, or a list of parts (Mistral, Anthropic)."""
    if isinstance(content, str):
        return content, ""
    if isinstance(content, list):
        pairs = [_parts(part) for part in content]
        return "".join(text for text, _ in pairs), "".join(thought for _, thought in pairs)
    if not isinstance(content, Mapping):
        return "", ""
    inner = next((content[n] for n in _INNER if n in content), "")
    kind = str(content.get("type") or "text").lower()
    text, thought = _parts(inner)
    if "think" in kind or "reason" in kind or content.get("thought") is True:
        return "", text + thought
    return (text, thought) if "text" in kind or kind == "content" else ("", "")


def usage_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The usage in a chunk: at the top, in `x_groq` (Groq), in the choice (Moonshot)."""
    places = (value, mapping(value, "x_groq"), answer_choice(value))
    return next(filter(None, (mapping(place, "usage") for place in places)), {})


def repeats(texts: Sequence[str]) -> bool:
    """Whether each text holds all that came before it: a server that sends the answer so far."""
    if len(texts) < 3 or len(texts[-1]) < REPEATED_CHARACTERS_AT_LEAST:
        return False
    pairs = list(itertools.pairwise(texts))
    longer = sum(len(after) > len(before) for before, after in pairs)
    return 2 * longer > len(pairs) and all(after.startswith(before) for before, after in pairs)


def added(chunks: Sequence[Said]) -> list[str]:
    """What each text of a stream adds to those before it: all of it, or, where they hold the
    answer so far, the new part. The whole answer once more, as a `message` behind deltas or as a
    last delta, adds nothing."""
    has_deltas = any(one.text and one.is_delta for one in chunks)
    texts = [one.text if one.is_delta or not has_deltas else "" for one in chunks]
    spoken = [at for at, text in enumerate(texts) if text]
    words = [texts[at] for at in spoken]
    if repeats(words):
        for at, before, after in zip(spoken[1:], words, words[1:]):
            texts[at] = after[len(before) :]
    elif (
        len(words) > 3
        and len(words[-1]) >= REPEATED_CHARACTERS_AT_LEAST
        and words[-1] == "".join(words[:-1])
    ):
        texts[spoken[-1]] = ""
    return texts


def api_places(url: str) -> tuple[str, tuple[str, ...]]:
    """(root, paths) of a server by any URL that a client is given: `root` is where /health lies,
    one of `paths` behind it where `/chat/completions` does, the likeliest first.

    http://host -> /v1, then none; http://host/v1 and http://host/api/v4 -> just that;
    http://host/v1beta/openai -> that, then with /v1 behind.
    """
    url = url.rstrip("/")
    base = url.removesuffix(CHAT).rstrip("/")
    path = urlsplit(base).path
    parts = path.split("/")
    version = next((i for i, part in enumerate(parts) if _VERSION.fullmatch(part)), None)
    if version is None:
        return base, ("",) if base != url else ("/v1", "")
    root = base[: len(base) - len(path)] + "/".join(parts[:version])
    own = base[len(root) :]
    exact = base != url or version == len(parts) - 1
    return root, (own,) if exact else (own, own + "/v1")


def redirect_words(status: int, asked: str, location: str) -> str:
    """Where a redirect points, without what may be secret (a password, a query), and what to do.
    `asked` is the URL or the path that was asked for."""
    try:
        parts = urlsplit(urljoin(asked, location))
        host = parts.netloc.rpartition("@")[2]
        target = (f"{parts.scheme}://{host}" if host else "") + parts.path
    except ValueError:
        target = location.partition("?")[0]
    target = shown_words(target).removesuffix("/models")
    if not location:
        return f"HTTP {status}: a redirect that names no place to go"
    return (
        f"HTTP {status}: {asked} redirects to {target}; a redirect is not followed, "
        "since the key would follow it. Give the URL that it points to: "
        f"--llm-url={target.removesuffix(CHAT)}"
    )


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
    """POST `body` to the chat completions of the server at `url` (any form that OpenAI clients
    take) and yield the reads of the answer.

    The clock starts just before the request is sent; opening the connection is part of the
    times. `LLM_API_KEY` of the environment is sent as the key.
    Raises StreamFailure for a status other than 2xx, for more than BYTES_AT_MOST and for a
    connection that breaks in the answer, and requests' own errors.
    """
    import requests
    import urllib3

    root, paths = api_places(url)
    key = os.environ.get("LLM_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers["Accept-Encoding"] = "identity"  # a compressed stream may become any size
    with requests.Session() as session:
        # A proxy of the environment is never meant for a server on this machine.
        session.trust_env = urlsplit(root).hostname not in ("localhost", "127.0.0.1", "::1")
        for path in paths:
            request = session.prepare_request(
                requests.Request("POST", root + path + CHAT, json=body, headers=headers)
            )
            settings: dict[str, Any] = {
                **session.merge_environment_settings(request.url, {}, True, None, None),
                "stream": True,
            }
            started = now()
            # The adapter follows no redirect (the key must not), and reads the body of none.
            response = session.get_adapter(root).send(
                request, timeout=(CONNECT_TIMEOUT_S, GAP_TIMEOUT_S), **settings
            )
            told = b""
            with response:
                if 200 <= response.status_code < 300:
                    try:
                        yield from _bounded(read_stream(arrivals(response.raw), started))
                    except urllib3.exceptions.HTTPError as error:
                        raise StreamFailure(f"the connection broke: {error}") from error
                    return
                if 300 <= response.status_code < 400:
                    place = response.headers.get("Location", "")
                    raise StreamFailure(
                        redirect_words(response.status_code, root + path + CHAT, place)
                    )
                if response.status_code not in (404, 405) or path == paths[-1]:
                    with contextlib.suppress(urllib3.exceptions.HTTPError):
                        told = response.raw.read(1000, decode_content=True)
                    text = told.decode("utf-8", "replace")[:300]
                    words = f"HTTP {response.status_code}: {text}"
                    asked = ", ".join(root + one + CHAT for one in paths)
                    raise StreamFailure(f"{words} (asked: {asked})")


def _bounded(reads: Iterable[Read]) -> Iterator[Read]:
    size, limit = 0, BYTES_AT_MOST
    for read in reads:
        yield read
        size += len(read.data)
        if size > limit:
            raise StreamFailure(f"more than {limit:,} bytes: reading stopped")


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
    moments: list[float] = []
    chunks: list[dict[str, Any]] = []
    for t_ms, event in all_events(received):
        if is_done(event):
            break
        value = chunk_of(event)
        if value is not None:
            moments.append(t_ms)
            chunks.append(value)
    timings = next(filter(None, (mapping(one, "timings") for one in reversed(chunks))), {})
    texts = added(list(map(said, renumbered(chunks))))
    pieces = [{"t_ms": t_ms, "text": text} for t_ms, text in zip(moments, texts) if text]
    return pieces, received[-1].t_ms if received else 0.0, dict(timings)


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
        words = f"sse.py: {options.url}: {error}"
        key = os.environ.get("LLM_API_KEY")  # which a server may repeat
        print(words.replace(key, "***") if key else words, file=sys.stderr)
        return 1
    first = f"first text after {pieces[0]['t_ms']:.1f} ms, " if pieces else ""
    print(f"{len(pieces)} pieces, {first}total {total_ms:.1f} ms, timings: {timings or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
