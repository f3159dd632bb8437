"""Servers of other kinds: what can be measured is, the rest is skipped with the reason."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from engines import Engine, gateway, lm_studio, openai, router, vllm
from scripted import Connection, Request, relay, serving

from pytest_llm_latency.errors import ServerError
from pytest_llm_latency.wire.client import Client

from .conftest import Run, summary


@pytest.fixture
def run_json(pytester: pytest.Pytester) -> Callable[[], Any]:
    """The run.json of the directory as it is then."""
    return lambda: json.loads((pytester.path / "voice" / "llm" / "run.json").read_text("utf-8"))


def facts(index: Any) -> Any:
    """What run.json says of the server."""
    return index["runs"][index["run"]]["server"]


def measured(lab: Run, engine: Engine, *args: str) -> pytest.RunResult:
    with serving(engine.script) as server:
        return lab(f"--llm-url={server.base_url}", *args, own_server=False)


def test_vllm(lab: Run, run_json: Callable[[], Any]) -> None:
    engine = vllm()
    result = measured(lab, engine, "-k", "server or sse or ttft or cancel", "-rs")
    result.assert_outcomes(passed=3, skipped=1, deselected=4)
    result.stdout.fnmatch_lines(
        [
            "server: * (url), model small",
            "server: offers health, metrics, usage, cached tokens; not: props, slots, tokenize, timings; log: none",
            "server *health: HTTP 200 * holds *",
            "cancel *the slot goes idle * holds * by /metrics *",
            "SKIPPED*this server offers no /props",
        ]
    )
    assert {body["model"] for body in engine.bodies} == {"small"}
    offered = facts(run_json())["offers"]
    assert (offered["metrics"], offered["slots"], offered["cached_tokens"]) == (
        "/metrics",
        None,
        True,
    )


def test_a_part_of_a_prompt_that_is_never_reused(lab: Run) -> None:
    engine = vllm()
    engine.caches, engine.reuses_parts, engine.answers = True, False, 9
    result = measured(lab, engine, "-k", "cache")
    result.assert_outcomes(passed=1, deselected=7)
    result.stdout.fnmatch_lines(
        [
            "note: cache: changed_suffix: the prompts part at character *, and 0 reused: this server *"
        ]
    )


def test_a_cancel_that_vllm_never_sees(lab: Run) -> None:
    engine = vllm()
    with (
        serving(engine.script) as server,
        serving(relay(server.base_url, passes_close=False)) as proxy,
    ):
        result = lab(f"--llm-url={proxy.base_url}", "-k", "cancel", own_server=False)
    result.assert_outcomes(failed=1, deselected=7)
    assert "cause cancel-ignored" in summary(result)
    assert "--llm-upstream-url" in summary(result)


@pytest.mark.zoo
@pytest.mark.parametrize("first", ["max_tokens", "cache_prompt"])
def test_a_strict_api(lab: Run, first: str) -> None:
    engine = openai(first)
    result = measured(lab, engine, "-k", "sse or ttft or prefill")
    result.assert_outcomes(passed=3, deselected=5)
    assert "refuses cache_prompt" in summary(result)
    refused = [body for body in engine.bodies if body.keys() & engine.refuses.keys()]
    assert len(refused) <= 3
    asked = engine.bodies[len(refused) + 1 :]
    assert all("cache_prompt" not in body and "max_tokens" not in body for body in asked)
    assert {body["max_completion_tokens"] for body in asked} == {64, 32}


def test_a_server_that_answers_200_to_everything(lab: Run) -> None:
    result = measured(lab, lm_studio(), "-k", "server or sse", "-rs")
    result.assert_outcomes(passed=1, skipped=1, deselected=6)
    result.stdout.fnmatch_lines(["*no /health; /v1/models: the models are listed * holds *"])


def test_a_gateway_with_the_chat_alone(lab: Run) -> None:
    result = measured(lab, gateway(), "-k", "server or sse", "-rs")
    result.assert_outcomes(passed=1, skipped=1, deselected=6)
    assert "offers neither /health nor /v1/models" in summary(result)


@pytest.mark.zoo
def test_a_router_is_asked_by_model(lab: Run) -> None:
    result = measured(lab, router(), "-k", "server or cancel")
    result.assert_outcomes(passed=2, deselected=6)
    assert "props (/props?model=small), slots (/slots?model=small, is_processing)" in summary(
        result
    )


@pytest.mark.zoo
def test_a_model_must_be_named_where_there_are_several(lab: Run) -> None:
    engine = vllm()
    engine.models = ("small", "large")
    result = measured(lab, engine, "-k", "ttft")
    result.assert_outcomes(errors=1, deselected=7)
    assert "--llm-model=small (it has small, large)" in summary(result)
    measured(lab, engine, "-k", "ttft", "--llm-model=large").assert_outcomes(passed=1, deselected=7)


@pytest.mark.zoo
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_model_that_reasons(lab: Run, run_json: Callable[[], Any], field: str) -> None:
    """It gets room to reason, and the two first moments have two names."""
    engine = Engine(reasons=100, answers=20, reasoning_field=field)
    result = measured(lab, engine, "-k", "ttft")
    result.assert_outcomes(passed=1, deselected=7)
    index = run_json()
    assert facts(index)["offers"]["reasoning"] == field
    (files,) = (line for line in result.outlines if line.startswith("files: "))
    directory = Path(files.removeprefix("files: "))
    runs = json.loads((directory / "ttft.json").read_text("utf-8"))["runs"]
    for first_token_ms, run in zip(index["steps"]["ttft"]["first_token_ms"], runs):
        assert first_token_ms < run["ttft_ms"] / 2
    lab("--llm-grade=voice/llm", "-k", "ttft", own_server=False).assert_outcomes(
        passed=1, deselected=7
    )


@pytest.mark.zoo
def test_reasoning_that_is_not_streamed(lab: Run) -> None:
    """Eight tokens, and no text: it may need room."""
    engine = Engine(reasons=100, answers=20, reasoning_field="")
    result = measured(lab, engine, "-k", "ttft")
    result.assert_outcomes(passed=1, deselected=7)
    assert "reasoning (hidden)" in summary(result)


@pytest.mark.zoo
def test_a_cancel_of_a_model_that_reasons(lab: Run) -> None:
    """No slots, and nothing but reasoning at the close: the beat is that of any channel."""
    engine = vllm()
    engine.reasons = 10_000
    result = measured(lab, engine, "-k", "cancel")
    result.stdout.fnmatch_lines(["cancel *the slot goes idle * holds * by /metrics *"])


@pytest.mark.zoo
def test_a_gauge_that_others_keep_busy_after_a_while(lab: Run, pytester: pytest.Pytester) -> None:
    """Their requests are no proof against the server."""
    pytester.makepyfile(
        short_waits="from pytest_llm_latency.steps.cancel import watch\nwatch.IDLE_DEADLINE_S = 2.0"
    )
    engine = vllm()

    def script(connection: Connection, request: Request) -> None:
        if (request.body or {}).get("max_tokens") == 1:
            engine.others = 1
        engine.script(connection, request)

    with serving(script) as server:
        args = (f"--llm-url={server.base_url}", "-k", "cancel", "-p", "short_waits")
        result = lab(*args, own_server=False)
    result.assert_outcomes(failed=1, deselected=7)
    assert "inconclusive: the close stops the server" in summary(result)
    assert "cause gauge-never-idle" in summary(result)


@pytest.mark.zoo
def test_a_one_token_request_that_is_refused_proves_nothing(
    lab: Run, serve: Callable[..., str], slow_gguf: Path
) -> None:
    """It worked while it was tried out, and not after the close."""
    seen: list[int] = []

    def script(connection: Connection, request: Request) -> None:
        if (request.body or {}).get("max_tokens") == 1 and request.body.get("stream"):
            seen.append(1)
            if len(seen) > 11:
                connection.reply({"error": {"message": "slow down"}}, "429 Too Many Requests")
                return
        relay(url)(connection, request)

    url = serve("--no-slots", gguf=slow_gguf)
    with serving(script) as proxy:
        result = lab(f"--llm-url={proxy.base_url}", "-k", "cancel", own_server=False)
    assert "cause unanswered" in summary(result) or "cause cancel-unproven" in summary(result)
    assert "broken: the close" not in summary(result)


# --- doors ---


def test_headers_and_body_go_with_every_request(lab: Run, pytester: pytest.Pytester) -> None:
    engine = vllm()
    seen: list[str | None] = []

    def script(connection: Connection, request: Request) -> None:
        seen.append(request.headers.get("x-tenant"))
        engine.script(connection, request)

    with serving(script) as server:
        result = lab(
            f"--llm-url={server.base_url}", "-k", "ttft", "--llm-header=X-Tenant: hunter2-blue",
            '--llm-body={"temperature": 0, "chat_template_kwargs": {"enable_thinking": false}}',
            own_server=False,
        )  # fmt: skip
    result.assert_outcomes(passed=1, deselected=7)
    assert set(seen) == {"hunter2-blue"}
    assert all(body["temperature"] == 0 for body in engine.bodies)
    assert engine.bodies[0]["chat_template_kwargs"] == {"enable_thinking": False}
    written = [p.read_bytes() for p in (pytester.path / "voice").rglob("*") if p.is_file()]
    assert any(b"temperature" in content for content in written)
    assert not any(b"hunter2" in content for content in written)


@pytest.mark.parametrize("where", ["before the answer", "in the middle"])
def test_the_key_is_in_no_traceback(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A test that is timed out in the middle of a request, with all locals shown."""
    monkeypatch.setenv("LLM_API_KEY", "correct-horse")
    engine = vllm()

    def script(connection: Connection, request: Request) -> None:
        if request.target != "/v1/chat/completions" or request.body["max_tokens"] == 8:
            engine.script(connection, request)
            return
        if where == "in the middle":
            connection.head()
        connection.wait_for_close(30)

    pytester.makepyfile(
        "def test_own(llm_client): llm_client.stream([{'role': 'user', 'content': 'hi'}])"
    )
    with serving(script) as server:
        result = pytester.runpytest_subprocess(
            f"--llm-url={server.base_url}", "--showlocals", "--timeout=2", "--tb=long", "-o",
            "timeout_func_only=true", "--llm-header=X-Secret: battery-staple",
        )  # fmt: skip
    result.assert_outcomes(failed=1)
    assert "Timeout" in summary(result)
    assert "correct-horse" not in summary(result)
    assert "battery-staple" not in summary(result)


