"""Talks HTTP to one server: plain questions (GET, JSON) and streamed answers into recordings.

It stamps, enforces deadlines and closes connections; what it reads it interprets only so far
as to see a first piece of text, where it is told to close then.
Every request has a connection of its own, so that each is measured alike and a close is real.
"""

from __future__ import annotations

import collections
import copy
import functools
import gc
import http.client
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3

from . import limits, sse
from .arrivals import OversizedBody, UnreadableBody, whole
from .connections import Adapter, Stamps, Watchdog
from .dialect import Dialect
from .errors import ConfigError, OversizedAnswer, ServerError
from .masking import Mask
from .recording import End, EndKind, Recording, Reply, Request
from .secrecy import (
    STARS,
    Hidden,
    is_secret_name,
    secrets_in,
    secrets_of_headers,
    secrets_of_key,
)
from .timeline import Timeline, TokenWatch, derive, is_answered, is_success

# What no honest server meets, and what keeps this process small, whatever a server sends: bytes of
# the answer to a plain question (of a streamed one: --llm-max-bytes), and returns of recv.
MAX_REPLY_BYTES = 4 * 1024 * 1024
MAX_READS = 100_000
# All answers of a step are kept until it is judged: of the longest ones, so many.
LONGEST_ANSWERS_KEPT = 4
# ValueError: http.client raises it bare for a head that makes no sense.
NETWORK_ERRORS = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,
)
CLOSE_GRACE_S = 0.05

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


