"""Fixtures of the plugin's own tests: a small real model, and the real server on it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import tiny_model

from pytest_llm_latency.servers.own_command import own_command
from pytest_llm_latency.servers.process import free_port, guarded

# `nohup` and a job in a script's background hand these down as ignored, and a program that a test
# starts would then not see the Ctrl-C that it is sent.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A busy machine makes an example slow; that is no finding.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")

pytest_plugins = ["pytester", "pytest_llm_latency.plugin"]

# The page is looked at in a virtual environment of its own (`make page`).
collect_ignore = [] if importlib.util.find_spec("playwright") else ["browser"]

ROOT = Path(__file__).parents[2]
Serve = Callable[..., str]
# llama.cpp's threads spin on every core they have, and the small model's whole answer is over in
# 10 ms: the reader, left without a core, would see it arrive all at once, and rightly say so.
ONE_THREAD = ("-t", "1")


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing of the developer's own settings, servers and proxies reaches a test."""
    for name in list(os.environ):
        if name.startswith(("LLM_", "LLAMA_", "GITHUB_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LLM_LANG", "en")
    monkeypatch.setenv("LLM_SERVER_ARGS", " ".join(ONE_THREAD))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    # The other plugins that are installed here take as long to import as a short lab takes.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout,pytest_order,pytest_llm_latency.plugin")


@pytest.fixture
def every_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pytest that a test starts finds its plugins by itself, as a user's does."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    monkeypatch.delenv("PYTEST_PLUGINS")


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model: the whole lab in two seconds."""
    return tiny_model.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def slow_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A larger one whose 256 tokens outlast half a second."""
    path = tmp_path_factory.mktemp("model") / "slow.gguf"
    return tiny_model.write(path, layers=9, width=384, heads=6)


@pytest.fixture(scope="session")
def short_kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve documents of a line: a slow model's prefill of them is a second."""
    directory = tmp_path_factory.mktemp("kb")
    for number in range(1, 13):
        (directory / f"{number:02}.md").write_text(f"Room {number} opens at {number}.\n")
    return directory


@pytest.fixture
def serve(tmp_path: Path, tiny_gguf: Path) -> Iterator[Serve]:
    """Start the real server with options of one's own: `serve("--parallel", "4")` -> URL."""
    with contextlib.ExitStack() as stack:

        def start(*args: str, gguf: Path = tiny_gguf, **env: str) -> str:
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            command = own_command("local", gguf, port, [*ONE_THREAD, *args])
            log_path = tmp_path / f"server-{port}.log"
            stack.enter_context(
                guarded(command, log_path, url, 60.0, lambda _: None, {**os.environ, **env})
            )
            return url

        yield start
