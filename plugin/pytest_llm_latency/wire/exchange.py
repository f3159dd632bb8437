"""One streamed request: sent, read to its end or closed, stamped, and recorded.

What it reads it interprets only so far as to see a first token, where it is told to close then.
"""

from __future__ import annotations

import collections
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import requests

from .. import sse
from ..evidence import limits
from ..evidence.derive import TokenWatch, is_answered, is_success
from ..evidence.recording import End, EndKind, Recording, Request
from ..masking import Mask
from .arrivals import UnreadableBody
from .channel import LONGEST_ANSWERS_KEPT, Channel
from .clocks import clock_off_ms_between, clocks_s, cpu_wait_ms_so_far, since_ms, since_s
from .connections import Stamps, Watchdog
from .failures import NETWORK_ERRORS, is_timeout, root_of, without_frames, words_of

MAX_READS = 100_000
CLOSE_GRACE_S = 0.05


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
        client: Channel,
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
        adapter, request, settings = client.prepared("POST", path, full_body, stamps)
        cpu_wait_before_ms = cpu_wait_ms_so_far()
        clocks_before = clocks_s()
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
            headers_ms = since_ms(stamps.started)
            for read in self._reads(response.status_code):
                reads.append(read)
                if is_success(response.status_code):
                    yield read
            end = self._after_reads(reads, watchdog)
        except NETWORK_ERRORS as error:
            end = self._failure(root_of(error, ambient), watchdog, response is not None)
        except BaseException as error:  # noqa: BLE001 (it goes on)
            raise without_frames(error) from None
        finally:
            if collects:
                gc.enable()
            watchdog.cancel()
            if response is not None:
                response.close()
            adapter.close()
            stamps.close()
            self.closed_at = sse.now()
            cpu_wait_ms = cpu_wait_ms_so_far()
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
                clock_off_ms=clock_off_ms_between(clocks_before, clocks_s()),
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
        left_s = self._close_at_ms / 1000.0 - since_s(self._stamps.started)
        return min(deadline_s, max(left_s, 0.001))

    def _close_is_due(self) -> bool:
        return self._close_at_ms is not None and since_ms(self._stamps.started) >= self._close_at_ms

    def _end(self, kind: EndKind, detail: str = "") -> End:
        return End(kind, since_ms(self._stamps.started), detail)

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
        if not is_timeout(root):
            what = "the connection broke" if connected else "cannot connect"
            if isinstance(root, UnreadableBody):
                what = "the answer cannot be read"
            return self._end("broken", f"{what}: {words_of(root, self._client.mask)}")
        if not connected:
            words = f"connect deadline: no connection in {deadlines.connect:g} s"
        elif answered:
            words = f"gap deadline: nothing for {deadlines.gap:g} s"
        else:
            words = f"first byte deadline: no answer in {deadlines.first_byte:g} s"
        return self._end("deadline", words)


def _masked(mask: Mask, reads: Sequence[sse.Read]) -> tuple[tuple[sse.Read, ...], int]:
    """(the reads with their secrets starred, the number of places)."""
    parts, places = mask.parts([read.data for read in reads])
    return tuple(sse.Read(read.t_ms, part) for read, part in zip(reads, parts)), places
