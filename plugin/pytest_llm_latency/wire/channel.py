"""One server to talk to: its URL, headers, secrets, deadlines, and plain questions.

Every request has a connection of its own, so that each is measured alike and a close is real.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
import urllib3

from .. import sse
from ..errors import ConfigError, OversizedAnswer, ServerError
from ..evidence.recording import End, Recording, Reply, Request
from ..masking import Mask
from ..secrecy import STARS, Hidden, is_secret_name, secrets_in, secrets_of_headers, secrets_of_key
from .arrivals import OversizedBody, whole
from .clocks import since_ms
from .connections import Adapter, Stamps, Watchdog
from .dialect import Dialect
from .failures import NETWORK_ERRORS, is_timeout, root_of, without_frames, words_of

# What no honest server meets, and what keeps this process small, whatever a server sends: bytes of
# the answer to a plain question (of a streamed one: --llm-max-bytes), and returns of recv.
MAX_REPLY_BYTES = 4 * 1024 * 1024
# All answers of a step are kept until it is judged: of the longest ones, so many.
LONGEST_ANSWERS_KEPT = 4


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


if not hasattr(urllib3.HTTPResponse, "read1"):
    raise ConfigError(
        "this urllib3 cannot read a stream as it arrives; upgrade it: pip install 'urllib3>=2.2'"
    )

C = TypeVar("C", bound="Channel")


class Channel:
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

    def speaking(self: C, dialect: Dialect) -> C:
        """The same client with another dialect."""
        other = copy.copy(self)
        other.dialect = dialect
        return other

    def of_a_step(self: C) -> C:
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
        session.auth = no_auth
        session.trust_env = not is_loopback(self.base_url)
        # What `arrivals` takes off.
        headers = {"Accept-Encoding": "gzip, deflate", **self._headers}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        request = session.prepare_request(
            requests.Request(method, self.base_url + path, headers=headers, json=body)
        )
        merged = session.merge_environment_settings(request.url, {}, None, None, None)
        settings = Unshown(
            stream=True,
            proxies=merged["proxies"],
            verify=merged["verify"] if self._ca is None else str(self._ca),
            cert=merged["cert"],
        )
        return Adapter(stamps), request, settings

    def prepared(
        self, method: str, path: str, body: Mapping[str, Any] | None, stamps: Stamps
    ) -> tuple[Adapter, requests.PreparedRequest, dict[str, Any]]:
        """The same, whatever interrupts it without the frames that hold the key."""
        try:
            return self.prepare(method, path, body, stamps)
        except BaseException as error:  # noqa: BLE001 (it goes on)
            raise without_frames(error) from None

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
        adapter, request, settings = self.prepared(method, path, body, stamps)
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
            return Reply(response.status_code, self.mask.data(content), since_ms(started), place)
        except NETWORK_ERRORS as error:
            root = root_of(error, ambient)
            timed_out = watchdog.fired or is_timeout(root)
            words = f"no answer in {timeout_s:g} s" if timed_out else words_of(root, self.mask)
            kind = OversizedAnswer if isinstance(root, OversizedBody) else ServerError
            raise kind(f"{method} {self.base_url}{path}: {words}") from None
        except BaseException as error:  # noqa: BLE001 (it goes on)
            raise without_frames(error) from None
        finally:
            watchdog.cancel()
            adapter.close()
            stamps.close()


class Unshown(dict[str, Any]):
    """Settings that no repr shows: a proxy's URL may have a password."""

    def __repr__(self) -> str:
        return "<settings>"


def no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
