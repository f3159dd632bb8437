"""Which values are secrets, by their names; and that ordinary ones are none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from scripted import text_event

from pytest_llm_latency.errors import ConfigError
from pytest_llm_latency.masking import Mask
from pytest_llm_latency.secrecy import (
    Hidden,
    hide,
    hide_arguments,
    is_secret_name,
    secrets_in,
    secrets_of_headers,
    secrets_of_key,
    shown,
    without_credentials,
)
from pytest_llm_latency.servers.logs import CommandLog, FileLog, RunLog
from pytest_llm_latency.session.resolve import resolve
from pytest_llm_latency.session.settings import Settings
from pytest_llm_latency.wire.client import Client
from pytest_llm_latency.wire.connections import Stamps
from pytest_llm_latency.wire.dialect import Dialect


@pytest.mark.parametrize(
    "name",
    ["api_key", "apiKey", "API-KEY", "key", "X-Api-Key", "x-goog-api-key", "Ocp-Apim-Subscription-Key",
     "hf_token", "hfToken", "access_token", "X-Auth-Token", "token", "sig", "X-Amz-Signature", "password",
     "client_secret", "Cookie", "private_key", "hft"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "stop_token", "eos_token", "tokenizer", "keyword", "monkey", "api-key-file", "X-Tenant",
     "x-ratelimit-remaining-tokens", "model", "user", "temperature", "cache_key", "tokens", "ssl-key-file"],
)  # fmt: skip
def test_names_of_what_is_none(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("header", "secrets"),
    [
        ({"X-Tenant": "battery-staple"}, {"battery-staple"}),
        ({"Cookie": "session=abcdefgh1; theme=dark"}, {"abcdefgh1"}),
        ({"X-Auth": "Basic dXNlcjpwYXNz"}, {"dXNlcjpwYXNz"}),
        ({"X-Meta": '{"user": "very-secret"}'}, {"very-secret"}),
        ({"X-Api-Key": "onlyletters"}, {"onlyletters"}),
    ],
)  # fmt: skip
def test_a_header_is_a_secret_as_a_whole_and_in_parts(
    header: dict[str, str], secrets: set[str]
) -> None:
    assert secrets <= set(secrets_of_headers(header))


@pytest.mark.parametrize(
    "header",
    [
        {"Accept": "application/json"}, {"X-Kind": "application/json"}, {"X-Kind": "text/event-stream"},
        {"X-Mode": "keep-alive"}, {"X-Env": "production"}, {"User-Agent": "my-own-agent/1.0"},
        {"X-Model": "gemma-3-270m"}, {"anthropic-version": "2023-06-01"},
    ],
)  # fmt: skip
def test_a_common_header_is_none(header: dict[str, str]) -> None:
    (value,) = header.values()
    assert Mask(secrets_of_headers(header)).text(f"a {value} b") == f"a {value} b"


def test_a_key_for_form_s_sake_is_none() -> None:
    assert list(secrets_of_key("lm-studio")) == []
    assert list(secrets_of_key("Not-Needed")) == []
    assert list(secrets_of_key("correct-horse")) == ["correct-horse"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("see http://me:pw@host/x", "see http://<secret>@host/x"),
        ("see http://me:a@b@host/x", "see http://<secret>@host/x"),
        ("https://h/?a=1&api_key=S&b=2", "https://h/?a=1&api_key=<secret>&b=2"),
        ("https://h/?X-Amz-Signature=abc#x", "https://h/?X-Amz-Signature=<secret>#x"),
        ("Authorization: Bearer abcdefgh", "Authorization: Bearer <secret>"),
        ("tail --token=abc -f x", "tail --token=<secret> -f x"),
        ("tail --token abc -f x", "tail --token <secret> -f x"),
        ("http://h/a@b?model=x me@there.org", "http://h/a@b?model=x me@there.org"),
        ("--ctx-size 2048 --no-slots", "--ctx-size 2048 --no-slots"),
    ],
)  # fmt: skip
def test_credentials_in_words(text: str, told: str) -> None:
    assert without_credentials(text) == told


def test_what_is_hidden_in_a_body() -> None:
    body: Any = {"a": [{"apiKey": "battery-staple", "n": 1}], "token": ["one-of-them"], "b": "c"}
    hidden = hide(body)
    assert hidden == body
    assert "staple" not in repr(hidden)
    assert set(secrets_in(hidden)) == {"battery-staple", "one-of-them"}
    assert shown(hidden) == {"a": [{"apiKey": "<secret>", "n": 1}], "token": ["<secret>"], "b": "c"}


@pytest.mark.parametrize("args", [["--api-key", "one,two-of-many"], ["--api-key=one,two-of-many"]])
def test_arguments(args: list[str]) -> None:
    hidden = hide_arguments(["--ctx-size", "9", *args, "-v"])
    assert list(hidden) == ["--ctx-size", "9", *args, "-v"]
    assert "two" not in repr(hidden)
    assert {"one,two-of-many", "two-of-many"} <= set(secrets_in(hidden))
    assert subprocess.run(["echo", *hidden], capture_output=True, check=True).stdout.split()[-2:] == [
        args[-1].encode(), b"-v",
    ]  # fmt: skip


def settings_of(pytestconfig: pytest.Config, **environment: str) -> Settings:
    return resolve(pytestconfig, {f"LLM_{name}": value for name, value in environment.items()})


def test_settings_show_no_secret(pytestconfig: pytest.Config) -> None:
    settings = settings_of(
        pytestconfig,
        API_KEY="correct-horse", UPSTREAM_API_KEY="another-horse", HEADER="X-Tenant: battery-staple",
        BODY='{"hf_token": "mistral-token", "say": "correct-horse"}', MODEL="gemma-3-270m",
        SERVER_ARGS="--api-key own-server-key", LOG_COMMAND="log --token=token-of-log http://u:pw@h",
    )  # fmt: skip
    told = repr(settings) + repr(settings.shown())
    secrets = (
        "correct-horse",
        "another-horse",
        "battery-staple",
        "mistral-token",
        "own-server-key",
        "token-of-log",
    )
    assert "gemma-3-270m" in told
    assert "u:pw" not in told
    for secret in secrets:
        assert secret not in told
        assert settings.mask().text(f"x {secret} x") == f"x {'*' * len(secret)} x"
    assert settings_of(pytestconfig, API_KEY="gemma-3-270m", MODEL="gemma-3-270m").mask().text(
        "gemma-3-270m"
    ) == "gemma-3-270m"  # fmt: skip


def test_a_client_of_one_s_own_stars_its_secrets_too() -> None:
    client = Client(
        "http://127.0.0.1:9", api_key="correct-horse", headers={"X-Tenant": "battery-staple"},
        dialect=Dialect(extra=hide({"hf_token": "mistral-token"})),
    )  # fmt: skip
    body = text_event("correct-horse battery-staple mistral-token").encode()
    assert b"************* ************** *************" in client.mask.data(body)
    assert client.mask.value({"a": Hidden("x")}) == {"a": "<secret>"}


def test_a_log_keeps_its_bytes_but_for_stars(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    log = RunLog(FileLog(path, "--llm-log"), Mask(["correct-horse"]))
    path.write_bytes(b"before\nkey: correct-horse.\n cancel task, id_task = 1\n")
    assert log.read() == b"key: *************.\n cancel task, id_task = 1\n"
    assert log.read(19) == b"\n cancel task, id_task = 1\n"
    assert log.size() == len(log.read())


def test_a_command_whose_output_has_the_key() -> None:
    command = "sh -c 'echo correct-horse; exit 3'"
    log = CommandLog(command, "--llm-log-command", Mask(["correct-horse"]))
    with pytest.raises(ConfigError) as error:
        log.size()
    assert "ended with status 3: *************" in str(error.value)
    assert "correct-horse" not in str(error.value) + repr(log)


def test_the_password_of_a_proxy_is_in_no_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:battery@proxy.example:3128")
    client = Client("http://server.example", api_key="correct-horse")
    session, request, settings = client.prepare("GET", "/health", None, Stamps())
    assert "battery" in settings["proxies"]["http"]
    assert "battery" not in f"{session!r} {request!r} {settings!r}"
