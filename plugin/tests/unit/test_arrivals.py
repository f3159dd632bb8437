"""The chunked transfer coding, wherever it was split."""

from __future__ import annotations

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llm_latency.wire.arrivals import Decompressor, Unchunker, UnreadableBody


def feed_all(parts: list[bytes]) -> tuple[bytes, bool]:
    unchunker = Unchunker()
    body = b"".join(unchunker.feed(part) for part in parts)
    return body, unchunker.ended


def split(data: bytes, at: list[int]) -> list[bytes]:
    marks = [0, *sorted({place % (len(data) + 1) for place in at}), len(data)]
    return [data[a:b] for a, b in pairwise(marks)]


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    at=st.lists(st.integers(0, 10_000), max_size=12),
    extension=st.sampled_from([b"", b";name=value", b" ; x"]),
    line_end=st.sampled_from([b"\r\n", b"\n"]),
    trailer=st.sampled_from([b"", b"Expires: never\r\n"]),
)
def test_any_split_gives_the_same_body(
    chunks: list[bytes], at: list[int], extension: bytes, line_end: bytes, trailer: bytes
) -> None:
    coded = b"".join(
        f"{len(chunk):X}".encode() + extension + line_end + chunk + line_end for chunk in chunks
    )
    coded += b"0" + line_end + trailer + line_end
    assert feed_all(split(coded, at)) == (b"".join(chunks), True)


def test_every_byte_alone() -> None:
    coded = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    assert feed_all([bytes([byte]) for byte in coded]) == (b"hello world", True)


def test_bytes_are_given_before_their_chunk_is_whole() -> None:
    unchunker = Unchunker()
    assert unchunker.feed(b"5\r\nhe") == b"he"
    assert unchunker.feed(b"llo") == b"llo"
    assert not unchunker.ended


def test_nothing_is_read_after_the_end() -> None:
    assert feed_all([b"1\r\na\r\n0\r\n\r\n5\r\nhello\r\n"]) == (b"a", True)


@pytest.mark.parametrize(
    "coded",
    [b"data: x\n\n", b"-5\r\nhello", b"0x5\r\nhello", b"\r\nhello", b"5\r\nhello world\r\n", b"5 5\r\nhello", b"1" * 16 + b"\r\n"],
)  # fmt: skip
def test_broken_chunks_are_told(coded: bytes) -> None:
    with pytest.raises(UnreadableBody):
        feed_all([coded])


def test_a_size_without_an_end_is_bounded() -> None:
    unchunker = Unchunker()
    for _ in range(6):
        unchunker.feed(b"1" * 10_000)
    with pytest.raises(UnreadableBody, match="no line"):
        unchunker.feed(b"1" * 10_000)


@given(
    texts=st.lists(st.binary(max_size=60), min_size=1, max_size=4),
    encoding=st.sampled_from(["gzip", "deflate"]),
    at=st.lists(st.integers(0, 10_000), max_size=6),
)
def test_compressed_members_split_anywhere(
    texts: list[bytes], encoding: str, at: list[int]
) -> None:
    compress = gzip.compress if encoding == "gzip" else zlib.compress
    coded = b"".join(compress(text) for text in texts)
    decompressor = Decompressor(encoding)
    body = b"".join(part for data in split(coded, at) for part in decompressor.feed(data))
    decompressor.end()
    assert body == b"".join(texts)


def test_a_bomb_goes_off_in_small_parts() -> None:
    coded = gzip.compress(bytes(20_000_000))
    sizes = [len(part) for part in Decompressor("gzip").feed(coded)]
    assert sum(sizes) == 20_000_000
    assert max(sizes) <= 1024 * 1024
