"""How far this machine's stamps can be trusted now: a stream of known moments over loopback.

It is read by the very client that measures, so that it also warms up all that a first answer
would else pay for: imports, the way through requests, the decoder, JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import statistics
import threading
import time
from dataclasses import dataclass

from .. import sse
from ..evidence.derive import derive
from .channel import Deadlines
from .client import Client
from .exchange import Exchange

PIECES = 40
GAP_S = 0.002
# On a busy machine the pauses grow; the stream then ends early.
PLAY_AT_MOST_S = 0.12
_JITTER_SHARE = 0.95


@dataclass(frozen=True)
class StampError:
    """Delays from write to stamp, in milliseconds, of `pieces` events over loopback.

    `jitter_ms`: of the differences between two of the delays 95 % are smaller. So far two
    stamps can differ by the waking of this process alone; what differs less is noise.
    """

    pieces: int
    resolution_ms: float
    delay_p50_ms: float
    delay_max_ms: float
    jitter_ms: float

    def words(self) -> str:
        """For the header of a run."""
        return (
            f"stamps come {self.delay_p50_ms:.3f} ms late (median of {self.pieces}; at most "
            f"{self.delay_max_ms:.3f}); differences below {self.jitter_ms:.3f} ms are noise"
        )


def measure_stamps() -> StampError | None:
    """Play, read, compare: less than 200 ms. None where no stream could be read."""
    sent: list[float] = []
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(1.0)
        threading.Thread(target=_play, args=(listener, sent), daemon=True).start()
        client = Client(
            f"http://127.0.0.1:{listener.getsockname()[1]}",
            deadlines=Deadlines(connect=1.0, first_byte=1.0, gap=1.0, total=2.0),
        )
        exchange = Exchange(client, "stamps/loopback")
        timeline = derive(exchange.run(sse.request_body(sse.MESSAGES, PIECES, False)))
        stamps = [exchange.started_at * 1000.0 + piece.t_ms for piece in timeline.pieces]
        delays = [stamp - moment * 1000.0 for stamp, moment in zip(stamps, sent)]
        if len(delays) > 1:
            return _stamp_error(delays)
    return None


def _stamp_error(delays_ms: list[float]) -> StampError:
    differences = sorted(abs(a - b) for a, b in itertools.combinations(delays_ms, 2))
    return StampError(
        pieces=len(delays_ms),
        resolution_ms=time.get_clock_info("perf_counter").resolution * 1000.0,
        delay_p50_ms=round(statistics.median(delays_ms), 3),
        delay_max_ms=round(max(delays_ms), 3),
        jitter_ms=round(differences[int(_JITTER_SHARE * (len(differences) - 1))], 3),
    )


def _play(listener: socket.socket, sent: list[float]) -> None:
    """Answer one request with an event stream; note when each event was written."""
    chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": "x"}}]}).encode()
    with contextlib.suppress(OSError):
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            while b'"stream_options"' not in received:  # the body's last key
                more = connection.recv(65536)
                if not more:
                    return
                received += more
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            begun = sse.now()
            while len(sent) < PIECES and sse.now() - begun < PLAY_AT_MOST_S:
                sse.pause(GAP_S)
                sent.append(sse.now())
                connection.sendall(b"data: " + chunk + b"\n\n")
            connection.sendall(b"data: [DONE]\n\n")
