"""The raw evidence of one request: what was sent, every read with its time, how it ended.

A recording holds no interpretation. All numbers are derived from it by `derive.py`, so
that a saved recording proves them again without a server.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import ArtifactError
from ..sse import Read, json_text, value_of
from .strictjson import load_json

FORMAT = "pytest-llm-latency/recording"
VERSION = 2
READING = 2  # by which rules bytes are read: 1 are those of before

_SPELLED_OUT = bytes(byte for byte in range(32) if byte not in b"\b\t\n\f\r")

EndKind = Literal["eof", "closed", "broken", "deadline"]
END_KINDS = ("eof", "closed", "broken", "deadline")


@dataclass(frozen=True)
class Request:
    """A request as sent, without secrets: `headers` holds no credentials."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


@dataclass(frozen=True)
class End:
    """How the exchange ended.

    `kind`: "eof" the stream was read to its end; "closed" by us before that; "broken" the
    connection failed; "deadline" one of our own deadlines fired. `detail` names the failure
    or the deadline. `t_ms` counts from the start.
    """

    kind: EndKind
    t_ms: float
    detail: str = ""


@dataclass(frozen=True)
class Recording:
    """One request and all that came back.

    Times are milliseconds from the moment just before the request is sent, its connection
    being open; `connect_ms` is what opening it took before that. `status` is None and
    `headers_ms` is None where no answer came. `label` is "step/leg". Of two stamps that are
    less than `jitter_ms` apart the reader cannot say more than that (0: not known). For
    `cpu_wait_ms` in all it had work and no core to do it on: so late a stamp may be (None: the
    system does not say). By another clock of the system, which counts while it sleeps, too, it
    took `clock_off_ms` longer than by ours, or (negative) less; 0: the two agree. `reading` is 1
    where its numbers were derived before reasoning was told from text, and counts and repeated
    text were looked for: they are derived so again. In `masked` places of the body a secret was
    starred (see `masking.py`), byte for byte.
    """

    label: str
    request: Request
    status: int | None
    response_headers: tuple[tuple[str, str], ...]
    connect_ms: float | None
    headers_ms: float | None
    reads: tuple[Read, ...]
    end: End
    jitter_ms: float = 0.0
    cpu_wait_ms: float | None = None
    clock_off_ms: float = 0.0
    reading: int = READING
    masked: int = 0

    @property
    def body(self) -> bytes:
        """All bytes of the answer's body, transfer and content encodings removed."""
        return b"".join(read.data for read in self.reads)


@dataclass(frozen=True)
class Reply:
    """The answer to a plain question: status, body bytes, how long it took (ms), and where a
    redirect points ("": nowhere)."""

    status: int
    body: bytes
    took_ms: float
    location: str = ""

    def json(self) -> Any:
        """The body as JSON, None where it is none."""
        return value_of(self.body)


def dump(recording: Recording) -> bytes:
    """The recording as JSON Lines: a head, a line per read, an end (docs/evidence.md)."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "label": recording.label,
        "request": {
            "method": recording.request.method,
            "path": recording.request.path,
            "headers": dict(recording.request.headers),
            "body": recording.request.body,
        },
        "status": recording.status,
        "response_headers": [list(pair) for pair in recording.response_headers],
        "connect_ms": recording.connect_ms,
        "headers_ms": recording.headers_ms,
        "jitter_ms": recording.jitter_ms,
        "cpu_wait_ms": recording.cpu_wait_ms,
        "clock_off_ms": recording.clock_off_ms,
        "reading": recording.reading,
        "masked": recording.masked,
    }
    end = {
        "end": recording.end.kind,
        "t_ms": recording.end.t_ms,
        "detail": recording.end.detail,
    }
    # Bytes, line by line: as one text, an emoji would make it four times as large.
    lines = itertools.chain([head], map(_dump_read, recording.reads), [end])
    return b"".join(json_text(line).encode("utf-8") + b"\n" for line in lines)


def _dump_read(read: Read) -> dict[str, Any]:
    # JSON writes a NUL as six characters, base64 any byte as one and a third.
    spelled_out = len(read.data) - len(read.data.translate(None, _SPELLED_OUT))
    if 15 * spelled_out <= len(read.data):
        with contextlib.suppress(UnicodeDecodeError):
            return {"t_ms": read.t_ms, "text": read.data.decode("utf-8")}
    return {"t_ms": read.t_ms, "base64": base64.b64encode(read.data).decode("ascii")}


def load(text: str, where: str) -> Recording:
    """Parse what `dump` wrote. Raises ArtifactError that names `where` and the line."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):  # JSON itself ignores a CR
        if not line.strip():
            continue
        rows.append(load_json(line, f"{where}:{number}"))
    try:
        head, *middle, last = rows
        if head["format"] != FORMAT or head["version"] != VERSION:
            raise ArtifactError(
                f"{where}: format {head['format']!r} version {head['version']!r}; "
                f"this version reads {FORMAT!r} version {VERSION}"
            )
        request = head["request"]
        objects = (request["body"], request["headers"])
        if not all(isinstance(one, dict) for one in objects) or last["end"] not in END_KINDS:
            raise ValueError("the request's body and headers must be objects, the end a kind")
        if not isinstance(head["response_headers"], list):
            raise ValueError("response_headers must be a list of pairs")
        return Recording(
            label=head["label"],
            request=Request(
                request["method"], request["path"], request["headers"], request["body"]
            ),
            status=head["status"],
            response_headers=tuple(
                (str(name), str(value)) for name, value in head["response_headers"]
            ),
            connect_ms=_moment_or_none(head["connect_ms"]),
            headers_ms=_moment_or_none(head["headers_ms"]),
            reads=tuple(map(_load_read, middle)),
            end=End(last["end"], _moment(last["t_ms"]), str(last["detail"])),
            jitter_ms=_moment(head["jitter_ms"]),
            cpu_wait_ms=_moment_or_none(head["cpu_wait_ms"]),
            # Recordings of before do not have it.
            clock_off_ms=_difference(head.get("clock_off_ms", 0.0)),
            reading=READING if head.get("reading") == READING else 1,
            masked=int(_moment(head.get("masked", 0))),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{where}: not a whole recording: {error!r}") from None


def _load_read(row: Mapping[str, Any]) -> Read:
    t_ms = _moment(row["t_ms"])
    if "text" in row:
        return Read(t_ms, str(row["text"]).encode("utf-8"))
    return Read(t_ms, base64.b64decode(row["base64"]))


def _moment_or_none(value: Any) -> float | None:
    return None if value is None else _moment(value)


def _difference(value: Any) -> float:
    return -_moment(-value) if isinstance(value, (int, float)) and value < 0 else _moment(value)


def _moment(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e15:
        raise ValueError(f"{value!r} is no time in milliseconds")
    return value
