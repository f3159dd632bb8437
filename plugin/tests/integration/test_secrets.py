"""A secret that a server gives back is in no file and on no terminal, whatever its form; and what
is starred is graded as it was judged."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from engines import Engine, chunk, vllm
from scripted import Connection, Request, serving

from pytest_llm_latency.errors import ServerStartError
from pytest_llm_latency.secrecy import hide_arguments
from pytest_llm_latency.servers.process import guarded

from .conftest import Run, summary

KEY = "sk-Zq9/abc+DEF==tail_7788XY"
HEADER = "blue/battery+staple"
BODY = "hf_Mistral/horse+9"
OWN = "own-Server/key+1"
SECRETS = (KEY, HEADER, BODY, OWN)
STEPS = "server or sse or sentence or cancel"
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "PHP's JSON": lambda key: key.replace("/", "\\/"),
    ".NET's JSON": lambda key: key.replace("+", "\\u002B").replace("=", "\\u003D"),
    "all in \\u": lambda key: "".join(f"\\u{ord(c):04x}" for c in key),
    "URL": lambda key: quote(key, safe=""),
    "HTML": lambda key: html.escape(key).replace("+", "&#43;").replace("/", "&#x2F;"),
    **{
        f"base64 behind {before!r}": lambda key, before=before: base64.b64encode(
            f"{before}{key}".encode()
        )[(8 * len(before) + 5) // 6 : 8 * (len(before) + len(key)) // 6].decode()
        for before in ("", "u", "u:")
    },
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(key.encode()).decode().rstrip("="),
}
SAID = " ".join(form(secret) for secret in SECRETS for form in FORMS.values())
EVENT = '{"choices": [{"index": 0, "delta": {"content": "%s"}, "finish_reason": null}]}'


class Leaky(Engine):
    """Repeats what it must not, where a server can; its `log` too."""

    log: Path | None = None

    def script(self, connection: Connection, request: Request) -> None:
        if self.log is not None and request.target == "/v1/chat/completions":
            with self.log.open("a") as log:
                log.write(
                    f"task 1 | processing task\nheaders: {SAID}\ncancel task, id_task = 1, {SAID}\n"
                )
        if request.target in ("/health", "/props"):
            props = (
                '"default_generation_settings": {"n_ctx": 8192}, "total_slots": 1, "status": "ok"'
            )
            body = f'{{{props}, "of": "{request.target}", "model_path": "{SAID}"}}'
            connection.send(f"HTTP/1.1 200 X\r\nX-Echo: {KEY}\r\nConnection: close\r\n\r\n{body}")
        else:
            super().script(connection, request)

    def _stream(self, connection: Connection, body: dict[str, Any]) -> None:
        connection.send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
            f"X-Echo: {KEY} {quote(HEADER, safe='')}\r\nX-Signed: https://me:pw-of-me@h/x?sig=pw-of-it\r\n\r\n"
        )
        words = [*(f"w{number} " for number in range(12)), *SAID.split(" ")]
        # Split over two pieces, and over two reads.
        words += ["and ", KEY[:9], KEY[9:], " and "]
        for word in words[: body["max_tokens"]]:
            time.sleep(0.004)
            event = f"data: {EVENT % word}\n\n"
            connection.send(event[:-9])
            if word.startswith(KEY):
                time.sleep(0.004)
            connection.send(event[-9:])
        connection.send(chunk({}, "stop") + "data: [DONE]\n\n")


def run_pytest(directory: Path, *args: str, **environment: str) -> str:
    """What pytest printed."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LLM_", "LLAMA_", "GITHUB_"))
        and not name.lower().endswith("_proxy")
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "test_llm_latency", "-p", "no:cacheprovider", *args],
        cwd=directory, capture_output=True, text=True, check=False, timeout=100,
        env={
            **kept, "LLM_LANG": "en", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "pytest_timeout,pytest_order,pytest_llm_latency.plugin", **environment,
        },
    )  # fmt: skip
    return done.stdout + done.stderr


