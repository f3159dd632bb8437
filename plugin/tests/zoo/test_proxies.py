"""Real proxies, in their defaults and in settings that help or hurt; the direct path is the
control. What each does was first told by the server's processor time (bench/proxies/truth.py)."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from faults import Fault
from judging import Found, Servers, causes_of, check
from proxies import LITELLM, need, running
from proxy_settings import LATE, SETTINGS, Setting
from scripted import wait_until

from pytest_llm_latency.servers.process import GUARD, free_port, port_is_taken

pytestmark = [pytest.mark.zoo, pytest.mark.timeout(400)]
BETWEEN = "Measured directly at the server behind, it holds"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.program.name}, {s.name}")
def test_a_proxy(
    setting: Setting, zoo_lab: Callable[..., Found], servers: Servers, tmp_path: Path
) -> None:
    need(setting.program)
    fault = Fault(setting.name, server=setting.server, slow=True)
    url, _ = servers(fault)
    with running(setting.program, setting.settings, tmp_path, url) as proxy:
        assert listening() == {"127.0.0.1"}
        found = zoo_lab(fault, *setting.args, f"--llm-upstream-url={url}", through=proxy)
    # A worker left behind would keep the port.
    assert not port_is_taken(int(proxy.rpartition(":")[2]))
    held = [step for step in setting.held_too if causes_of(found[step]) == {"broken: held-back"}]
    check({s: one for s, one in found.items() if s not in held}, setting.told, setting.words)
    assert all(BETWEEN in sentence for sentence in sentences_of(found))


def listening() -> set[str]:
    """The addresses on which the servers and proxies of these tests listen."""
    return {
        connection.laddr.ip
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def sentences_of(found: Found) -> list[str]:
    """The causes of what is broken."""
    return [
        verdict["cause"]["sentence"]
        for entry in found.values()
        for verdict in entry.get("verdicts", [])
        if verdict["outcome"] == "broken"
    ]


LITELLM_CONFIG = """
model_list:
  - model_name: small
    litellm_params: {{model: openai/small, api_base: "{url}/v1", api_key: none}}
"""


def test_litellm(
    zoo_lab: Callable[..., Found],
    servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It drops `timings`, has no /slots, and tells a server that its reader has gone only when it
    next sends: cancelling is measured at the server behind, in both phases."""
    program = need(LITELLM)
    fault, port, key = Fault("litellm", slow=True), free_port(), f"sk-{secrets.token_hex(16)}"
    url, _ = servers(fault)
    config = tmp_path / "config.yaml"
    config.write_text(LITELLM_CONFIG.format(url=url))
    environment = {**os.environ, "LITELLM_MASTER_KEY": key, "LITELLM_TELEMETRY": "False"}
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    # Its /health wants the key, so that `guarded` would wait in vain.
    with (tmp_path / "log").open("wb") as log:
        guard = subprocess.Popen(
            [sys.executable, str(GUARD), *command],
            stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment,
        )  # fmt: skip
    try:
        assert wait_until(lambda: port_is_taken(port) or guard.poll() is not None, 120.0)
        assert guard.poll() is None, (tmp_path / "log").read_text()[-2000:]
        monkeypatch.setenv("LLM_API_KEY", key)
        proxy = f"http://127.0.0.1:{port}"
        found = zoo_lab(fault, f"--llm-upstream-url={url}", through=proxy)
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait(20)
    check(found, {"server": "not measurable: not-offered", **LATE}, "")
    assert sentences_of(found)
    assert all(BETWEEN in sentence for sentence in sentences_of(found))
