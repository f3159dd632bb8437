"""Runs whose pages are looked at, and a real Chromium to look with."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from engines import chunk, vllm
from playwright.sync_api import Browser, Page, Playwright, sync_playwright
from scripted import Connection, Request, relay, serving

from pytest_llm_latency.servers.own_command import own_command
from pytest_llm_latency.servers.process import environment, free_port, guarded

# As root, without the parts that ask the network.
CHROMIUM_ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# What a model, or a server, may say that wants to do something.
NASTY = (
    "<script>window.pwned = 1</script>",
    "</script><img src=x onerror='window.pwned = 1'>",
    '"><svg onload=window.pwned=1>',
    "[click](javascript:window.pwned=1) ",
    "{{ 7 * 7 }}{% raw %} ",
    "\x1b]0;pwned\x07\x1b[31mred\x1b[0m ",
    "\u202egnol\u202c \u2066a\u2069 ",
    "</blockquote></main> & &amp; &#60;b&#62; ",
    "| a | b |\n|---|---|\n# heading\n@somebody #1 https://example.org/ ",
    "\u2028\u2029\x00\x7f\x85 ",
    "Well. Then. ",
)
PIECES = 10_000


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="session")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    """The Chromium of the system."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "these tests need Chromium: apt-get install chromium"
    browser = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM_ARGS))
    yield browser
    browser.close()


@dataclass
class Opened:
    """A page that is open, what it said on the console, and what it asked for."""

    page: Page
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Callable[..., Opened]]:
    """`opened(path, width=390, color_scheme="dark")`: the page with its charts drawn."""
    contexts = []

    def open_page(
        path: Path, *, width: int = 1280, color_scheme: str = "light", bypass_csp: bool = False
    ) -> Opened:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=color_scheme,  # type: ignore[arg-type]
            bypass_csp=bypass_csp,
        )
        contexts.append(context)
        found = Opened(context.new_page())
        found.page.on("console", lambda message: found.console.append(message.text))
        found.page.on("pageerror", lambda error: found.console.append(str(error)))
        found.page.on("dialog", lambda dialog: found.console.append(f"dialog {dialog.message}"))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(path.as_uri())
        for chart in found.page.locator(".chart").all():
            chart.locator("svg").first.wait_for()
        return found

    yield open_page
    for context in contexts:
        context.close()


def run_lab(directory: Path, *args: str) -> Path:
    """The lab, its files in `directory`/llm; whatever the tests said."""
    done = suite_in(directory, f"--llm-artifacts={directory / 'llm'}", *args)
    assert (directory / "llm" / "report.html").exists(), done.stdout + done.stderr
    (directory / "out.txt").write_text(done.stdout + done.stderr)
    return directory / "llm"


def suite_in(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The installed suite, run in `directory`."""
    quiet = {"LLM_SERVER_ARGS": "-t 1", "GITHUB_STEP_SUMMARY": "", "GITHUB_ACTIONS": ""}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "test_llm_latency", "-p", "no:cacheprovider",
         "-p", "no:randomly", "-o", "addopts=", *args],
        cwd=directory, env={**environment(), **quiet}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="session")
def good_run(tmp_path_factory: pytest.TempPathFactory, slow_gguf: Path) -> Path:
    """All eight steps on the real server."""
    return run_lab(tmp_path_factory.mktemp("good"), f"--llm-gguf={slow_gguf}", "--llm-server=local")


@pytest.fixture(scope="session")
def broken_run(tmp_path_factory: pytest.TempPathFactory, slow_gguf: Path, short_kb: Path) -> Path:
    """Behind a proxy that turns the cache off, and keeps its reader's close for itself."""

    def uncached(request: Request) -> None:
        if (request.body or {}).get("stream"):
            request.body["cache_prompt"] = False

    directory, port = tmp_path_factory.mktemp("broken"), free_port()
    url, log = f"http://127.0.0.1:{port}", directory / "server.log"
    command = own_command("local", slow_gguf, port, ("-t", "1", "-np", "1"))
    with (
        guarded(command, log, url, 60.0, lambda _: None, environment()),
        serving(relay(url, uncached, passes_close=False)) as proxy,
    ):
        return run_lab(directory, f"--llm-url={proxy.base_url}", f"--llm-kb={short_kb}")


@pytest.fixture(scope="session")
def nasty_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server whose every word wants to do something."""
    engine = vllm()
    engine.models = (f"small{NASTY[0]}",)
    engine.needs_model = False
    engine.paths["/props"] = (
        200,
        {
            "model_path": "".join(NASTY),
            "total_slots": 1,
            "default_generation_settings": {"n_ctx": 100_000},
            "build_info": NASTY[1],
        },
    )

    def script(connection: Connection, request: Request) -> None:
        if request.target != "/v1/chat/completions" or not request.body.get("messages"):
            engine.script(connection, request)
            return
        if "Saturday" in request.body["messages"][-1]["content"]:
            connection.reply({"error": {"message": "".join(NASTY)}}, "500 X")
            return
        connection.chunked_head()
        for number in range(request.body.get("max_tokens", 16)):
            time.sleep(0.003)
            connection.chunk(chunk({"content": NASTY[number % len(NASTY)]}))
        connection.chunk(chunk({}, "length"))
        connection.chunk("data: [DONE]\n\n")
        connection.send("0\r\n\r\n")

    with serving(script) as server:
        return run_lab(tmp_path_factory.mktemp("nasty"), f"--llm-url={server.base_url}")


@pytest.fixture(scope="session")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An answer of 10,000 pieces."""
    engine = vllm()

    def script(connection: Connection, request: Request) -> None:
        if request.target != "/v1/chat/completions":
            engine.script(connection, request)
            return
        connection.chunked_head()
        for number in range(PIECES):
            if number % 20 == 0:
                time.sleep(0.002)
            connection.chunk(chunk({"content": f" word{number}"}))
        connection.chunk(chunk({}, "stop"))
        connection.chunk("data: [DONE]\n\n")
        connection.send("0\r\n\r\n")

    with serving(script) as server:
        url = f"--llm-url={server.base_url}"
        return run_lab(tmp_path_factory.mktemp("long"), url, "-k", "sse or sentence")