class _Tls(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(URL, certificate) of a server with a certificate of its own."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = HTTPServer(("127.0.0.1", 0), _Tls)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}", certificate
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_tls_is_verified_and_an_own_ca_is_an_option(tls_server: tuple[str, Path]) -> None:
    url, certificate = tls_server
    with pytest.raises(ServerError, match=r"(?i)certificate"):
        Client(url).get("/health")
    assert Client(url, ca=certificate).get("/health").status == 200


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("budget", "counts"), [("500", {"errors": 1}), ("800", {"failed": 1}), ("5000", {"passed": 1})]
)
def test_a_budget(lab: Run, budget: str, counts: dict[str, int]) -> None:
    """Too small for what is planned; too small for what it takes; enough."""
    engine = vllm()
    # Where it does not tell how much was cached, a salt is needed, and so twice the requests.
    engine.usage = False
    result = measured(lab, engine, "-k", "ttft", f"--llm-budget={budget}")
    result.assert_outcomes(**counts, deselected=7)
    assert "llm-latency: cost: by the lab's own plan at least 6 requests, " in summary(result)
    if "errors" in counts:
        assert "--llm-budget: 500 tokens are too few: the selected steps ask for" in summary(result)
        assert not engine.bodies
    if "failed" in counts:
        assert "--llm-budget: stopped before a request of about" in summary(result)


