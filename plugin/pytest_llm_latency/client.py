"""Talks HTTP to one server: plain questions (GET, JSON) and streamed answers into recordings.

It stamps, enforces deadlines and closes connections; it does not interpret what it reads.
Every request has a connection of its own, so that each is measured alike and a close is real.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests
import requests.adapters
import urllib3
import urllib3.connection
import urllib3.connectionpool

from . import sse
from .errors import ConfigError, ServerError
from .recording import End, EndKind, Recording, Reply, Request
from .timeline import Timeline, derive

MAX_REPLY_BYTES = 4 * 1024 * 1024
CHAT_PATH = "/v1/chat/completions"

if not hasattr(urllib3.HTTPResponse, "read1"):
    raise ConfigError(
        "this urllib3 cannot read a stream as it arrives; upgrade it: pip install 'urllib3>=2.2'"
    )


@dataclass(frozen=True)
class Deadlines:
    """Seconds. `first_byte`: request sent to the first byte of the answer; `gap`: between two
    reads of the body; `total`: from before the connection to the end; `query`: all of a plain
    question such as GET /health."""

    connect: float = 10.0
    first_byte: float = 300.0
    gap: float = 300.0
    total: float = 600.0
    query: float = 15.0


class _Stamps:
    """What a connection notes of itself while it opens."""

    socket: Any = None
    connect_ms: float | None = None
    started: float = 0.0

    def opened(self, begun: float, socket: Any) -> None:
        self.socket = socket
        self.started = time.perf_counter()
        self.connect_ms = round((self.started - begun) * 1000.0, 3)


class _Connection(urllib3.connection.HTTPConnection):
    """Starts the clock when it is open: the request's first byte is sent next."""

    stamps: _Stamps

    def connect(self) -> None:
        begun = time.perf_counter()
        super().connect()
        self.stamps.opened(begun, self.sock)


class _TLSConnection(urllib3.connection.HTTPSConnection):
    """The same after the TLS handshake."""

    stamps: _Stamps

    def connect(self) -> None:
        begun = time.perf_counter()
        super().connect()
        self.stamps.opened(begun, self.sock)


class _Adapter(requests.adapters.HTTPAdapter):
    """An adapter without retries whose connections write into `stamps`."""

    def __init__(self, stamps: _Stamps) -> None:
        self._pool_classes = {
            "http": _pool_class(urllib3.HTTPConnectionPool, _Connection, stamps),
            "https": _pool_class(urllib3.HTTPSConnectionPool, _TLSConnection, stamps),
        }
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = self._pool_classes

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> urllib3.ProxyManager:
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = self._pool_classes
        return manager  # type: ignore[no-any-return]


def _pool_class(pool: type[Any], connection: type[Any], stamps: _Stamps) -> type[Any]:
    bound = type(connection.__name__, (connection,), {"stamps": stamps})
    return type(pool.__name__, (pool,), {"ConnectionCls": bound})


