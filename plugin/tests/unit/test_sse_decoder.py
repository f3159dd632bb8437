"""The decoder against the WHATWG's rules and examples, under every split."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llm_latency import sse
from pytest_llm_latency.sse import Decoder, Event, arrivals, read_stream


def decode(*chunks: bytes) -> list[Event]:
    decoder = Decoder()
    return list(itertools.chain.from_iterable(map(decoder.feed, chunks)))


def data(*chunks: bytes) -> list[str]:
    return [event.data for event in decode(*chunks)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        # the examples of the standard, section "Interpreting an event stream"
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", ["YHOO\n+2\n10"]),
        (b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
         ["first event", "second event", " third event"]),
        (b"data\n\ndata\ndata\n\ndata:", ["", "\n"]),
        (b"data:test\n\ndata: test\n\n", ["test", "test"]),
        # line ends
        (b"data: a\r\ndata: b\r\n\r\n", ["a\nb"]),
        (b"data: a\rdata: b\r\r", ["a\nb"]),
        (b"data: a\n\rdata: b\r\n\n", ["a", "b"]),
        # what is no event
        (b"event: x\n\n", []),
        (b":\n\n:\n\n", []),
        (b"data: never closed\n", []),
        (b"retry: 10\n\nfoo: bar\n\n", []),
        # text
        ("\ufeffdata: bom\n\n".encode(), ["bom"]),
        ("data: \ufeffinner\n\n".encode(), ["\ufeffinner"]),
        ("data: a\u2028b\x0bc\n\n".encode(), ["a\u2028b\x0bc"]),
        (b"data: \xe5\xa5\n\n", ["\ufffd"]),
        (b"data:{\"choices\":[]}\n\n", ['{"choices":[]}']),
    ],
)  # fmt: skip
def test_streams(stream: bytes, events: list[str]) -> None:
    assert data(stream) == events
    assert data(*(bytes([byte]) for byte in stream)) == events
    for at in range(len(stream)):
        assert data(stream[:at], stream[at:]) == events


def test_type_and_id() -> None:
    first, second = decode(b"event: ping\nid: 7\ndata: a\n\nid: 8\0\ndata: b\n\n")
    assert (first.type, first.id) == ("ping", "7")
    assert (second.type, second.id) == ("message", "7")  # an id with NUL is ignored


def test_a_split_character_is_whole() -> None:
    assert data(b"data: \xe5\xa5", b"\xbd\n\n") == ["好"]


def test_a_crlf_split_between_two_reads_is_one_line_end() -> None:
    assert data(b"data: a\r", b"\n\r", b"\ndata: b\r\n", b"\r\n") == ["a", "b"]


@given(
    st.lists(st.text(st.characters(blacklist_characters="\r\n\0", blacklist_categories=["Cs"]))),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.data(),
)
def test_any_text_survives_any_split(texts: list[str], end: bytes, choice: st.DataObject) -> None:
    stream = b"".join(b"data: " + text.encode() + end + end for text in texts)
    cuts = sorted(choice.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    parts = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
    assert data(*parts) == texts


class Unsearched(bytearray):
    """A buffer that may grow, but not be looked at."""

    def __bytes__(self) -> bytes:
        raise AssertionError("bytes of an unfinished line were searched again")


def test_a_long_line_is_searched_once() -> None:
    """Else doubling the bytes would quadruple the work."""
    decoder = Decoder()
    decoder.feed(b"data:")
    decoder._buffer = Unsearched(b"data:")
    for _ in range(1000):
        assert decoder.feed(b"x" * 1000) == []
    decoder._buffer = bytearray(decoder._buffer[:])
    assert [len(event.data) for event in decoder.feed(b"\n\n")] == [1_000_000]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_that_say_nothing_change_nothing(end: bytes) -> None:
    """They are passed over in bulk: among any of them, split anywhere, the events are the same."""
    nothing = [end * 5, b": a" + end, (b":" + end) * 4 + end * 3, end * 3 + b":" + end * 2]
    for before, between, after in itertools.product(nothing, repeat=3):
        stream = before + b"data: a" + end + b": c" + end + b":" + end + b"data: b" + end * 2
        stream += between + b"data: :x" + end * 2 + after
        assert data(stream) == ["a\nb", ":x"], stream
        assert data(*(bytes([byte]) for byte in stream)) == ["a\nb", ":x"], stream
        for at in range(len(stream)):
            assert data(stream[:at], stream[at:]) == ["a\nb", ":x"], (stream, at)


@pytest.mark.parametrize("block", [b"\n", b"\r", b"\r\n", b":\n", b": ping\n\n"])
def test_millions_of_lines_that_say_nothing_take_no_time(block: bytes) -> None:
    decoder, read = Decoder(), block * (65536 // len(block))
    began = time.process_time()
    for _ in range(256):
        assert decoder.feed(read) == []
    assert time.process_time() - began < 2.0  # line by line, three to seven seconds


@pytest.mark.parametrize(
    "block", [b"x" * 100_000, b"data: x\n" * 10_000, b"data\n" * 20_000, b"id: x\n" * 20_000]
)
def test_an_event_without_an_end_is_given_up(block: bytes) -> None:
    decoder = Decoder()
    decoder.feed(b"data: a")
    with pytest.raises(sse.TooLong, match="1,048,576 bytes, and no end"):
        [decoder.feed(block) for _ in range(20)]


@pytest.mark.parametrize("comment", [b": ping\n", b": ping\r\n"])
def test_comments_beside_an_event_are_no_part_of_it(comment: bytes) -> None:
    """A keep-alive that goes on for hours makes no event too long."""
    decoder = Decoder()
    for _ in range(40):
        decoder.feed(comment * 10_000)
    assert [event.data for event in decoder.feed(b"data: a\n\n")] == ["a"]


def test_events_that_end_are_never_too_long_together() -> None:
    decoder = Decoder()
    for _ in range(40):
        assert len(decoder.feed(b"event: x\ndata: " + b"y" * 40_000 + b"\n\n")) == 1


def test_events_without_an_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENTS_AT_MOST", 3)
    reads = [sse.Read(1.0, b"data: 1\n\n" * 3)]
    assert len(list(sse.timed_events(reads))) == 3
    with pytest.raises(sse.TooMany, match="more than 3 events"):
        list(sse.timed_events([*reads, *reads]))


class Chunks:
    """A response whose reads are given."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = list(chunks)

    def read1(self, amt: int, decode_content: bool) -> bytes:
        assert (amt, decode_content) == (65536, True)
        return self._chunks.pop(0) if self._chunks else b""


def read_all(*chunks: bytes) -> list[bytes]:
    return [read.data for read in read_stream(arrivals(Chunks(*chunks)), 0.0)]


ENDING = b"data: [DONE]\r\n\r\n"


@pytest.mark.parametrize("at", range(len(ENDING)))
def test_the_loop_ends_with_done_wherever_it_was_split(at: int) -> None:
    """The word or its blank line may come in the next read; what follows is not read."""
    chunks = [b"data: 1\n\n", ENDING[:at], ENDING[at:], b"data: more\n\n"]
    found = read_all(*(chunk for chunk in chunks if chunk))
    assert found[0] == chunks[0]
    ending = b"".join(found[1:])
    assert ending in (ENDING, ENDING[:-1])  # the last LF belongs to a CR that ended the line


def test_the_loop_does_not_end_with_done_inside_a_text() -> None:
    text = b'data: {"content":"data: [DONE]"}\n\n'
    assert read_all(text, b"data: [DONE]x\n\n", text, ENDING, text) == [
        text,
        b"data: [DONE]x\n\n",
        text,
        ENDING,
    ]
