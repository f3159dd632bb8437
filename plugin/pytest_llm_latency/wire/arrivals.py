"""The body of an answer as it arrives: each return of the socket's recv, stamped there and then.

urllib3 and http.client send the request and read the head. The body is read here: they return
one HTTP chunk a call, stamped after their own work, and fall behind a server that writes fast.
An arrival is what became readable together, however many events, chunks or pieces it holds.
"""

from __future__ import annotations

import http.client
import io
import re
import zlib
from collections.abc import Iterator
from typing import Any

from .. import sse

_SIZE = re.compile(rb"[ \t]*0*([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_LONGEST_LINE_BYTES = 65536
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
# Content codings by IANA's registry; any other name ("none", "utf-8", "chunked") says of none.
_ENCODINGS = frozenset(
    ("aes128gcm", "br", "compress", "dcb", "dcz", "deflate", "exi", "gzip", "pack200-gzip", "zstd")
)
_ENCODINGS_AT_MOST = 3
_INTERIM_AT_MOST = 20
_PART_BYTES = 1024 * 1024  # of a decompressed read at a time: a bomb goes off in small parts


class BrokenBody(OSError):
    """The body was cut off."""


class UnreadableBody(OSError):
    """The body cannot be read: no chunk where one must be, or an encoding that is unknown or
    broken. The connection is not to blame."""


class OversizedBody(UnreadableBody):
    """The body is longer than it may be."""


class Unchunker:
    """Removes the chunked transfer coding (RFC 9112, section 7.1), wherever it was split.

    `ended` after the last chunk; what follows (trailers) is not looked at.
    """

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""
        self._left = 0  # bytes of the chunk under way
        self._is_after_chunk = False  # its line end comes next

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return the body's among them. Raises UnreadableBody."""
        data = self._rest + data if self._rest else data
        body = []
        position = 0
        while not self.ended:
            if self._left:
                part = data[position : position + self._left]
                body.append(part)
                position += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._is_after_chunk = True
            end = data.find(b"\n", position)
            if end < 0:
                if len(data) - position > _LONGEST_LINE_BYTES:
                    raise UnreadableBody("a chunk's size is no line")
                break
            self._line(data[position:end].removesuffix(b"\r"))
            position = end + 1
        self._rest = b"" if self._left or self.ended else data[position:]
        return b"".join(body)

    def _line(self, line: bytes) -> None:
        if self._is_after_chunk:
            if line:
                raise UnreadableBody(f"a chunk is longer than its size: {line[:40]!r} follows")
            self._is_after_chunk = False
            return
        size = _SIZE.fullmatch(line)
        if size is None:
            raise UnreadableBody(f"no chunk's size: {line[:40]!r}")
        self._left = int(size.group(1), 16)
        self.ended = self._left == 0


class Decompressor:
    """Takes off a content encoding, gzip or deflate, as the bytes come."""

    def __init__(self, encoding: str) -> None:
        """Raises UnreadableBody for another encoding."""
        if encoding not in _WINDOW_BITS:
            raise UnreadableBody(
                f"it has the content encoding {encoding!r}, which nobody asked for (the request "
                "says Accept-Encoding: gzip, deflate): let the server, or what stands before it, "
                "not compress text/event-stream"
            )
        self._bits = _WINDOW_BITS[encoding]
        self._decoder = zlib.decompressobj(self._bits)
        self._is_begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next bytes; yield what they give, in parts of bounded size. Raises
        UnreadableBody."""
        if not self._is_begun and self._bits == zlib.MAX_WBITS and data:
            self._bits = _deflate_bits(data)
            self._decoder = zlib.decompressobj(self._bits)
        try:
            while data:
                if self._decoder.eof:  # a further member follows
                    self._decoder = zlib.decompressobj(self._bits)
                self._is_begun = True
                part = self._decoder.decompress(data, _PART_BYTES)
                data = self._decoder.unconsumed_tail or self._decoder.unused_data
                if part:
                    yield part
        except zlib.error as error:
            raise UnreadableBody(f"the content encoding is broken: {error}") from None

    def end(self) -> None:
        """Raise BrokenBody where the encoded stream is not at its end."""
        if self._is_begun and not self._decoder.eof:
            raise BrokenBody("the encoded body was cut off before its end")


def _deflate_bits(data: bytes) -> int:
    """How "deflate" is meant, by its first bytes: with zlib's header (RFC 9110), or without, as
    some servers send it and every client takes it."""
    has_header = data[0] & 0x0F == 8 and data[0] >> 4 <= 7
    if has_header and len(data) > 1:
        has_header = (data[0] << 8 | data[1]) % 31 == 0
    return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS


def encodings(header: str) -> list[str]:
    """The codings that a Content-Encoding says were applied, in their order; what names none
    ("none", "utf-8", set to keep others from compressing; "chunked") is left out, as every client
    does."""
    names = [name.strip().lower().removeprefix("x-") for name in header.split(",")]
    return [name for name in names if name in _ENCODINGS]


class _StampedIO(io.RawIOBase):
    """A socket's bytes; `stamp` is the `sse.now()` of the latest return of its recv,
    `ended` says that it has returned the end."""

    def __init__(self, sock: Any) -> None:
        self.stamp = 0.0
        self.ended = False
        self._recv_into = sock.recv_into
        self._reference = sock.makefile("rb", buffering=0)  # until it closes, so does not `sock`

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._recv_into(buffer)
        self.stamp = sse.now()
        self.ended = count == 0
        return count

    def close(self) -> None:
        self._reference.close()
        super().close()


class Response(http.client.HTTPResponse):
    """http.client's response, of which it reads the head; `arrivals` are the body."""

    fp: io.BufferedReader | None  # type: ignore[assignment]

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._stamped = _StampedIO(sock)
        self._interim = 0
        assert self.fp is not None
        self.fp.close()
        self.fp = io.BufferedReader(self._stamped, sse.READ_SIZE_BYTES)

    def begin(self) -> None:
        """Read the head. Raises BrokenBody where it is cut off."""
        super().begin()
        if self._stamped.ended:
            raise BrokenBody("the answer's head was cut off")

    def _read_status(self) -> tuple[str, int, str]:
        """The status line of the final answer; http.client itself skips only "100 Continue"."""
        while True:
            line: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 100 <= line[1] < 200:
                return line
            self._interim += 1
            if self._interim > _INTERIM_AT_MOST:
                raise UnreadableBody(f"more than {_INTERIM_AT_MOST} interim answers (1xx) came")
            if line[1] in (100, 101):
                return line
            assert self.fp is not None
            http.client.parse_headers(self.fp)

    def arrivals(self) -> Iterator[sse.Arrival]:
        """The body up to its end, its encodings taken off; none of a redirect, whose head says
        all. Raises BrokenBody, UnreadableBody, OSError."""
        if 300 <= self.status < 400:
            return
        body = self._unchunked()
        applied = encodings(self.headers.get("Content-Encoding", ""))
        if len(applied) > _ENCODINGS_AT_MOST:
            raise UnreadableBody(f"it has {len(applied)} content encodings, one in another")
        for encoding in reversed(applied):
            body = _decompressed(body, Decompressor(encoding))
        yield from body

    def _unchunked(self) -> Iterator[sse.Arrival]:
        assert self.fp is not None
        unchunker = Unchunker() if self.chunked else None
        left = self.length  # None: the body ends with the connection
        buffer = memoryview(bytearray(sse.READ_SIZE_BYTES))
        is_first = True
        while left != 0:
            # What came with the head lies in `fp`. A read into one's own buffer is the cheaper.
            if is_first:
                data = self.fp.read1(sse.READ_SIZE_BYTES)
            else:
                data = bytes(buffer[: self._stamped.readinto(buffer)])
            is_first = False
            now = self._stamped.stamp
            if not data:
                if unchunker is not None or left is not None:
                    raise BrokenBody("the body was cut off before its end")
                return
            if unchunker is not None:
                data = unchunker.feed(data)
            elif left is not None:
                data = data[:left]
                left -= len(data)
            if data:
                yield now, data
            if unchunker is not None and unchunker.ended:
                return


def whole(body: Iterator[sse.Arrival], most_bytes: int) -> bytes:
    """All of a body. Raises OversizedBody where it is longer, and what `arrivals` raises."""
    data = bytearray()
    for _, part in body:
        data += part
        if len(data) > most_bytes:
            raise OversizedBody(f"the answer has more than {most_bytes:,} bytes: reading stopped")
    return bytes(data)


def _decompressed(body: Iterator[sse.Arrival], decompressor: Decompressor) -> Iterator[sse.Arrival]:
    for now, data in body:
        for part in decompressor.feed(data):
            yield now, part
    decompressor.end()
