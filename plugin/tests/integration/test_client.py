"""The client against servers that do exactly one thing: framing, buffering, closes, deadlines."""

from __future__ import annotations

import contextlib
import gc
import gzip
import socket
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted import (
    Connection,
    Request,
    end_events,
    event,
    role_event,
    serving,
    text_event,
    wait_until,
)

from pytest_llm_latency.errors import ServerError
from pytest_llm_latency.evidence.derive import derive
from pytest_llm_latency.evidence.recording import Recording
from pytest_llm_latency.sse import MESSAGES, StreamFailure, main, post
from pytest_llm_latency.verdicts import stream as relations
from pytest_llm_latency.wire import exchange
from pytest_llm_latency.wire.channel import Deadlines
from pytest_llm_latency.wire.client import Client
from pytest_llm_latency.wire.dialect import Dialect
from pytest_llm_latency.wire.exchange import Exchange

GAP_S = 0.05


def paced(connection: Connection, request: Request) -> None:
    """A role chunk at once, then ten pieces at a beat, close-delimited or chunked."""
    chunked = request.body["max_tokens"] == 1
    if chunked:
        connection.chunked_head()
    else:
        connection.head()
    send = connection.chunk if chunked else connection.send
    send(role_event())
    for number in range(10):
        time.sleep(GAP_S)
        send(text_event(f"{number} "))
    send(end_events(tokens=30))
    if chunked:
        connection.send("0\r\n\r\n")


@pytest.mark.parametrize("max_tokens", [1, 2], ids=["chunked", "close-delimited"])
def test_pieces_are_stamped_as_they_arrive_in_both_framings(max_tokens: int) -> None:
    """A reader that waits for full buffers would see all ten at the end."""
    with serving(paced) as server:
        timeline = Client(server.base_url).stream(MESSAGES, max_tokens)
    assert timeline.text == "0 1 2 3 4 5 6 7 8 9 "
    assert timeline.done
    assert timeline.tokens == 30  # the server's count, not the ten pieces
    times = [piece.t_ms for piece in timeline.pieces]
    span = times[-1] - times[0]
    assert span > 5 * GAP_S * 1000
    assert timeline.ttft_ms is not None
    assert timeline.ttft_ms < span / 2
    assert relations.ttft_below_total(timeline).outcome == "holds"


def test_a_burst_at_the_end_is_named() -> None:
    def withheld(connection: Connection, _: Request) -> None:
        connection.head()
        time.sleep(0.5)
        connection.send("".join(text_event("w ") for _ in range(30)) + "data: [DONE]\n\n")

    with serving(withheld) as server:
        timeline = Client(server.base_url).stream(MESSAGES)
    verdict = relations.ttft_below_total(timeline)
    assert verdict.cause is not None
    assert verdict.cause.code == "burst"


def test_the_close_is_real() -> None:
    """The server sees the end of the connection while the client's objects still live."""
    closes: list[str] = []

    def script(connection: Connection, _: Request) -> None:
        connection.chunked_head()
        connection.chunk(text_event("a"))
        closes.append(connection.wait_for_close())

    with serving(script) as server:
        client = Client(server.base_url)
        recording = client.record(MESSAGES, close_on_token=True)
        assert wait_until(lambda: bool(closes))
        assert recording.end.kind == "closed"
        assert derive(recording).text == "a"
        # in the silence before the first byte, and of headers, too
        for head in (True, False):

            def silent(connection: Connection, _: Request, head: bool = head) -> None:
                if head:
                    connection.chunked_head()
                closes.append(connection.wait_for_close())

            with serving(silent) as quiet:
                recording = Client(quiet.base_url).record(MESSAGES, close_at_ms=100.0)
                assert recording.end.kind == "closed"
                assert recording.end.t_ms >= 100.0
                count = len(closes)
                assert wait_until(lambda count=count: len(closes) >= count)
    assert "open" not in closes


@pytest.mark.parametrize(
    ("deadlines", "script", "words"),
    [
        (Deadlines(first_byte=0.2), lambda c, r: c.wait_for_close(), "first byte deadline: no answer in 0.2 s"),
        (Deadlines(gap=0.2), lambda c, r: (c.head(), c.send(text_event("a")), c.wait_for_close()),
         "gap deadline: nothing for 0.2 s"),
        (Deadlines(total=0.5, gap=5.0), lambda c, r: drip(c), "total deadline: not finished after 0.5 s"),
    ],
)  # fmt: skip
def test_deadlines_are_named(deadlines: Deadlines, script: object, words: str) -> None:
    with serving(script) as server:  # type: ignore[arg-type]
        recording = Client(server.base_url, deadlines=deadlines).record(MESSAGES)
    assert recording.end.kind == "deadline"
    assert recording.end.detail == words
    assert derive(recording).error == words