@dataclass
class Exchange:
    """One streamed request: `send` yields its reads, `recording` is there afterwards.

    `close_at_ms` closes the connection at that moment, whatever the stream is doing;
    `close_on_piece` right after the read with the first piece of text. `on_start` is called
    just before the request goes out.
    """

    client: Client
    label: str
    close_at_ms: float | None = None
    close_on_piece: bool = False
    recording: Recording | None = None
    closed_at: float = 0.0  # perf_counter, after the connection was closed

    def send(self, body: Mapping[str, Any]) -> Iterator[sse.Read]:
        """POST `body`; yield every read. Never raises for what the server does: see `end`."""
        client = self.client
        deadlines = client.deadlines
        full_body = {**body, **({"model": client.model} if client.model else {})}
        stamps = _Stamps()
        session, request, settings = client.prepare("POST", CHAT_PATH, full_body, stamps)
        reads: list[sse.Read] = []
        end: End | None = None
        response: requests.Response | None = None
        headers_ms: float | None = None
        began = time.perf_counter()
        stamps.started = began
        watchdog = _Watchdog(deadlines.total, stamps)
        try:
            first_wait = deadlines.first_byte
            if self.close_at_ms is not None:
                first_wait = min(first_wait, self.close_at_ms / 1000.0)
            response = session.send(request, timeout=(deadlines.connect, first_wait), **settings)
            headers_ms = _since_ms(stamps.started)
            stream = sse.read_stream(response.raw, stamps.started)
            piece_seen = _PieceWatch() if self.close_on_piece else None
            size = 0
            while end is None:
                wait_s = deadlines.gap
                if self.close_at_ms is not None:
                    wait_s = min(wait_s, self.close_at_ms / 1000.0 - _since_s(stamps.started))
                if wait_s <= 0:
                    break
                if stamps.socket.fileno() >= 0:  # a body that is read whole closes it
                    stamps.socket.settimeout(wait_s)
                read = next(stream, None)
                if read is None:
                    break
                reads.append(read)
                size += len(read.data)
                yield read
                if size > client.max_bytes:
                    end = self._end(
                        "broken", stamps, f"more than {client.max_bytes:,} bytes: reading stopped"
                    )
                elif piece_seen is not None and piece_seen.feed(read.data):
                    end = self._end("closed", stamps)
            if end is None:
                end = self._natural_end(reads, stamps, watchdog)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            end = self._failure(error, stamps, watchdog, response is not None)
        finally:
            watchdog.cancel()
            if response is not None:
                response.close()
            session.close()
            _close_for_real(stamps)
            self.closed_at = time.perf_counter()
            self.recording = Recording(
                label=self.label,
                request=Request("POST", CHAT_PATH, client.shown_headers(request), full_body),
                status=response.status_code if response is not None else None,
                response_headers=tuple(response.headers.items()) if response is not None else (),
                connect_ms=stamps.connect_ms,
                headers_ms=headers_ms,
                reads=tuple(reads),
                end=end or self._end("broken", stamps, "interrupted"),
            )
            client.keep(self.recording)

    def run(self, body: Mapping[str, Any]) -> Recording:
        """Send and read to the end; return the recording."""
        for _ in self.send(body):
            pass
        assert self.recording is not None
        return self.recording

    def _end(self, kind: EndKind, stamps: _Stamps, detail: str = "") -> End:
        return End(kind, _since_ms(stamps.started), detail)

    def _natural_end(self, reads: Sequence[sse.Read], stamps: _Stamps, watchdog: _Watchdog) -> End:
        if watchdog.fired:
            return self._total_deadline(stamps)
        done = any(event.data == sse.DONE for _, event in sse.timed_events(reads))
        if not done and self._close_is_due(stamps):
            return self._end("closed", stamps)
        return self._end("done" if done else "eof", stamps)

    def _total_deadline(self, stamps: _Stamps) -> End:
        total_s = self.client.deadlines.total
        return self._end("deadline", stamps, f"total deadline: not finished after {total_s:g} s")

    def _close_is_due(self, stamps: _Stamps) -> bool:
        return self.close_at_ms is not None and _since_ms(stamps.started) >= self.close_at_ms

    def _failure(
        self, error: Exception, stamps: _Stamps, watchdog: _Watchdog, answered: bool
    ) -> End:
        deadlines = self.client.deadlines
        if watchdog.fired:
            return self._total_deadline(stamps)
        if _is_timeout(error):
            if stamps.socket is None:
                return self._end(
                    "deadline",
                    stamps,
                    f"connect deadline: no connection in {deadlines.connect:g} s",
                )
            if self._close_is_due(stamps):
                return self._end("closed", stamps)
            words = (
                f"gap deadline: nothing for {deadlines.gap:g} s"
                if answered
                else f"first byte deadline: no answer in {deadlines.first_byte:g} s"
            )
            return self._end("deadline", stamps, words)
        if stamps.socket is None:
            return self._end("broken", stamps, f"cannot connect: {root_words(error)}")
        return self._end("broken", stamps, f"the connection broke: {root_words(error)}")


def _since_s(started: float) -> float:
    return time.perf_counter() - started


def _since_ms(started: float) -> float:
    return round(_since_s(started) * 1000.0, 3)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return error


def _is_timeout(error: BaseException) -> bool:
    return isinstance(_root(error), (TimeoutError, urllib3.exceptions.ReadTimeoutError))


def root_words(error: BaseException) -> str:
    """The innermost cause of a network error, in one line."""
    root = _root(error)
    return (str(root) or type(root).__name__).replace("\n", " ")[:200]


def _close_for_real(stamps: _Stamps) -> None:
    """Close the TCP connection even where a library still holds the socket (a half close)."""
    if stamps.socket is not None:
        stamps.socket.close()


class _PieceWatch:
    """Says when the first piece of text has arrived."""

    def __init__(self) -> None:
        self._decoder = sse.Decoder()

    def feed(self, data: bytes) -> bool:
        for event in self._decoder.feed(data):
            try:
                if event.data != sse.DONE and sse.content(sse.payload(event)):
                    return True
            except sse.StreamFailure:
                return False
        return False


class _Watchdog:
    """Breaks a connection at the total deadline: a socket's own timeout is only a gap, and a
    server that drips bytes never meets it."""

    def __init__(self, seconds: float, stamps: _Stamps) -> None:
        self.fired = False
        self._stamps = stamps
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def _fire(self) -> None:
        self.fired = True
        socket = self._stamps.socket
        if socket is not None:
            with contextlib.suppress(OSError):  # it is gone already
                socket.shutdown(2)

    def cancel(self) -> None:
        self._timer.cancel()