def environment() -> dict[str, str]:
    return {
        "LLM_API_KEY": KEY,
        "LLM_HEADER": f"X-Tenant: {HEADER}",
        "LLM_BODY": json.dumps({"extra": {"hfToken": BODY}, "tokens": [{"api_key": "short"}]}),
        "GITHUB_STEP_SUMMARY": "summary.md",
        "GITHUB_ACTIONS": "true",
    }


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of three steps and of a close, with what pytest printed."""
    directory = tmp_path_factory.mktemp("measured")
    engine = Leaky(paths=vllm().paths)
    engine.log = directory / "log-of-the-server"
    engine.log.touch()
    with serving(engine.script) as server:
        printed = run_pytest(
            directory, f"--llm-url={server.base_url}", "-k", STEPS, "--junit-xml=found.xml", "-rA",
            "--showlocals", f"--llm-log={engine.log}", f"--llm-server-args=--api-key {OWN}",
            **environment(),
        )  # fmt: skip
    engine.log.rename(directory.parent / "log-of-the-server")
    (directory / "printed").write_text(printed)
    return directory


@pytest.fixture(scope="module")
def told_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same where every answer is a refusal that repeats them."""
    directory = tmp_path_factory.mktemp("told-off")
    engine = vllm()

    def script(connection: Connection, request: Request) -> None:
        if request.target == "/v1/chat/completions":
            connection.head(status="401 X", content_type="application/json")
            connection.send(f'{{"error": {{"message": "no such key: {SAID}"}}}}')
        else:
            engine.script(connection, request)

    with serving(script) as server:
        printed = run_pytest(
            directory, f"--llm-url={server.base_url}", "-k", "sse or ttft", "--junit-xml=found.xml",
            "-rA", "--showlocals", f"--llm-server-args=--api-key={OWN}", **environment(),
        )  # fmt: skip
    (directory / "printed").write_text(printed)
    return directory


def found_in(directory: Path) -> dict[str, list[str]]:
    """The forms in each file."""
    found = {}
    for path in filter(Path.is_file, directory.rglob("*")):
        content = path.read_bytes()
        there = [
            f"{name} of {secret}"
            for secret in SECRETS
            for name, form in FORMS.items()
            if form(secret).encode() in content
            or json.dumps(form(secret))[1:-1].encode() in content
        ]
        if there:
            found[str(path.relative_to(directory))] = there
    return found


def test_a_run_that_measures(measured: Path) -> None:
    names = {path.name for path in measured.rglob("*")}
    assert {"sse_raw.txt", "chunks.jsonl", "sentence.json", "server.log", "run.json"} <= names
    assert {"printed", "found.xml", "summary.md", "health.json", "props.json"} <= names
    assert found_in(measured) == {}
    printed = (measured / "printed").read_text()
    assert "4 passed" in printed
    assert printed.count("a secret (the API key, a header of yours) stood") == 1
    written = b"".join(path.read_bytes() for path in measured.rglob("*") if path.is_file())
    for secret in (b"pw-of-me", b"pw-of-it", b'"short"'):
        assert secret not in written
    index = json.loads((measured / "voice/llm/run.json").read_text())
    options = index["runs"][index["run"]]["options"]
    assert options["body"] == {
        "extra": {"hfToken": "<secret>"},
        "tokens": [{"api_key": "<secret>"}],
    }
    assert options["server_args"] == ["--api-key", "<secret>"]


def test_what_is_split_over_pieces_is_starred_in_what_is_derived(measured: Path) -> None:
    lines = (measured / "voice/llm/chunks.jsonl").read_text().splitlines()
    text = "".join(json.loads(line)["text"] for line in lines)
    assert text.endswith(f"and {'*' * len(KEY)} and ")
    assert json.loads((measured / "voice/llm/sentence.json").read_text())["text"] == text
    head = (measured / "voice/llm/evidence/sse/stream-1.jsonl").read_text().splitlines()[0]
    assert json.loads(head)["masked"] > len(FORMS)
    headers = dict(json.loads(head)["response_headers"])
    assert headers["X-Echo"] == f"{'*' * len(KEY)} {'*' * len(quote(HEADER, safe=''))}"
    assert headers["X-Signed"] == "https://<secret>@h/x?sig=<secret>"