class Exchange:
    """One streamed request: `send` yields its reads as they came, which are for no file and no
    terminal; `recording` is there afterwards, its secrets starred.

    `close_at_ms` closes the connection at that moment, whatever the stream is doing;
    `close_on_token` right after the read with the first token (of text, or of reasoning).
    `on_token` is called once, after that read. `waits`: where a limit of the server refuses it,
    it is sent again (see `send`). `closed_at` is the `sse.now()` of the close.
    """

    def __init__(
        self,
        client: Client,
        label: str,
        close_at_ms: float | None = None,
        close_on_token: bool = False,
        on_token: Callable[[], None] | None = None,
        waits: bool = True,
    ) -> None:
        self._waits = waits
        self._waited = 0
        self._pause_s: float | None = None
        self.recording: Recording | None = None
        self._close_on_token = close_on_token
        self._on_token = on_token
        self.closed_at = 0.0
        self._client = client
        self._label = client.prefix + label
        self._close_at_ms = close_at_ms
        self._token_seen = TokenWatch() if close_on_token or on_token else None
        self._stamps = Stamps()
        self._limit = client.max_bytes

    @property
    def started_at(self) -> float:
        """The `sse.now()` from which the recording's times count."""
        return self._stamps.started

    def run(self, body: Mapping[str, Any]) -> Recording:
        """Send and read to the end; return the recording."""
        collections.deque(self.send(body), maxlen=0)
        assert self.recording is not None
        return self.recording

    def send(self, body: Mapping[str, Any]) -> Iterator[sse.Read]:
        """POST `body`; yield every read. Never raises for what the server does: see `end`. Where a
        limit refuses it, wait as the server wants and ask again, with a clock of its own: what was
        refused is no evidence."""
        self._client.spend(self._client.dialect.body(body))
        yield from self._send_once(body)
        while self._pause_s is not None:
            self._client.wait(self._label, self._pause_s)
            self._waited += 1
            self._stamps = Stamps()
            if self._token_seen is not None:
                self._token_seen = TokenWatch()
            yield from self._send_once(body)
        if self.recording is not None and not is_answered(self.recording):
            yield from self.recording.reads  # held until it was clear that it counts

    def _send_once(self, body: Mapping[str, Any]) -> Iterator[sse.Read]:
        client, stamps = self._client, self._stamps
        full_body = client.dialect.body(body)
        self._limit = client.room()
        path = client.api_path + sse.CHAT
        adapter, request, settings = _prepared(client, "POST", path, full_body, stamps)
        cpu_wait_before_ms = _cpu_wait_ms()
        clocks_before = _clocks_s()
        reads: list[sse.Read] = []
        read: sse.Read | None = None
        end: End | None = None
        response: requests.Response | None = None
        headers_ms: float | None = None
        ambient = sys.exc_info()[1]
        watchdog = Watchdog(client.deadlines.total, stamps)
        if self._close_at_ms is not None:
            # Beside the wait for bytes: a head that drips in restarts that wait.
            stamps.close_after_s = self._close_at_ms / 1000.0 + CLOSE_GRACE_S
        collects = gc.isenabled()
        gc.disable()  # a collection would delay a stamp
        stamps.started = sse.now()
        try:
            first_wait_s = self._wait_s(client.deadlines.first_byte)
            connect_s = min(client.deadlines.connect, client.deadlines.total)
            response = adapter.send(request, timeout=(connect_s, first_wait_s), **settings)
            headers_ms = _since_ms(stamps.started)
            for read in self._reads(response.status_code):
                reads.append(read)
                if is_success(response.status_code):
                    yield read
            end = self._after_reads(reads, watchdog)
        except NETWORK_ERRORS as error:
            end = self._failure(_root(error, ambient), watchdog, response is not None)
        except BaseException as error:  # noqa: BLE001 (it goes on)
            raise _without_frames(error) from None
        finally:
            if collects:
                gc.enable()
            watchdog.cancel()
            if response is not None:
                response.close()
            adapter.close()
            stamps.close()
            self.closed_at = sse.now()
            cpu_wait_ms = _cpu_wait_ms()
            if cpu_wait_ms is not None and cpu_wait_before_ms is not None:
                cpu_wait_ms = round(cpu_wait_ms - cpu_wait_before_ms, 3)
            # Only now: no stamp waits for it, and a secret may be split over reads.
            masked, places = _masked(client.mask, reads)
            self.recording = Recording(
                label=self._label,
                request=Request(
                    "POST", path, client.shown(request.headers), client.mask.value(full_body)
                ),
                status=response.status_code if response is not None else None,
                response_headers=tuple(client.shown(response.headers).items())
                if response is not None
                else (),
                connect_ms=stamps.connect_ms,
                headers_ms=headers_ms,
                reads=masked,
                end=end or self._end("broken", "interrupted"),
                jitter_ms=client.jitter_ms,
                cpu_wait_ms=cpu_wait_ms,
                clock_off_ms=_clock_off_ms(clocks_before, _clocks_s()),
                masked=places,
            )
            read = None  # no local of this frame shows what is starred
            reads.clear()
            self._pause_s = limits.pause_s(self.recording, self._waited) if self._waits else None
            if self._pause_s is None:
                client.keep(self.recording)

    def _reads(self, status: int) -> Iterator[sse.Read]:
        """The reads up to the end of the stream, the moment to close, or a limit. A refusal has no
        token, whatever its body looks like."""
        assert self._stamps.response is not None
        stream = sse.read_stream(self._stamps.response.arrivals(), self._stamps.started)
        size = count = 0
        gap_s = self._client.deadlines.gap
        self._stamps.set_timeout(gap_s)
        while size <= self._limit and count <= MAX_READS:
            if self._close_at_ms is not None:
                if self._close_is_due():
                    return
                self._stamps.set_timeout(self._wait_s(gap_s))
            read = next(stream, None)
            if read is None:
                return
            size += len(read.data)
            count += 1
            yield read
            if self._token_seen is None or self._token_seen.seen or not is_success(status):
                continue
            if self._token_seen.feed(read.data):
                if self._on_token is not None:
                    self._on_token()
                if self._close_on_token:
                    return

    def _wait_s(self, deadline_s: float) -> float:
        """Seconds to wait for the next bytes: to the deadline, or to the moment to close."""
        if self._close_at_ms is None:
            return deadline_s
        left_s = self._close_at_ms / 1000.0 - _since_s(self._stamps.started)
        return min(deadline_s, max(left_s, 0.001))

    def _close_is_due(self) -> bool:
        return (
            self._close_at_ms is not None and _since_ms(self._stamps.started) >= self._close_at_ms
        )

    def _end(self, kind: EndKind, detail: str = "") -> End:
        return End(kind, _since_ms(self._stamps.started), detail)

    def _after_reads(self, reads: Sequence[sse.Read], watchdog: Watchdog) -> End:
        limit = self._limit
        if watchdog.fired:
            return self._total_deadline()
        if sum(len(read.data) for read in reads) > limit:
            if limit < self._client.max_bytes:
                limit = LONGEST_ANSWERS_KEPT * self._client.max_bytes
                words = f"the answers of this step have more than {limit:,} bytes: reading stopped"
                return self._end("broken", words)
            return self._end("broken", f"more than {limit:,} bytes: reading stopped")
        if len(reads) > MAX_READS:
            return self._end("broken", f"it came in more than {MAX_READS:,} reads: reading stopped")
        seen = self._token_seen is not None and self._token_seen.seen
        closed = (seen and self._close_on_token) or self._close_is_due()
        return self._end("closed" if closed else "eof")

    def _total_deadline(self) -> End:
        total_s = self._client.deadlines.total
        return self._end("deadline", f"total deadline: not finished after {total_s:g} s")

    def _failure(self, root: BaseException, watchdog: Watchdog, answered: bool) -> End:
        deadlines, connected = self._client.deadlines, self._stamps.socket is not None
        if watchdog.fired:
            return self._total_deadline()
        if connected and self._close_is_due():
            return self._end("closed")
        if not _is_timeout(root):
            what = "the connection broke" if connected else "cannot connect"
            if isinstance(root, UnreadableBody):
                what = "the answer cannot be read"
            return self._end("broken", f"{what}: {_words(root, self._client.mask)}")
        if not connected:
            words = f"connect deadline: no connection in {deadlines.connect:g} s"
        elif answered:
            words = f"gap deadline: nothing for {deadlines.gap:g} s"
        else:
            words = f"first byte deadline: no answer in {deadlines.first_byte:g} s"
        return self._end("deadline", words)