class Client:
    """A client of the server at `base_url`, which is an origin without a path (or with one
    that /v1 and /health follow). `keep` gets every recording of a streamed request."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        deadlines: Deadlines | None = None,
        max_bytes: int = 256 * 1024 * 1024,
        keep: Callable[[Recording], None] | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.model = model
        self.deadlines = deadlines or Deadlines()
        self.max_bytes = max_bytes
        self._api_key = _Secret(api_key)
        self._keep = keep
        self._numbers = itertools.count(1)

    def keep(self, recording: Recording) -> None:
        """Hand a finished recording to whoever collects the evidence."""
        if self._keep is not None:
            self._keep(recording)

    def prepare(
        self, method: str, path: str, body: Mapping[str, Any] | None, stamps: _Stamps
    ) -> tuple[requests.Session, requests.PreparedRequest, dict[str, Any]]:
        """A session and a request ready to be sent: all work that need not be timed."""
        session = requests.Session()
        # netrc would put credentials of its own beside the key that was asked for.
        session.auth = _no_auth
        session.trust_env = not _is_loopback(self.base_url)
        adapter = _Adapter(stamps)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        headers = {"Authorization": f"Bearer {self._api_key.value}"} if self._api_key else {}
        request = session.prepare_request(
            requests.Request(method, self.base_url + path, headers=headers, json=body)
        )
        merged = session.merge_environment_settings(request.url, {}, None, None, None)
        settings: dict[str, Any] = {
            "allow_redirects": False,  # the key must not follow a redirect
            "stream": True,
            "proxies": merged["proxies"],
            "verify": merged["verify"],
            "cert": merged["cert"],
        }
        return session, request, settings

    def shown_headers(self, request: requests.PreparedRequest) -> dict[str, str]:
        """The request's headers as evidence: without credentials."""
        hidden = {"authorization", "proxy-authorization", "cookie"}
        return {
            name: value for name, value in request.headers.items() if name.lower() not in hidden
        }

    def get(self, path: str, *, timeout_s: float | None = None) -> Reply:
        """GET `path`. Raises ServerError where no answer comes."""
        return self._query("GET", path, None, timeout_s)

    def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """POST JSON to `path`, read the whole answer. Raises ServerError where none comes."""
        return self._query("POST", path, body, None)

    def fetch(self, path: str, label: str) -> Recording:
        """GET `path` as evidence: a recording with the answer in one read. Raises ServerError."""
        reply = self.get(path)
        recording = Recording(
            label=label,
            request=Request("GET", path, {}, {}),
            status=reply.status,
            response_headers=(),
            connect_ms=None,
            headers_ms=None,
            reads=(sse.Read(reply.took_ms, reply.body),),
            end=End("eof", reply.took_ms),
        )
        self.keep(recording)
        return recording

    def _query(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None
    ) -> Reply:
        stamps = _Stamps()
        session, request, settings = self.prepare(method, path, body, stamps)
        timeout_s = timeout_s or self.deadlines.query
        watchdog = _Watchdog(timeout_s, stamps)
        started = time.perf_counter()
        try:
            response = session.send(request, timeout=timeout_s, **settings)
            content = response.raw.read(MAX_REPLY_BYTES, decode_content=True)
            if watchdog.fired:
                raise TimeoutError
            return Reply(response.status_code, content, _since_ms(started))
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            words = (
                f"no answer in {timeout_s:g} s"
                if watchdog.fired or _is_timeout(error)
                else root_words(error)
            )
            raise ServerError(f"{method} {self.base_url}{path}: {words}") from None
        finally:
            watchdog.cancel()
            session.close()
            _close_for_real(stamps)

    def record(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int = 64,
        cache_prompt: bool = True,
        *,
        label: str | None = None,
        close_at_ms: float | None = None,
        close_on_piece: bool = False,
    ) -> Recording:
        """Ask, read the stream to its end (or close it, see `Exchange`), return the recording.

        `label` ("step/leg") names its evidence file; left out, the requests are numbered.
        """
        label = label or f"own/{next(self._numbers)}"
        body = sse.request_body(messages, max_tokens, cache_prompt)
        return Exchange(self, label, close_at_ms, close_on_piece).run(body)

    def stream(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int = 64,
        cache_prompt: bool = True,
        **options: Any,
    ) -> Timeline:
        """`record`, derived: pieces, `ttft_ms`, `total_ms`, counts. Options as in `record`."""
        return derive(self.record(messages, max_tokens, cache_prompt, **options))


class _Secret:
    """Keeps the key out of every repr, and so out of tracebacks and --showlocals."""

    def __init__(self, value: str | None) -> None:
        self.value = value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        return "<secret>" if self.value else "<none>"


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