def test_what_is_starred_is_graded_as_it_was_judged(measured: Path) -> None:
    graded = run_pytest(measured, "--llm-grade=voice/llm", "-k", STEPS)
    assert "4 passed" in graded


@pytest.mark.parametrize("option", ["--llm-log=", "--llm-log-command=cat "])
def test_the_log_of_a_directory_made_by_hand(measured: Path, tmp_path: Path, option: str) -> None:
    """Its line is shown, by a session that has the key in its environment, too."""
    for name in ("cancel.json", "health.json", "sse_raw.txt"):
        (tmp_path / name).write_bytes((measured / "voice/llm" / name).read_bytes())
    log = measured.parent / "log-of-the-server"
    graded = run_pytest(
        tmp_path, "--llm-grade=.", "-k", "cancel", f"{option}{log}",
        f"--llm-server-args=--api-key {OWN}", **environment(),
    )  # fmt: skip
    assert "cancel task, id_task = 1, *****" in graded
    (tmp_path / "printed").write_text(graded)
    assert found_in(tmp_path) == {}


def test_a_secret_that_only_the_log_has(tmp_path: Path) -> None:
    engine = vllm()
    log = tmp_path / "log"

    def script(connection: Connection, request: Request) -> None:
        with log.open("a") as file:
            file.write(f"headers: {KEY}\ntask 1 | processing task\ncancel task, id_task = 1\n")
        engine.script(connection, request)

    log.touch()
    with serving(script) as server:
        args = (f"--llm-url={server.base_url}", "-k", "cancel", f"--llm-log={log}")
        printed = run_pytest(tmp_path, *args, LLM_API_KEY=KEY)
    assert printed.count("note: cancel: a secret (the API key, a header of yours) stood") == 1
    copied = (tmp_path / "voice/llm/server.log").read_bytes()
    assert copied == log.read_bytes().replace(KEY.encode(), b"*" * len(KEY))[-len(copied) :]


def test_a_run_that_is_refused(told_off: Path) -> None:
    for name in ("printed", "found.xml", "summary.md", "voice/llm/run.json"):
        assert "no such key: ******" in (told_off / name).read_text()
    assert found_in(told_off) == {}


