"""A connection of one request: it stamps its opening, can be broken at a deadline, and is closed
for good. urllib3 opens it and reads the head; the body is `arrivals.Response`'s."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import requests.adapters
import urllib3

from .. import sse
from .arrivals import Response


class Stamps:
    """What a connection notes of itself while it opens."""

    socket: Any = None
    response: Response | None = None
    connect_ms: float | None = None
    started: float = 0.0
    close_after_s: float | None = None
    closer: Watchdog | None = None

    def opened(self, begun: float, socket: Any) -> None:
        """Start the clock: the request's first byte is sent next."""
        self.socket = socket
        if self.close_after_s is not None:
            self.closer = Watchdog(self.close_after_s, self)
        self.started = sse.now()
        self.connect_ms = round((self.started - begun) * 1000.0, 3)

    def set_timeout(self, seconds: float) -> None:
        """Bound the next wait for bytes."""
        if self.socket is not None:
            self.socket.settimeout(seconds)

    def close(self) -> None:
        """Close the TCP connection even where a library still holds the socket: what it
        leaves open is a half close, and several proxies then let the server go on."""
        if self.closer is not None:
            self.closer.cancel()
        if self.response is not None:
            self.response.close()
        if self.socket is not None:
            self.socket.close()


class Watchdog:
    """Breaks a connection at the total deadline: a socket's own timeout is only a gap, and a
    server that drips bytes never meets it."""

    def __init__(self, seconds: float, stamps: Stamps) -> None:
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
        """It is not needed any more."""
        self._timer.cancel()


class _Stamping:
    """A connection of urllib3 that writes into `stamps`. Over TLS the clock starts after the
    handshake."""

    stamps: Stamps
    sock: Any
    response_class: Any  # by which http.client makes its response

    def connect(self) -> None:
        begun = sse.now()
        super().connect()  # type: ignore[misc]
        self.response_class = self._respond
        self.stamps.opened(begun, self.sock)

    def _respond(self, *args: Any, **kwargs: Any) -> Response:
        self.stamps.response = Response(*args, **kwargs)
        return self.stamps.response


class Adapter(requests.adapters.HTTPAdapter):
    """An adapter without retries whose connections, through whatever proxy, write into `stamps`.

    Its `send` returns with the head alone; that of a session reads a redirect's body to the end.
    """

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self._let_stamp(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> urllib3.ProxyManager:
        manager = super().proxy_manager_for(proxy, **kwargs)
        self._let_stamp(manager)
        return manager  # type: ignore[no-any-return]

    def _let_stamp(self, manager: Any) -> None:
        manager.pool_classes_by_scheme = {
            scheme: self._stamping(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
        }

    def _stamping(self, pool: type[Any]) -> type[Any]:
        kind = pool.ConnectionCls
        if issubclass(kind, _Stamping):  # the manager was asked for before
            return pool
        bound = type(kind.__name__, (_Stamping, kind), {"stamps": self._stamps})
        return type(pool.__name__, (pool,), {"ConnectionCls": bound})
