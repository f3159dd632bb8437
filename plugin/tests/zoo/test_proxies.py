"""nginx, HAProxy and LiteLLM themselves, in settings that hurt and in settings that do not; the
direct path is the control."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from faults import BURST, Fault
from judging import Found, Servers, causes_of, check
from scripted import wait_until

from pytest_llm_latency.server.process import free_port, port_is_taken

pytestmark = [pytest.mark.zoo, pytest.mark.timeout(400)]
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
    """`told` and `words` as a fault's; `held_too` are steps of which the first text may be held
    back as well: where an answer is over in two heaps, most of its wait is HAProxy's."""

    program: str
    name: str
    settings: str = ""
    told: dict[str, str | None] = field(default_factory=dict)
    words: str = ""
    args: tuple[str, ...] = ()
    held_too: tuple[str, ...] = ()


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
    Setting("haproxy", "defaults", "", {"sse": "broken: coalesced or broken: held-back", **LATE}, held_too=("ttft", "sentence")),
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


BETWEEN = "Measured directly at the server behind, it holds"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.program}, {s.name}")
def test_a_proxy(
    setting: Setting, zoo_lab: Callable[..., Found], servers: Servers, tmp_path: Path
) -> None:
    fault = Fault(setting.name, slow=True)
    url, _ = servers(fault)
    with running(setting, tmp_path, url.removeprefix("http://")) as proxy:
        found = zoo_lab(fault, *setting.args, f"--llm-upstream-url={url}", through=proxy)
    held = [step for step in setting.held_too if causes_of(found[step]) == {"broken: held-back"}]
    check({s: one for s, one in found.items() if s not in held}, setting.told, setting.words)
    assert all(BETWEEN in sentence for sentence in sentences_of(found))


def sentences_of(found: Found) -> list[str]:
    """The causes of what is broken."""
    return [
        verdict["cause"]["sentence"]
        for entry in found.values()
        for verdict in entry.get("verdicts", [])
        if verdict["outcome"] == "broken"
    ]


LITELLM = """
model_list:
  - model_name: small
    litellm_params: {{model: openai/small, api_base: "{url}/v1", api_key: none}}
"""


@pytest.mark.timeout(400)
def test_litellm(
    zoo_lab: Callable[..., Found],
    servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It drops `timings`, has no /slots, and tells a server that its reader has gone only when it
    next sends: cancelling is measured at the server behind, in both phases."""
    program = os.environ.get("LITELLM") or shutil.which("litellm")
    if program is None:
        pytest.skip("litellm is not installed (pip install 'litellm[proxy]'; LITELLM=its path)")
    fault, port, key = Fault("litellm", slow=True), free_port(), f"sk-{secrets.token_hex(16)}"
    url, _ = servers(fault)
    config = tmp_path / "config.yaml"
    config.write_text(LITELLM.format(url=url))
    environment = {**os.environ, "LITELLM_MASTER_KEY": key, "LITELLM_TELEMETRY": "False"}
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        assert wait_until(lambda: port_is_taken(port) or process.poll() is not None, 120.0)
        assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
        monkeypatch.setenv("LLM_API_KEY", key)
        proxy = f"http://127.0.0.1:{port}"
        found = zoo_lab(fault, f"--llm-upstream-url={url}", through=proxy)
    finally:
        process.terminate()
        process.wait(20)
    check(found, {"server": "not measurable: not-offered", **LATE}, "")
    assert sentences_of(found)
    assert all(BETWEEN in sentence for sentence in sentences_of(found))