@pytest.mark.parametrize(
    "args",
    [("-l", "-vv", "--tb=long"), ("-l", "--tb=native"), ("-o", "timeout_method=thread"), ("-l", "--full-trace")],
)  # fmt: skip
def test_a_test_that_is_stopped_in_the_middle(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    """With all locals shown: the client, its settings, what was sent and read."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    fixture = ""
    if "--full-trace" in args:  # shows pytest's own frames, with what a fixture of one's own gave
        monkeypatch.setenv("LLM_SERVER_ARGS", f"--api-key {OWN}")
    else:
        monkeypatch.setenv("OWN", OWN)
        fixture = (
            "import os, pytest\n"
            "@pytest.fixture(scope='session')\n"
            "def llm_server_args(): return ('--api-key', os.environ['OWN'])\n"
        )
    engine = vllm()

    def script(connection: Connection, request: Request) -> None:
        if request.target != "/v1/chat/completions" or request.body["max_tokens"] == 8:
            engine.script(connection, request)
            return
        connection.head()
        connection.send(f"data: {EVENT % SAID}\n\n")
        connection.wait_for_close(30)

    pytester.makepyfile(
        fixture + "def test_own(llm_client, llm_settings):\n"
        "    headers = llm_settings.headers\n"
        "    options, dialect, body = llm_settings, llm_client.dialect, llm_settings.body\n"
        "    key, state = llm_settings.api_key, dict(vars(llm_client))\n"
        "    llm_client.stream([{'role': 'user', 'content': 'hi'}])\n"
    )
    with serving(script) as server:
        result = pytester.runpytest_subprocess(f"--llm-url={server.base_url}", "--timeout=1", *args)
    printed = summary(result)
    assert "Timeout" in printed
    (pytester.path / "printed").write_text(printed)
    assert found_in(pytester.path) == {}


URLS = (
    "http://127.0.0.1:9/?api_key=S3CRET", "http://127.0.0.1:9/#S3CRET",
    "http://user:S3C/RET@127.0.0.1:9", "http://user:a@S3CRET@127.0.0.1:9",
    "http://user:S3CRET@127.0.0.1:99999", "user:S3CRET@127.0.0.1:9", "http:/user:S3CRET@h",
    "http://user:S3CRET", "http://user:b S3CRET@h", "http://h/?a@b&key=S3CRET",
    "http://127.0.0.1:1 http://u:S3CRET@h", "http://[S3CRET@", "https://?token=S3CRET",
)  # fmt: skip
WRONG = (
    *(("url", url) for url in URLS),
    ("upstream_url", URLS[2]),
    ("body", '{"api_key": "S3CRET"'),
    ("body", '{"api_key": "S3CRET", "stream": 1}'),
    ("server_args", "--api-key S3CRET 'x"),
    ("server_args", "--api-key 'S3CRET x"),
    ("server_args", "--api-key S3CRET --port 1"),
    ("header", "Authorization: S3CRET"),
    ("log_command", "false --token=S3CRET http://u:S3CRET@h 'Authorization: Bearer S3CRETS3CRET'"),
    ("log_command", "echo --token=S3CRETS3CRET 'x"),
    ("log_command", "nothing-of-that-name --api-key S3CRETS3CRET"),
    ("log_command", "sh -c 'echo $1; exit 3' --token S3CRETS3CRET"),
)


@pytest.mark.parametrize(
    ("option", "value", "place"),
    [
        *((*wrong, "environment") for wrong in WRONG),
        *((*WRONG[number], "ini") for number in (0, 2, 13, 14, 17, 20)),
    ],
)
def test_a_wrong_option_is_not_repeated(
    refused: Run,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    value: str,
    place: str,
) -> None:
    monkeypatch.delenv("LLM_SERVER_ARGS")
    if place == "ini":
        pytester.makeini(f"[pytest]\nllm_{option} = {value}\n")
    else:
        monkeypatch.setenv(f"LLM_{option.upper()}", value)
    with contextlib.ExitStack() as stack:
        url = []
        if option != "url":  # a log is asked for where there is a server
            url = [f"--llm-url={stack.enter_context(serving(vllm().script)).base_url}"]
        result = refused(*url, "-k", "sse")
    assert result.ret != pytest.ExitCode.OK
    printed = summary(result)
    assert f"llm_{option} in" in printed or f"environment variable LLM_{option.upper()}" in printed
    assert "S3C" not in printed
    assert "RET@" not in printed


@pytest.mark.parametrize("command", [["--api-key", OWN], [f"--api-key={OWN}"]])
def test_a_server_that_does_not_start_and_tells_of_its_key(
    tmp_path: Path, command: list[str]
) -> None:
    program = tmp_path / "server.py"
    program.write_text(f"import sys; print(sys.argv); print({SAID!r}); sys.exit(3)")
    args = hide_arguments([sys.executable, str(program), *command])
    with (
        pytest.raises(ServerStartError) as error,
        guarded(args, tmp_path / "log", "http://127.0.0.1:9", 9.0, lambda _: None),
    ):
        pass
    assert "ended with status 3" in str(error.value)
    assert "*****" in str(error.value)
    assert not any(form(OWN) in str(error.value) for form in FORMS.values())
    assert OWN not in repr(args)