def _since_s(started: float) -> float:
    return sse.now() - started


def _since_ms(started: float) -> float:
    return round(_since_s(started) * 1000.0, 3)


def _cpu_wait_ms() -> float | None:
    """How long this thread has had work and no core to do it on, so far; None where the system
    does not say (Linux does: Documentation/scheduler/sched-stats.rst of its sources)."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


_OTHER_CLOCK: Callable[[], float] | None = None
if hasattr(time, "clock_gettime"):
    _OTHER_CLOCK = functools.partial(
        time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    )
CLOCK_OFF_SHARE = 0.01
CLOCK_OFF_AT_LEAST_MS = 10.0


def _clocks_s() -> tuple[float, float] | None:
    """(our clock, another of the system, which counts while the machine sleeps, too), read
    together; None where it has no other."""
    if _OTHER_CLOCK is None:
        return None
    for _ in range(5):  # this process may have to wait for a core between the two
        before, other, after = sse.now(), _OTHER_CLOCK(), sse.now()
        if after - before < 0.001:
            break
    return (before + after) / 2, other


def _clock_off_ms(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float:
    """How much longer a stretch was by the other clock than by ours; 0 where they agree."""
    if before is None or after is None:
        return 0.0
    ours_ms, others_ms = ((b - a) * 1000.0 for a, b in zip(before, after))
    off_ms = others_ms - ours_ms
    agreed_ms = max(CLOCK_OFF_AT_LEAST_MS, CLOCK_OFF_SHARE * others_ms)
    return 0.0 if abs(off_ms) <= agreed_ms else round(off_ms, 3)


def _root(error: BaseException, ambient: BaseException | None) -> BaseException:
    """The innermost cause of a network error; `ambient` was being handled before it."""
    while True:
        inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if inner is None or inner is ambient:
            return error
        error = inner


def _is_timeout(root: BaseException) -> bool:
    return isinstance(root, (TimeoutError, urllib3.exceptions.ReadTimeoutError))


def _prepared(
    client: Client, method: str, path: str, body: Mapping[str, Any] | None, stamps: Stamps
) -> tuple[Adapter, requests.PreparedRequest, dict[str, Any]]:
    try:
        return client.prepare(method, path, body, stamps)
    except BaseException as error:  # noqa: BLE001 (it goes on)
        raise _without_frames(error) from None


def _without_frames(error: BaseException) -> BaseException:
    """What interrupted a request (a timeout, Ctrl-C), without the frames of the libraries, whose
    locals hold the key: --showlocals would print them."""
    return error.with_traceback(None)


def _words(root: BaseException, mask: Mask) -> str:
    return mask.words((str(root) or type(root).__name__).replace("\n", " "))[:200]


def _masked(mask: Mask, reads: Sequence[sse.Read]) -> tuple[tuple[sse.Read, ...], int]:
    """(the reads with their secrets starred, the number of places)."""
    parts, places = mask.parts([read.data for read in reads])
    return tuple(sse.Read(read.t_ms, part) for read, part in zip(reads, parts)), places


class Client:
    """A client of the server at a URL in any form that OpenAI clients take; `base_url` is its
    root, where /health lies, `api_paths` are where its API may lie below. `dialect` shapes
    every chat request, `headers` go with every request, `ca` is a file of certificates to trust
    instead of the system's. `keep` gets every recording of a streamed request, its label behind
    `prefix`; `spend` is told of each before it is sent (and may raise); `wait` waits for a limit;
    `jitter_ms` is what its stamps are worth (see `stamps.py`). `mask` stars what no file may hold;
    left out, the key and the values of `headers`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        dialect: Dialect | None = None,
        headers: Mapping[str, str] | None = None,
        ca: Path | None = None,
        deadlines: Deadlines | None = None,
        max_bytes: int = sse.BYTES_AT_MOST,
        keep: Callable[[Recording], None] | None = None,
        prefix: str = "",
        spend: Callable[[Mapping[str, Any]], None] | None = None,
        wait: Callable[[str, float], None] | None = None,
        jitter_ms: float = 0.0,
        mask: Mask | None = None,
    ) -> None:
        self.base_url, self.api_paths = sse.api_places(base_url)
        self.dialect = dialect or Dialect()
        self.deadlines = deadlines or Deadlines()
        self.max_bytes = max_bytes
        self.jitter_ms = jitter_ms
        self._api_key = Hidden(api_key or "")
        self._headers = {name: Hidden(value) for name, value in (headers or {}).items()}
        self.mask = mask or Mask(
            [
                *secrets_of_key(api_key),
                *secrets_of_headers(self._headers),
                *secrets_in(self.dialect.extra),
            ]
        )
        self._ca = ca
        self.prefix = prefix
        self._keep = keep
        self._spend = spend
        self._wait = wait
        self._numbers = itertools.count(1)
        self._kept_bytes: list[int] | None = None  # of the answers of a step; None: not bounded

    @property
    def api_path(self) -> str:
        """Where the API lies below `base_url`: "/v1"."""
        found = self.dialect.api_path
        return self.api_paths[0] if found is None else found

    @property
    def has_key(self) -> bool:
        """Whether it sends an API key."""
        return bool(self._api_key)

    def speaking(self, dialect: Dialect) -> Client:
        """The same client with another dialect."""
        other = copy.copy(self)
        other.dialect = dialect
        return other

    def of_a_step(self) -> Client:
        """The same client for a step, which keeps its answers: all together are bounded."""
        other = copy.copy(self)
        other._kept_bytes = []
        return other

    def room(self) -> int:
        """How many bytes the next answer may have."""
        kept = sum(self._kept_bytes or ())
        return max(0, min(self.max_bytes, LONGEST_ANSWERS_KEPT * self.max_bytes - kept))

    def keep(self, recording: Recording) -> None:
        """Hand a finished recording to whoever collects the evidence."""
        if self._kept_bytes is not None:
            self._kept_bytes.append(sum(len(read.data) for read in recording.reads))
        if self._keep is not None:
            self._keep(recording)

    def spend(self, body: Mapping[str, Any]) -> None:
        """Tell whoever watches the costs of a request that will be sent."""
        if self._spend is not None:
            self._spend(body)

    def wait(self, label: str, seconds: float) -> None:
        """Wait before a request that a limit has refused is sent again."""
        if self._wait is not None:
            self._wait(label, seconds)
        else:
            sse.pause(seconds)

    def shown(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers as evidence: without credentials, and without the values of one's own."""
        own = {name.lower() for name in self._headers}
        hidden = {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key"}
        return {
            name: STARS if name.lower() in own or is_secret_name(name) else self.mask.words(value)
            for name, value in headers.items()
            if name.lower() not in hidden
        }

    def prepare(
        self, method: str, path: str, body: Mapping[str, Any] | None, stamps: Stamps
    ) -> tuple[Adapter, requests.PreparedRequest, dict[str, Any]]:
        """A request and who sends it (and follows no redirect: the key must not), all work that
        need not be timed being done."""
        session = requests.Session()
        # netrc would put credentials of its own beside the key that was asked for.
        session.auth = _no_auth
        session.trust_env = not _is_loopback(self.base_url)
        # What `arrivals` takes off.
        headers = {"Accept-Encoding": "gzip, deflate", **self._headers}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        request = session.prepare_request(
            requests.Request(method, self.base_url + path, headers=headers, json=body)
        )
        merged = session.merge_environment_settings(request.url, {}, None, None, None)
        settings = _Unshown(
            stream=True,
            proxies=merged["proxies"],
            verify=merged["verify"] if self._ca is None else str(self._ca),
            cert=merged["cert"],
        )
        return Adapter(stamps), request, settings

    def get(self, path: str, *, timeout_s: float | None = None) -> Reply:
        """GET `path`. Raises ServerError where no answer comes."""
        return self._query("GET", path, None, timeout_s)

    def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """POST JSON to `path`, read the whole answer. Raises ServerError where none comes."""
        return self._query("POST", path, body, None)

    def fetch(self, path: str, label: str, body: Mapping[str, Any] | None = None) -> Recording:
        """GET `path`, or POST `body` to it, as evidence: a recording with the answer in one
        read. Raises ServerError."""
        reply = self.get(path) if body is None else self.post(path, body)
        recording = Recording(
            label=self.prefix + label,
            request=Request("GET" if body is None else "POST", path, {}, body or {}),
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
        stamps = Stamps()
        adapter, request, settings = _prepared(self, method, path, body, stamps)
        timeout_s = timeout_s or self.deadlines.query
        ambient = sys.exc_info()[1]
        watchdog = Watchdog(timeout_s, stamps)
        started = sse.now()
        try:
            response = adapter.send(request, timeout=timeout_s, **settings)
            assert stamps.response is not None
            content = whole(stamps.response.arrivals(), MAX_REPLY_BYTES)
            if watchdog.fired:
                raise TimeoutError
            place = self.mask.words(response.headers.get("Location", ""))
            return Reply(response.status_code, self.mask.data(content), _since_ms(started), place)
        except NETWORK_ERRORS as error:
            root = _root(error, ambient)
            timed_out = watchdog.fired or _is_timeout(root)
            words = f"no answer in {timeout_s:g} s" if timed_out else _words(root, self.mask)
            kind = OversizedAnswer if isinstance(root, OversizedBody) else ServerError
            raise kind(f"{method} {self.base_url}{path}: {words}") from None
        except BaseException as error:  # noqa: BLE001 (it goes on)
            raise _without_frames(error) from None
        finally:
            watchdog.cancel()
            adapter.close()
            stamps.close()

    def record(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int = 64,
        cache_prompt: bool = True,
        *,
        label: str | None = None,
        close_at_ms: float | None = None,
        close_on_token: bool = False,
        waits: bool = True,
    ) -> Recording:
        """Ask, read the stream to its end (or close it, see `Exchange`), return the recording.

        `label` ("step/leg") names its evidence file; left out, the requests are numbered.
        """
        label = label or f"own/{next(self._numbers)}"
        body = sse.request_body(messages, max_tokens, cache_prompt)
        return Exchange(self, label, close_at_ms, close_on_token, waits=waits).run(body)

    def stream(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int = 64,
        cache_prompt: bool = True,
        **options: Any,
    ) -> Timeline:
        """`record`, derived: pieces, `ttft_ms`, `total_ms`, counts. Options as in `record`."""
        return derive(self.record(messages, max_tokens, cache_prompt, **options))


class _Unshown(dict[str, Any]):
    """Settings that no repr shows: a proxy's URL may have a password."""

    def __repr__(self) -> str:
        return "<settings>"


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