def drip(connection: Connection) -> None:
    connection.head()
    for _ in range(100):
        connection.send(":")
        time.sleep(0.05)


def test_an_endless_stream_is_ended_by_its_bytes() -> None:
    def endless(connection: Connection, _: Request) -> None:
        connection.head()
        while True:
            connection.send(text_event("x" * 1000))

    with serving(endless) as server:
        recording = Client(server.base_url, max_bytes=100_000).record(MESSAGES)
    assert recording.end.kind == "broken"
    assert "more than 100,000 bytes" in recording.end.detail
    assert len(recording.body) < 300_000


def test_reads_without_an_end_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def byte_after_byte(connection: Connection, _: Request) -> None:
        connection.head()
        while True:
            connection.send(":")
            time.sleep(0.005)

    monkeypatch.setattr(exchange, "MAX_READS", 20)
    with serving(byte_after_byte) as server:
        recording = Client(server.base_url).record(MESSAGES)
    assert (recording.end.kind, len(recording.reads)) == ("broken", 21)
    assert recording.end.detail == "it came in more than 20 reads: reading stopped"


def test_the_answers_of_a_step_are_bounded_together() -> None:
    """It keeps them all. Those of a user's own test are his."""

    def long(connection: Connection, _: Request) -> None:
        connection.head()
        connection.send(":" * 900 + "\n\n" + text_event("a") + end_events())

    with serving(long) as server:
        client = Client(server.base_url, max_bytes=2000)
        step = client.of_a_step()
        kinds = [step.record(MESSAGES).end.kind for _ in range(12)]
        last = step.speaking(Dialect("m")).record(MESSAGES)
        assert {client.record(MESSAGES).end.kind for _ in range(12)} == {"eof"}
        assert client.of_a_step().record(MESSAGES).end.kind == "eof"
    assert kinds[:4] == ["eof"] * 4
    assert kinds[-1] == "broken"
    assert last.end.detail == "the answers of this step have more than 8,000 bytes: reading stopped"


@pytest.mark.parametrize("encoding", ["", "Content-Encoding: gzip\r\n"])
def test_a_plain_answer_is_bounded(encoding: str) -> None:
    def endless(connection: Connection, _: Request) -> None:
        connection.send(f"HTTP/1.1 200 OK\r\n{encoding}\r\n")
        block = b" " * 1024 * 1024
        while True:
            connection.send(gzip.compress(block) if encoding else block)

    with serving(endless) as server, pytest.raises(ServerError) as error:
        Client(server.base_url).get("/props")
    words = "the answer has more than 4,194,304 bytes: reading stopped"
    assert str(error.value) == f"GET {server.base_url}/props: {words}"


@pytest.mark.parametrize(
    ("head", "block", "words"),
    [
        ("200 OK\r\n", b":" * 65536, "more than 16,777,216 bytes: reading stopped"),
        ("307 X\r\nLocation: /v2\r\n", b":" * 65536, "redirects to"),
        ("500 X\r\n", b"no memory " * 6000, "HTTP 500: no memory no memory"),
        ("500 X\r\nContent-Encoding: gzip\r\n", b"no gzip " * 8000, "HTTP 500: "),
        ("200 OK\r\nContent-Encoding: gzip\r\n", b"no gzip " * 8000, "the connection broke: "),
    ],
)
def test_the_copied_program_reads_no_more_than_it_needs(
    head: str, block: bytes, words: str
) -> None:
    """`sse.post`, which stands alone on requests."""

    def endless(connection: Connection, _: Request) -> None:
        connection.send(f"HTTP/1.1 {head}\r\n")
        while True:
            connection.send(block)

    with serving(endless) as server, pytest.raises(StreamFailure) as error:
        for _ in post(server.base_url, {}):
            pass
    assert words in str(error.value)


