"""The chunked transfer coding, wherever it was split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llm_latency.arrivals import BrokenBody, Unchunker


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
    with pytest.raises(BrokenBody):
        feed_all([coded])


def test_a_size_without_an_end_is_bounded() -> None:
    unchunker = Unchunker()
    for _ in range(6):
        unchunker.feed(b"1" * 10_000)
    with pytest.raises(BrokenBody, match="no line"):
        unchunker.feed(b"1" * 10_000)