def test_deadlines_are_options(lab: Run) -> None:
    engine = vllm()

    def script(connection: Connection, request: Request) -> None:
        if request.target == "/v1/chat/completions" and request.body["max_tokens"] == 64:
            connection.wait_for_close(30)
        else:
            engine.script(connection, request)

    with serving(script) as server:
        result = lab(
            f"--llm-url={server.base_url}", "-k", "sse or sentence", "--llm-deadlines=first_byte=0.5",
            own_server=False,
        )  # fmt: skip
    result.assert_outcomes(passed=1, failed=1, deselected=6)  # the next step still runs
    assert "first byte deadline: no answer in 0.5 s" in summary(result)


def test_a_key_that_the_server_repeats(
    lab: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its words, its headers and its status line."""
    monkeypatch.setenv("LLM_API_KEY", "correct-horse")
    monkeypatch.setenv("LLM_HEADER", "X-Tenant: battery-staple")
    engine = vllm()

    def script(connection: Connection, request: Request) -> None:
        said = f"{request.headers.get('authorization')} {request.headers.get('x-tenant')}"
        if request.target == "/v1/chat/completions":
            body = json.dumps({"error": {"message": f"no such key: {said}"}})
            connection.send(
                f"HTTP/1.1 401 {said}\r\nX-Echo: {said}\r\nConnection: close\r\n\r\n{body}"
            )
        elif request.target == "/slots":
            connection.send(f"GARBAGE {said}\r\n\r\n")
        else:
            engine.script(connection, request)

    with serving(script) as server:
        result = lab(
            f"--llm-url={server.base_url}", "-k", "sse or ttft or cancel", own_server=False
        )
    assert "no such key: Bearer *************" in summary(result)
    written = [p.read_bytes() for p in (pytester.path / "voice").rglob("*") if p.is_file()]
    shown = [*written, summary(result).encode()]
    assert not any(
        secret in content for content in shown for secret in (b"correct-horse", b"battery-staple")
    )


@pytest.mark.zoo
def test_another_client_of_the_one_slot_is_no_dead_cache(
    lab: Run, serve: Callable[..., str]
) -> None:
    url = serve()
    stop = threading.Event()

    def other_client() -> None:
        client = Client(url)
        while not stop.wait(0.2):
            client.stream([{"role": "user", "content": "hi"}], 2)

    thread = threading.Thread(target=other_client)
    thread.start()
    try:
        result = lab(f"--llm-url={url}", "-k", "cache", own_server=False)
    finally:
        stop.set()
        thread.join()
    assert "broken: " not in summary(result)


# --- a server behind ---


def nothing(request: Request) -> None:
    pass


def no_cache(request: Request) -> None:
    if request.body and "cache_prompt" in request.body:
        request.body["cache_prompt"] = False


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("front", "behind", "words"),
    [
        (no_cache, nothing, "it holds (1 against 3"),
        (nothing, no_cache, "it is broken, too ("),
    ],
    ids=["the proxy", "the server"],
)
def test_who_is_to_blame(
    lab: Run,
    serve: Callable[..., str],
    front: Callable[[Request], None],
    behind: Callable[[Request], None],
    words: str,
) -> None:
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(serving(relay(serve(), behind)))
        proxy = stack.enter_context(serving(relay(upstream.base_url, front)))
        urls = (f"--llm-url={proxy.base_url}", f"--llm-upstream-url={upstream.base_url}")
        result = lab(*urls, "-k", "cache", own_server=False)
    result.assert_outcomes(failed=1, deselected=7)
    assert f"Measured directly at the server behind, {words}" in summary(result)
    # The files alone say the same.
    graded = lab("--llm-grade=voice/llm", "-k", "cache", own_server=False)
    assert f"Measured directly at the server behind, {words}" in summary(graded)
    graded.stdout.fnmatch_lines(["cache *run.json has these verdicts * holds *"])


@pytest.mark.zoo
def test_a_server_behind_that_cannot_be_measured(lab: Run, serve: Callable[..., str]) -> None:
    """Its failure is told in the files, too; and a later run without it blames nobody."""
    url = serve()

    def fails(connection: Connection, request: Request) -> None:
        if request.body and request.body.get("max_tokens") == 32:
            connection.reply({"error": {"message": "on fire"}}, "500 Oh No")
        else:
            relay(url)(connection, request)

    with serving(fails) as upstream, serving(relay(url, no_cache)) as proxy:
        urls = (f"--llm-url={proxy.base_url}", f"--llm-upstream-url={upstream.base_url}")
        result = lab(*urls, "-k", "cache", own_server=False)
        graded = lab("--llm-grade=voice/llm", "-k", "cache", own_server=False)
        for told in (result, graded):
            assert "The server behind, asked directly, fails, too: " in summary(told)
        graded.stdout.fnmatch_lines(["cache *run.json has these verdicts * holds *"])
        lab(urls[0], "-k", "cache", own_server=False)
        graded = lab("--llm-grade=voice/llm", "-k", "cache", own_server=False)
    assert "behind, asked directly" not in summary(graded)
    graded.stdout.fnmatch_lines(["cache *run.json has these verdicts * holds *"])


@pytest.mark.zoo
def test_a_stream_that_only_the_proxy_cuts_off(lab: Run, serve: Callable[..., str]) -> None:
    url = serve()

    def cuts(connection: Connection, request: Request) -> None:
        if request.body and request.body.get("max_tokens") == 120:
            connection.head()
            connection.send('data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
        else:
            relay(url)(connection, request)

    with serving(cuts) as proxy:
        urls = (f"--llm-url={proxy.base_url}", f"--llm-upstream-url={url}")
        result = lab(*urls, "-k", "sentence", own_server=False)
    result.assert_outcomes(failed=1, deselected=7)
    assert "cut short" in summary(result)
    assert "Measured directly at the server behind, it can be used: what stands" in summary(result)


# --- several targets ---


@pytest.mark.zoo
def test_two_targets(lab: Run, serve: Callable[..., str], pytester: pytest.Pytester) -> None:
    urls = [f"--llm-url={serve()}" for _ in range(2)]
    result = lab(*urls, "-k", "ttft or report or sse", "-v", own_server=False)
    result.assert_outcomes(passed=6, deselected=10)
    ran = [line.split()[0].rpartition("::")[2] for line in result.outlines if "PASSED" in line]
    steps = ["test_sse", "test_ttft", "test_report"]
    assert ran == [f"{step}[{target}]" for target in ("url1", "url2") for step in steps]
    result.stdout.fnmatch_lines(
        ["*LLM latency, url1*", "*LLM latency, url2*", "*2 targets*", " *url1 *url2", "ttft * 1 *"]
    )
    for target in ("url1", "url2"):
        assert (pytester.path / "voice" / "llm" / target / "report.json").exists()
    graded = lab("--llm-grade=voice/llm/url2", "-k", "ttft or report or sse", own_server=False)
    graded.assert_outcomes(passed=3, deselected=5)


@pytest.mark.zoo
@pytest.mark.usefixtures("every_plugin")
def test_two_targets_get_a_worker_each(
    lab: Run, serve: Callable[..., str], slow_gguf: Path
) -> None:
    urls = [f"--llm-url={serve(gguf=slow_gguf)}" for _ in range(2)]
    result = lab(*urls, "-n", "2", "-k", "ttft or sse", own_server=False)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        ["machine: load * on * cores, other targets beside it", "*2 targets*"]
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--llm-url=http://127.0.0.1:1/v1",), "give each URL once"),
        (("--llm-url=http://127.0.0.1:2", "--llm-log=x"), "several targets do not go with a log"),
        (("--llm-url=http://127.0.0.1:2", "--llm-api-key-file=key"), "several targets do not go with an API key"),
        (("--llm-upstream-url=http://127.0.0.1:3", "--llm-url=http://127.0.0.1:2"), "with a server behind"),
        (("--llm-url=",), "give a URL with scheme and host"),
        (("--llm-url=http://127.0.0.1:2", "--llm-header=X-Key: x"), "several targets do not go with headers"),
        (("--llm-url=http://127.0.0.1:2", "--llm-server=local"), "--llm-url: does not go with --llm-server=local"),
        (("--llm-body={\"temperature\": NaN}",), "a JSON object such as"),
        (("--llm-header=Authorization: Bearer x",), "no Authorization: a key comes from LLM_API_KEY or a file"),
        (("--llm-header=X-Conversation-Id: 1",), "a stream outlives its reader"),
        (("--llm-header=nonsense",), "headers such as 'X-Tenant: blue'"),
        (("--llm-body=[1]",), "a JSON object such as"),
        (("--llm-body={",), "a JSON object such as"),
        (('--llm-body={"stream": false}',), "a JSON object without stream, which is set here"),
        (("--llm-budget=many",), "a whole number of tokens, at least 1"),
        (("--llm-deadlines=slow=1",), "NAME=SECONDS, NAME being one of connect, first_byte, gap, total"),
        (("--llm-deadlines=gap=0",), "a number above 0"),
        (("--llm-ca=key",), "--llm-ca: no certificates in"),
        (("--llm-url=http://localhost:1",), "give each URL once"),
        (("--llm-upstream-url=http://localhost:1/v1",), "it is the server at --llm-url itself"),
        (("--llm-body={\"temperature\":\"\\ud800\"}",), "a JSON object such as"),
        (("--llm-ca=nowhere.pem",), "--llm-ca: there is no file"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(
    refused: Run, pytester: pytest.Pytester, args: tuple[str, ...], words: str
) -> None:
    (pytester.path / "key").write_text("correct-horse")
    given = () if args == ("--llm-url=",) else ("--llm-url=http://127.0.0.1:1",)
    result = refused(*given, *args)
    assert words in summary(result)
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    "arg",
    ["--llm-header=Authorization: Bearer correct-horse", "--llm-header=X-Key: correct-horse\nbad", "--llm-url=http://me:correct-horse@127.0.0.1:1"],
)  # fmt: skip
def test_a_refused_secret_is_not_shown(refused: Run, arg: str) -> None:
    result = refused(arg)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    printed = summary(result).replace(f"'{arg}'", "").replace(arg, "")  # the command that was run
    assert "correct-horse" not in printed


def test_an_upstream_without_a_server_before_it(refused: Run) -> None:
    result = refused("--llm-upstream-url=http://127.0.0.1:2")
    assert "--llm-upstream-url: give the URL before it: --llm-url" in summary(result)


# --- what a server limits ---


def test_a_minimum_of_tokens_holds_for_the_short_requests(lab: Run) -> None:
    """GPT-5 takes no fewer than 16: clearing asks for 8 by its plan, cancel for 1."""
    engine = vllm()
    engine.caches = True
    words = "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 8 instead."

    def script(connection: Connection, request: Request) -> None:
        if request.body and request.body.get("max_tokens", 16) < 16 and request.body["messages"]:
            engine.bodies.append(request.body)
            connection.reply({"error": {"message": words}}, "400 Bad Request")
            return
        engine.script(connection, request)

    with serving(script) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "cache or cancel", own_server=False)
    result.assert_outcomes(passed=2, deselected=6)
    assert "asked for 16 tokens or more" in summary(result)
    assert [body["max_tokens"] for body in engine.bodies if body["max_tokens"] < 16] == [8]


def limiting(engine: Engine, refuses: Callable[[int], bool], after: str) -> Any:
    """A server that refuses the n-th request of a chat where `refuses` says so."""
    seen: list[int] = []

    def script(connection: Connection, request: Request) -> None:
        if request.target.endswith("/chat/completions"):
            seen.append(1)
            if refuses(len(seen)):
                connection.send(
                    f"HTTP/1.1 429 X\r\nRetry-After: {after}\r\nConnection: close\r\n\r\n"
                    '{"error": {"message": "slow down"}}'
                )
                return
        engine.script(connection, request)

    return script


def test_a_limit_that_is_waited_for(lab: Run, run_json: Callable[[], Any]) -> None:
    """Every second request is refused at first: the verdicts, also of the files, are the same."""
    with serving(limiting(vllm(), lambda number: number % 2 == 0, "0.01")) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "sse or ttft", own_server=False)
    result.assert_outcomes(passed=2, deselected=6)
    assert summary(result).count("the server limits how often it is asked") == 1
    index = run_json()
    waits = index["runs"][index["run"]]["waits"]
    assert waits["times"] >= 6
    assert waits["seconds"] == pytest.approx(0.01 * waits["times"])
    evidence = [name for name in index["artifacts"] if name.startswith("evidence/ttft/")]
    assert len(evidence) == 5
    graded = lab("--llm-grade=voice/llm", "-k", "sse or ttft", own_server=False)
    graded.assert_outcomes(passed=2, deselected=6)


def test_a_limit_that_is_not_waited_for_proves_nothing(
    lab: Run, run_json: Callable[[], Any]
) -> None:
    with serving(limiting(vllm(), lambda number: number > 1, "3600")) as server:
        args = ("-k", "sse or ttft or cancel or report")
        result = lab(f"--llm-url={server.base_url}", *args, own_server=False)
    graded = lab("--llm-grade=voice/llm", *args, own_server=False)
    for told in (result, graded):
        told.assert_outcomes(failed=4, deselected=4)
        told.stdout.fnmatch_lines(
            ["*inconclusive: the step can be measured", "*cause rate-limited: *"]
        )
        assert "wants 3600 s of waiting (HTTP 429: slow down)" in summary(told)
        assert "broken" not in summary(told).lower()
        assert "Traceback" not in summary(told)
    assert run_json()["failures"]["ttft"]["verdicts"][0]["cause"]["code"] == "rate-limited"
    skipped = lab(
        "--llm-grade=voice/llm", "--llm-inconclusive=skip", "-k", "ttft", own_server=False
    )
    skipped.assert_outcomes(skipped=1, deselected=7)


def test_a_limit_after_the_closes_is_no_suffering(lab: Run) -> None:
    engine = vllm()

    def script(connection: Connection, request: Request) -> None:
        body = request.body or {}
        if body.get("max_tokens") == 16 and "patient" in body["messages"][-1]["content"]:
            connection.send(
                "HTTP/1.1 429 X\r\nRetry-After: 3600\r\nConnection: close\r\n\r\nslow down"
            )
        else:
            engine.script(connection, request)

    with serving(script) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "cancel", own_server=False)
    result.assert_outcomes(failed=1, deselected=7)
    assert "cause rate-limited" in summary(result)
    assert "next-request-suffers" not in summary(result)