def test_the_copied_program_shows_no_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("LLM_API_KEY", "sk-of-my-own")

    def refuses(connection: Connection, request: Request) -> None:
        words = f"no such key: {request.headers['authorization']}"
        connection.reply({"error": {"message": words}}, "401 Unauthorized")

    with serving(refuses) as server:
        assert main(["--url", server.base_url, "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().err
    assert "no such key: Bearer ***" in shown
    assert "sk-of-my-own" not in shown


def test_a_broken_connection_is_an_error_with_what_came_before() -> None:
    def broken(connection: Connection, _: Request) -> None:
        connection.chunked_head()
        connection.chunk(text_event("a"))
        connection.send("ff\r\ndata: half")

    with serving(broken) as server:
        recording = Client(server.base_url).record(MESSAGES)
    timeline = derive(recording)
    assert timeline.text == "a"
    assert recording.end.kind == "broken"
    assert (timeline.error or "").startswith("the connection broke: ")


def test_a_cut_off_body_without_done_is_cut_short() -> None:
    def cut(connection: Connection, _: Request) -> None:
        connection.head()
        connection.send(text_event("a"))

    with serving(cut) as server:
        timeline = Client(server.base_url).stream(MESSAGES)
    assert timeline.cut_short
    assert relations.ttft_below_total(timeline).cause.code == "cut-short"  # type: ignore[union-attr]


def test_keep_alive_comments_error_events_and_no_space() -> None:
    def script(connection: Connection, _: Request) -> None:
        connection.head()
        connection.send(": ping - 12:00\r\n\r\n:\n\n")
        connection.send('data:{"choices":[{"delta":{"content":"a"}}]}\r\n\r')
        time.sleep(0.02)
        connection.send("\n" + event({"error": {"message": "out of memory"}}) + "data: [DONE]\n\n")

    with serving(script) as server:
        timeline = Client(server.base_url).stream(MESSAGES)
    assert timeline.text == "a"
    assert timeline.error == "the server reports inside the stream: out of memory"


def test_a_redirect_does_not_carry_the_key_away() -> None:
    def elsewhere(connection: Connection, _: Request) -> None:
        connection.reply({"data": []})

    with serving(elsewhere) as other:

        def redirect(connection: Connection, _: Request) -> None:
            connection.send(
                f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {other.base_url}/x\r\n"
                "Transfer-Encoding: chunked\r\n\r\n5\r\nthere\r\n0\r\n\r\n"
            )

        with serving(redirect) as server:
            client = Client(server.base_url, api_key="hunter2")
            recording = client.record(MESSAGES)
            assert client.get("/v1/models").status == 307
    assert recording.status == 307
    assert ("Location", f"{other.base_url}/x") in recording.response_headers
    assert other.requests == []
    assert server.requests[0].headers["authorization"] == "Bearer hunter2"
    assert "hunter2" not in repr(recording) + repr(client.__dict__)


ANSWER = "".join([role_event(), text_event("one "), text_event("two"), end_events()]).encode()


def whole_in_one_write(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + ANSWER)


def by_length(connection: Connection) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(ANSWER)}\r\n\r\n"
    connection.send(head.encode() + ANSWER[:50])
    connection.send(ANSWER[50:] + b"and nothing of this")


def zipped(connection: Connection) -> None:
    data = gzip.compress(ANSWER)
    connection.send("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n")
    connection.send("Transfer-Encoding: chunked\r\n\r\n")
    for start in range(0, len(data), 7):
        part = data[start : start + 7]
        connection.send(f"{len(part):016x};x=y\r\n".encode() + part + b"\r\n")
    connection.send(b"0\r\n\r\n")


def byte_by_byte(connection: Connection) -> None:
    connection.chunked_head()
    for byte in f"{len(ANSWER):x}\r\n".encode() + ANSWER + b"\r\n0\r\n\r\n":
        connection.send(bytes([byte]))


@pytest.mark.parametrize(
    "write", [whole_in_one_write, by_length, zipped, byte_by_byte], ids=lambda write: write.__name__
)
def test_every_framing_gives_the_same_bytes(write: Callable[[Connection], None]) -> None:
    with serving(lambda connection, _: write(connection)) as server:
        recording = Client(server.base_url).record(MESSAGES)
    assert recording.body == ANSWER
    assert recording.end.kind == "eof"
    times = [read.t_ms for read in recording.reads]
    assert times == sorted(times)
    assert recording.headers_ms is not None
    # What came with the head was there when the head was.
    assert times[0] <= recording.headers_ms or write is not whole_in_one_write


def early_hints(connection: Connection) -> None:
    connection.send("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
    connection.send("HTTP/1.1 102 Processing\r\n\r\n")
    whole_in_one_write(connection)


def test_informational_answers_are_not_the_answer() -> None:
    with serving(lambda connection, _: early_hints(connection)) as server:
        recording = Client(server.base_url).record(MESSAGES)
    assert (recording.status, recording.body) == (200, ANSWER)


@pytest.mark.parametrize("status", [100, 102, 103])
def test_interim_answers_without_an_end_are_ended(status: int) -> None:
    def interim(connection: Connection, _: Request) -> None:
        for _ in range(100):
            connection.send(f"HTTP/1.1 {status} X\r\n\r\n")
        connection.reply({})

    with serving(interim) as server:
        client = Client(server.base_url)
        words = "more than 20 interim answers (1xx) came"
        assert client.record(MESSAGES).end.detail == f"the answer cannot be read: {words}"
        with pytest.raises(ServerError) as error:
            client.get("/props")
    assert str(error.value) == f"GET {server.base_url}/props: {words}"


def test_of_a_redirect_nothing_but_the_head_is_read() -> None:
    def endless(connection: Connection, _: Request) -> None:
        connection.send("HTTP/1.1 307 X\r\nLocation: /v2/chat/completions\r\n\r\n")
        while True:
            connection.send(b"y" * 65536)

    with serving(endless) as server:
        recording = Client(server.base_url).record(MESSAGES)
        reply = Client(server.base_url).get("/health")
    assert (recording.status, recording.body, recording.end.kind) == (307, b"", "eof")
    assert "redirects to /v2/chat/completions;" in (derive(recording).error or "")
    assert (reply.status, reply.body, reply.location) == (307, b"", "/v2/chat/completions")


@pytest.mark.parametrize("location", ["http://[::bad", "\xff\xfe", "http://", ""])
def test_a_redirect_to_nowhere_raises_nothing(location: str) -> None:
    head = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    with serving(lambda connection, _: connection.send(head.encode("latin-1"))) as server:
        client = Client(server.base_url)
        recording = client.record(MESSAGES)
        with contextlib.suppress(ServerError):
            client.get("/health")
    assert recording.status == 302 or recording.end.kind == "broken"


def test_a_negative_chunk_in_a_plain_answer_is_a_server_error() -> None:
    chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n"
    with (
        serving(lambda connection, _: connection.send(chunked)) as server,
        pytest.raises(ServerError, match="/health"),
    ):
        Client(server.base_url).get("/health")


@pytest.mark.parametrize("close_at_ms", [300.0, 0.0001, 0.0, -5.0])
def test_the_moment_to_close_is_kept_while_a_head_drips(close_at_ms: float) -> None:
    """Every byte restarts a socket's timeout; the moment to close does not move."""

    def drip(connection: Connection, _: Request) -> None:
        connection.send("HTTP/1.1 200 OK\r\nX: ")
        while True:
            time.sleep(0.02)
            connection.send("x")

    with serving(drip) as server:
        recording = Client(server.base_url).record(MESSAGES, close_at_ms=close_at_ms)
    assert recording.end.kind == "closed"
    assert recording.end.t_ms < 5000  # a dripped head of 65,536 bytes takes 22 minutes


@pytest.mark.parametrize(
    "cut",
    [
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-st",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(ANSWER)[:60],
        "HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\ndata: x",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\ndata: x",
    ],
)
def test_a_body_cut_off_is_told(cut: str | bytes) -> None:
    with serving(lambda connection, _: connection.send(cut)) as server:
        recording = Client(server.base_url).record(MESSAGES)
    assert recording.end.kind == "broken"
    assert recording.end.detail.startswith("the connection broke: ")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("Content-Encoding: br\r\n\r\nabc", "it has the content encoding 'br', which nobody asked for"),
        ("Content-Encoding: gzip, zstd\r\n\r\nabc", "it has the content encoding 'zstd', which nobody asked for"),
        ("Content-Encoding: gzip\r\n\r\ndata: x\n\n", "the content encoding is broken: Error -3"),
        ("Content-Encoding: deflate\r\n\r\ndata: x\n\n", "the content encoding is broken: Error -3"),
        ("Transfer-Encoding: chunked\r\n\r\ndata: x\n\n", "no chunk's size: b'data: x'"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(answer: str, words: str) -> None:
    """The connection is well; the bytes make no sense."""
    with serving(lambda connection, _: connection.send(f"HTTP/1.1 200 OK\r\n{answer}")) as server:
        recording = Client(server.base_url).record(MESSAGES)
    assert recording.end.kind == "broken"
    assert recording.end.detail.startswith(f"the answer cannot be read: {words}")


@pytest.mark.parametrize("encoding", ["none", "chunked", "null", "utf-8; q=1", "identity", "UTF-8", "", "identity, none", "gzip", "X-GZIP", "identity, gzip", "deflate", "raw deflate", "gzip, gzip"])  # fmt: skip
def test_encodings_as_servers_name_them(encoding: str) -> None:
    body = ANSWER
    for name in encoding.lower().split(", "):
        if name.endswith("gzip"):
            body = gzip.compress(body)
        elif name == "deflate":
            body = zlib.compress(body)
        elif name == "raw deflate":
            body = zlib.compress(body, wbits=-15)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding.removeprefix('raw ')}\r\n\r\n".encode()
    with serving(lambda connection, _: connection.send(head + body)) as server:
        recording = Client(server.base_url).record(MESSAGES)
    assert recording.end.detail == ""
    assert recording.body == ANSWER


@pytest.mark.parametrize("chunked", [True, False])
def test_a_server_that_dies_at_any_byte(chunked: bool) -> None:
    """Each prefix of an answer: never an exception, never taken for whole before it is."""
    events = role_event() + text_event("a ") + text_event("b") + end_events()
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if chunked:
        parts = [events[n : n + 90] for n in range(0, len(events), 90)]
        body = "".join(f"{len(part):x}\r\n{part}\r\n" for part in parts) + "0\r\n\r\n"
        answer = f"{head}Transfer-Encoding: chunked\r\n\r\n{body}"
    else:
        answer = f"{head}\r\n{events}"
    whole_from = answer.index('"finish_reason": "stop"')
    cuts = iter(range(0, len(answer), 3))

    def script(connection: Connection, _: Request) -> None:
        connection.send(answer[: next(cuts)])

    with serving(script) as server:
        for cut in range(0, len(answer), 3):
            timeline = derive(Client(server.base_url).record(MESSAGES))
            told = timeline.error is not None or timeline.cut_short
            assert told or cut > whole_from, cut
            assert timeline.text in ("", "a ", "a b")


def test_many_chunks_in_one_write_are_one_arrival() -> None:
    """However many events they hold: what became readable together is stamped together."""

    def script(connection: Connection, _: Request) -> None:
        connection.chunked_head()
        events = [text_event(f"{number} ") for number in range(30)] + [end_events()]
        time.sleep(GAP_S)
        connection.send("".join(f"{len(text):x}\r\n{text}\r\n" for text in events) + "0\r\n\r\n")

    with serving(script) as server:
        timeline = Client(server.base_url).stream(MESSAGES)
    assert len(timeline.pieces) == 30
    assert len({piece.t_ms for piece in timeline.pieces}) == 1
    assert len(timeline.arrivals) == 1


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_not_collected_meanwhile_and_as_before_afterwards(enabled: bool) -> None:
    during: list[bool] = []
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with serving(lambda connection, _: whole_in_one_write(connection)) as server:
            exchange = Exchange(Client(server.base_url), "own/1")
            for _ in exchange.send({"messages": MESSAGES}):
                during.append(gc.isenabled())
            assert gc.isenabled() is enabled
            Client("http://127.0.0.1:9").record(MESSAGES)  # nobody listens
            assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert set(during) == {False}


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="only Linux tells")
def test_waiting_for_a_core_is_told_with_the_recording() -> None:
    with serving(lambda connection, _: whole_in_one_write(connection)) as server:
        recording = Client(server.base_url).record(MESSAGES)
    assert recording.cpu_wait_ms is not None
    assert 0 <= recording.cpu_wait_ms < recording.end.t_ms + 1000


def test_through_a_socks_proxy_reading_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections are of another kind; they stamp, decompress and are bounded, too."""
    pytest.importorskip("socks")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            for _ in range(2):
                accepted, _ = listener.accept()
                accepted.recv(262)
                accepted.sendall(b"\x05\x00")  # no authentication
                accepted.recv(262)
                accepted.sendall(b"\x05\x00\x00\x01" + bytes(6))  # connected
                accepted.recv(65536)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
                accepted.sendall(gzip.compress((text_event("a ") + end_events()).encode()))
                accepted.close()

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setenv("ALL_PROXY", f"socks5h://127.0.0.1:{listener.getsockname()[1]}")
    with listener:
        client = Client("http://model.example", deadlines=Deadlines(total=5.0))
        recording = client.record(MESSAGES)
        assert (recording.end.kind, derive(recording).text) == ("eof", "a ")
        assert recording.connect_ms is not None
        assert b"[DONE]" in client.get("/props").body


def test_loopback_ignores_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(paced) as server:
        assert Client(server.base_url).stream(MESSAGES, 1).done


def test_a_plain_question_has_a_deadline() -> None:
    with (
        serving(lambda c, r: drip(c)) as server,
        pytest.raises(ServerError, match=r"no answer in 0\.3 s"),
    ):  # type: ignore[arg-type]
        Client(server.base_url).get("/health", timeout_s=0.3)


def test_every_recording_is_kept_also_a_failed_one() -> None:
    kept: list[Recording] = []
    Client("http://127.0.0.1:9", keep=kept.append).record(MESSAGES)
    assert kept[0].status is None
    assert kept[0].end.detail == "cannot connect: [Errno 111] Connection refused"
    assert derive(kept[0]).error
