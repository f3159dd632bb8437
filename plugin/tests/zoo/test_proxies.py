"""nginx and HAProxy themselves, in settings that hurt and in settings that do not."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from faults import BURST, Fault
from judging import Found, Servers, check
from scripted import wait_until

from pytest_llm_latency.server.process import free_port, port_is_taken

pytestmark = pytest.mark.zoo
LAB_KB = Path(__file__).parents[3] / "test_llm_latency" / "kb"  # some 4,000 tokens here: long

NGINX = """
daemon off; pid {dir}/pid; error_log {dir}/error.log; {user}
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
  uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://{upstream}; proxy_http_version 1.1; proxy_read_timeout 120s; {settings} }}
  }}
}}
"""
HAPROXY = """
global
    maxconn 64
defaults
    mode http
    timeout connect 5s
    timeout client 120s
    timeout server 120s
    {settings}
frontend in
    bind 127.0.0.1:{port}
    default_backend out
backend out
    server llm {upstream}
"""


@dataclass(frozen=True)
class Setting:
    """`told` and `words` as a fault's."""

    program: str
    name: str
    settings: str = ""
    told: dict[str, str | None] = field(default_factory=dict)
    words: str = ""
    args: tuple[str, ...] = ()


LATE = {"cancel": "broken: cancel-late-in-prefill"}
SETTINGS = [
    Setting("nginx", "defaults"),
    Setting("nginx", "buffering off", "proxy_buffering off;"),
    Setting(
        "nginx", "gzip for event streams",
        "gzip on; gzip_types text/event-stream; gzip_proxied any; gzip_min_length 1; proxy_ignore_headers X-Accel-Buffering;",
        BURST,
    ),
    Setting("nginx", "ignores a client's abort", "proxy_ignore_client_abort on;", LATE),
    Setting(
        "nginx", "a read timeout shorter than the prefill", "proxy_read_timeout 2s;",
        dict.fromkeys(("prefill", "cache", "report")), "was cut off", (f"--llm-kb={LAB_KB}",),
    ),
    Setting("haproxy", "defaults", "", {"sse": "broken: coalesced", **LATE}),
    Setting("haproxy", "no delay", "option http-no-delay", LATE),
    Setting("haproxy", "no delay, aborts on close", "option http-no-delay\n    option abortonclose"),
]  # fmt: skip


@contextlib.contextmanager
def running(setting: Setting, directory: Path, upstream: str) -> Iterator[str]:
    """The proxy before `upstream` (host:port) -> its URL."""
    program = shutil.which(setting.program, path=os.environ["PATH"] + ":/usr/sbin")
    if program is None:
        pytest.skip(f"{setting.program} is not installed (apt-get install {setting.program})")
    port = free_port()
    template = NGINX if setting.program == "nginx" else HAPROXY
    text = template.format(
        dir=directory, port=port, upstream=upstream, settings=setting.settings,
        user="user root;" if os.geteuid() == 0 else "",
    )  # fmt: skip
    if "proxy_read_timeout" in setting.settings:
        text = text.replace("proxy_read_timeout 120s; ", "")
    config = directory / "config"
    config.write_text(text)
    options = ["-p", str(directory), "-c"] if setting.program == "nginx" else ["-db", "-f"]
    process = subprocess.Popen([program, *options, str(config)])
    try:
        assert wait_until(lambda: port_is_taken(port) or process.poll() is not None)
        assert process.poll() is None, "the proxy ended"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.program}, {s.name}")
def test_a_proxy(
    setting: Setting, zoo_lab: Callable[..., Found], servers: Servers, tmp_path: Path
) -> None:
    fault = Fault(setting.name, slow=True)
    url, _ = servers(fault)
    with running(setting, tmp_path, url.removeprefix("http://")) as proxy:
        found = zoo_lab(fault, *setting.args, through=proxy)
    check(found, setting.told, setting.words)
