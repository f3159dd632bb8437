"""The settings in which the zoo's proxies stand before a server, and what the suite must say."""

from __future__ import annotations

from dataclasses import dataclass, field

from faults import BURST
from proxies import (
    AIOHTTP,
    APACHE,
    CADDY,
    ENVOY,
    FASTAPI,
    H2O,
    HAPROXY,
    LIGHTTPD,
    MITMPROXY,
    NGINX,
    ROOT,
    SQUID,
    TRAEFIK,
    VARNISH,
    Program,
)


@dataclass(frozen=True)
class Setting:
    """`told`, `words` and `server` as a fault's; `held_too` are steps of which the first text may be
    held back as well: where an answer is over in two heaps, most of its wait is the proxy's. The
    server leaves a core to the proxy and the
    reader; its context bounds the prompt in whose prefill a connection is closed, and it can stop
    at the end of each of its small batches."""

    program: Program
    name: str
    settings: str = ""
    told: dict[str, str | None] = field(default_factory=dict)
    words: str = ""
    args: tuple[str, ...] = ()
    held_too: tuple[str, ...] = ()
    server: tuple[str, ...] = ("-t", "1", "-c", "2048", "-b", "128")


LAB_KB = ROOT / "test_llm_latency" / "kb"  # some 4,000 tokens here: long
LATE = {"cancel": "broken: cancel-late-in-prefill"}
# The close reaches the server in neither phase.
IGNORES = {"cancel": "broken: cancel-ignored and broken: cancel-late-in-prefill"}
PIPE = "sub vcl_recv { return (pipe); }"
SETTINGS = [
    Setting(NGINX, "defaults"),
    Setting(NGINX, "buffering off", "proxy_buffering off;"),
    Setting(
        NGINX, "gzip for event streams",
        "gzip on; gzip_types text/event-stream; gzip_proxied any; gzip_min_length 1; proxy_ignore_headers X-Accel-Buffering;",
        BURST,
    ),
    Setting(NGINX, "ignores a client's abort", "proxy_ignore_client_abort on;", LATE),
    Setting(
        NGINX, "a read timeout shorter than the prefill", "proxy_read_timeout 2s;",
        dict.fromkeys(("prefill", "cache", "report")), "was cut off", (f"--llm-kb={LAB_KB}",), server=("-t", "1"),
    ),
    Setting(
        HAPROXY, "defaults", "", {"sse": "broken: coalesced or broken: held-back", **LATE},
        held_too=("ttft", "sentence"),
    ),
    Setting(HAPROXY, "no delay", "option http-no-delay", LATE),
    Setting(HAPROXY, "no delay, aborts on close", "option http-no-delay\n    option abortonclose"),
    Setting(APACHE, "defaults", "", LATE),
    Setting(APACHE, "flushpackets=on", "flushpackets=on", LATE),
    Setting(VARNISH, "defaults", "", LATE),
    Setting(VARNISH, "return (pipe)", PIPE),
    Setting(SQUID, "defaults"),
    Setting(LIGHTTPD, "defaults", "", {**BURST, **IGNORES}),
    Setting(LIGHTTPD, "stream-response-body = 1", "server.stream-response-body = 1", LATE),
    Setting(LIGHTTPD, "stream-response-body = 2", "server.stream-response-body = 2", LATE),
    Setting(H2O, "defaults", "", LATE),
    Setting(ENVOY, "defaults"),
    Setting(TRAEFIK, "defaults"),
    Setting(CADDY, "defaults"),
    Setting(CADDY, "flush_interval -1", "flush_interval -1"),
    Setting(MITMPROXY, "defaults", "", BURST),
    Setting(MITMPROXY, "stream_large_bodies=1", "--set stream_large_bodies=1"),
    Setting(FASTAPI, "streams", "streams"),
    Setting(FASTAPI, "looks at the first chunk first", "looks-first", LATE),
    Setting(FASTAPI, "reads the whole answer", "whole", {**BURST, **IGNORES}),
    Setting(FASTAPI, "in threads", "in-threads", IGNORES),
    Setting(FASTAPI, "in a task of its own", "in-a-task", IGNORES),
    Setting(FASTAPI, "behind a middleware", "middleware"),
    Setting(AIOHTTP, "defaults", "", LATE),
    Setting(AIOHTTP, "handler_cancellation=True", "handler-cancellation"),
]  # fmt: skip
