"""Chooses the way of having a server and opens it: a URL, voice-llm's, or one of our own.

Everything after the block knows only a `Server`: a URL and where its log is.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .. import sse
from ..errors import ConfigError, OversizedAnswer, ServerError
from ..evidence.endpoints import lists_models
from ..evidence.recording import Reply
from ..servers import launcher
from ..wire.client import Client
from ..wire.refusals import knows_the_chat
from .logs import FileLog, Log
from .own_command import check_own, own_command, own_kind
from .process import POLL_S, Progress, free_port, guarded

# A container that was just started does not listen at once.
CONNECT_GRACE_S = 5.0

Kind = Literal["url", "voice-llm", "llama-server", "local"]


@dataclass(frozen=True)
class Wanted:
    """Which server the user asked for. `kind` "auto" chooses; `args` go to an own server."""

    kind: Kind | Literal["auto"] = "auto"
    url: str | None = None
    gguf: Path | None = None
    args: tuple[str, ...] = ()
    start_timeout_s: float = 120.0


@dataclass(frozen=True)
class Server:
    """A server that is ready, and where its log is."""

    base_url: str
    kind: Kind
    log: Log | None = None


def choose(wanted: Wanted) -> Kind:
    """The way that will be taken. Raises ConfigError where there is none; starts nothing."""
    if wanted.kind == "url" and wanted.url is None:
        raise ConfigError("--llm-server url needs --llm-url")
    if wanted.kind == "llama-server":
        if wanted.gguf is None:
            raise ConfigError("--llm-server llama-server needs a model: --llm-gguf FILE")
        if shutil.which("llama-server") is None:
            raise ConfigError("--llm-server llama-server: there is no llama-server on PATH")
    if wanted.kind == "voice-llm" and launcher.running() is None:
        raise ConfigError("--llm-server voice-llm: none is running; start it: voice-llm up")
    kind: Kind
    if wanted.kind != "auto":
        kind = wanted.kind
    elif wanted.url is not None:
        kind = "url"
    elif wanted.gguf is None and launcher.running() is not None:
        kind = "voice-llm"
    else:
        kind = own_kind(wanted.gguf)
    if kind in ("local", "llama-server"):
        check_own(kind, wanted.gguf)
    return kind


def describe(wanted: Wanted) -> str:
    """One line for the header: which server is meant."""
    kind = choose(wanted)
    if kind == "url":
        return f"{wanted.url}"
    if kind == "voice-llm":
        state = launcher.running()
        return f"voice-llm at {state.base_url}" if state else "voice-llm"
    model = wanted.gguf.name if wanted.gguf else "the packaged Gemma 3 270M"
    program = "llama-server" if kind == "llama-server" else "embedded llama.cpp"
    return f"{program} with {model}, started for this run"


@contextlib.contextmanager
def open_server(
    wanted: Wanted, log_path: Path, progress: Progress, client: Callable[[str, Kind], Client]
) -> Iterator[Server]:
    """Have the server for the length of the block; an own one logs to `log_path`. `client` gives
    a client of a server by URL and kind.

    Raises ConfigError, ServerStartError, ServerError.
    """
    kind = choose(wanted)
    if kind == "url":
        assert wanted.url is not None
        wait_for_url(client(wanted.url, kind), wanted.start_timeout_s, progress)
        yield Server(wanted.url, kind)
    elif kind == "voice-llm":
        state = launcher.running()
        if state is None:
            raise ConfigError("voice-llm has ended meanwhile; start it again: voice-llm up")
        wait_for_url(client(state.base_url, kind), wanted.start_timeout_s, progress)
        yield Server(state.base_url, kind, log=FileLog(launcher.log_path(), "voice-llm log"))
    else:
        port = free_port()
        base_url = f"http://127.0.0.1:{port}"
        command = own_command(kind, wanted.gguf, port, wanted.args)
        with guarded(command, log_path, base_url, wanted.start_timeout_s, progress):
            yield Server(base_url, kind, log=FileLog(log_path, "the server's output"))


def _short(ask: Callable[..., Reply], *args: Any) -> Reply:
    """An answer; one longer than any that is looked for here is empty. Raises ServerError."""
    try:
        return ask(*args)
    except OversizedAnswer:
        return Reply(200, b"", 0.0)


def wait_for_url(
    client: Client,
    deadline_s: float,
    progress: Progress,
    key_words: str = "--llm-api-key-file FILE or LLM_API_KEY",
) -> None:
    """Wait while a server loads its model; make sure that it is an LLM server. `key_words` say
    how it is given a key.

    Raises ServerError that says what was found instead.
    """
    base_url = client.base_url
    begun = sse.now()
    while True:
        waited_s = sse.now() - begun
        try:
            reply = _short(client.get, "/health")
        except ServerError:
            if waited_s > min(CONNECT_GRACE_S, deadline_s):
                raise
            progress(f"server not listening, {waited_s:.0f} s")
            sse.pause(0.1)
            continue
        if reply.status != 503:
            break
        if waited_s > deadline_s:
            raise ServerError(
                f"{base_url}/health still says 503 (loading) after {deadline_s:g} s; "
                "give it longer with --llm-start-timeout"
            )
        progress(f"server loading, {waited_s:.0f} s")
        sse.pause(max(POLL_S, 0.1))
    sample: str | None = None
    refused: Reply | None = None
    moved: Reply | None = None
    asked: list[str] = []
    for path in client.api_paths:
        models = _short(client.get, f"{path}/models")
        if lists_models(models):
            return
        # A gateway may have the chat alone; it then says what is wrong with an empty one.
        empty = client.dialect.body({"messages": [], "max_tokens": 1})
        chat = _short(client.post, path + sse.CHAT, empty)
        if knows_the_chat(chat):
            return
        refused = refused or next((r for r in (models, chat) if r.status in (401, 403)), None)
        moved = moved or next((r for r in (models, chat) if 300 <= r.status < 400), None)
        sample = sample or models.body[:60].decode("utf-8", "replace").strip().replace("\n", " ")
        found = "no model list" if models.status == 200 else f"HTTP {models.status}"
        asked.append(f"GET {path}/models gives {found}")
        asked.append(f"POST {path}{sse.CHAT} gives HTTP {chat.status}")
    if refused is not None:
        gave = "refuses the API key" if client.has_key else "wants an API key"
        raise ServerError(f"{base_url} {gave} (HTTP {refused.status}); give one with {key_words}")
    if moved is not None:
        raise ServerError(sse.redirect_words(moved.status, base_url, moved.location))
    raise ServerError(
        f"{base_url} is not an LLM server: {', '.join(asked)} ({sample!r}); --llm-url takes the "
        "base URL that an OpenAI client is given"
    )
