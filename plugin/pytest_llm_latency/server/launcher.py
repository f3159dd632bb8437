"""`voice-llm`: the lab's server in the background, from `up` to `down`.

A lock that the server process holds says whether it lives; the state file beside it only
says where. So no stale pid is ever believed, and no other process ever killed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..client import Client
from ..errors import ConfigError, LatencyError, ServerError, ServerStartError
from .own import own_command, own_kind
from .process import log_tail, port_is_taken, wait_until_healthy

DEFAULT_PORT = 8080
_STOP_WAIT_S = 10.0
_FOLLOW_POLL_S = 0.1


@dataclass(frozen=True)
class State:
    """A server that `up` started."""

    pid: int
    port: int
    model: str

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        return state_dir() / "server.log"


def state_dir() -> Path:
    """`$XDG_STATE_HOME/pytest-llm-latency`, by default below ~/.local/state."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "pytest-llm-latency"


@contextlib.contextmanager
def _lock(operation: int) -> Iterator[int | None]:
    """The locked file's descriptor, None where another process holds the lock."""
    try:
        state_dir().mkdir(parents=True, exist_ok=True)
        handle = os.open(state_dir() / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot use {state_dir()}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield handle
    finally:
        os.close(handle)


def running() -> State | None:
    """The server that is running, None if there is none (or it is just being started)."""
    if not (state_dir() / "lock").exists():
        return None
    with _lock(fcntl.LOCK_SH) as lock:  # shared: two that look do not see each other
        if lock is not None:
            return None
        try:
            fields = json.loads(_state_path().read_text(encoding="utf-8"))
            return State(**fields)
        except (OSError, ValueError, TypeError):
            return None


def _state_path() -> Path:
    return state_dir() / "state.json"


def up(port: int, gguf: Path | None, deadline_s: float, args: Sequence[str]) -> str:
    """Start the server; return a sentence. Raises ConfigError, ServerStartError."""
    with _lock(fcntl.LOCK_EX) as lock:
        if lock is None:
            state = running()
            if state is None:
                raise ConfigError("another voice-llm is just starting or stopping; try again")
            if state.port != port:
                raise ConfigError(
                    f"already running at {state.base_url} (pid {state.pid}); "
                    "stop it first: voice-llm down"
                )
            return f"already running at {state.base_url} (pid {state.pid})"
        _state_path().unlink(missing_ok=True)
        if port_is_taken(port):
            raise ConfigError(
                f"port {port} is in use by another program; choose one: voice-llm up --port N"
            )
        command = own_command(own_kind(gguf), gguf, port, args)
        log_path = state_dir() / "server.log"
        with log_path.open("wb") as log:
            # The lock goes with the process: it is held exactly as long as the server lives.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock,),
            )
    model = command[command.index("--model") + 1]
    state = State(process.pid, port, model)
    _write_state(state)

    def died() -> str | None:
        status = process.poll()
        return None if status is None else f"the server ended with status {status}"

    try:
        wait_until_healthy(state.base_url, died, deadline_s, _show)
    except BaseException as error:
        process.kill()
        process.wait()
        if isinstance(error, ServerStartError):
            raise ServerStartError(f"{error}; the end of its log:\n{log_tail(log_path)}") from None
        raise
    finally:
        _show("")
    return f"running at http://localhost:{port} (pid {state.pid}, {Path(model).name})"


def _write_state(state: State) -> None:
    part = _state_path().with_suffix(".part")
    part.write_text(json.dumps(asdict(state)), encoding="utf-8")
    part.replace(_state_path())


def _show(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def down() -> str:
    """Stop the server, if there is one; return a sentence."""
    state = running()
    if state is None:
        return "not running"
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_WAIT_S
    while running() is not None:
        if time.monotonic() > deadline:
            os.kill(state.pid, signal.SIGKILL)
        time.sleep(0.02)
    return f"stopped (pid {state.pid})"


def status() -> tuple[str, bool]:
    """(a sentence, whether a healthy server is there)."""
    state = running()
    if state is None:
        return "not running", False
    try:
        healthy = Client(state.base_url).get("/health", timeout_s=5.0).status == 200
    except ServerError:
        healthy = False
    health = "healthy" if healthy else "not healthy yet"
    return f"running at {state.base_url} (pid {state.pid}, {state.model}): {health}", healthy


def follow_log(follow: bool) -> None:
    """Print the log; with `follow` go on as it grows, until Ctrl-C."""
    path = state_dir() / "server.log"
    if not path.exists():
        raise ConfigError("there is no log yet; start the server: voice-llm up")
    with path.open("rb") as log:
        while True:
            data = log.read()
            if data:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            elif not follow:
                return
            else:
                time.sleep(_FOLLOW_POLL_S)


def main(argv: Sequence[str] | None = None) -> int:
    """The command `voice-llm`; returns its exit status."""
    parser = argparse.ArgumentParser(prog="voice-llm", description="The lab's LLM server.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    start = commands.add_parser("up", help="start it; return when it is healthy")
    start.add_argument("--port", type=int, default=DEFAULT_PORT, help="default: %(default)s")
    start.add_argument("--gguf", type=Path, help="model file (default: the packaged Gemma 3 270M)")
    start.add_argument("--timeout", type=float, default=120.0, help="seconds (default: 120)")
    start.add_argument("args", nargs="*", help="after --: more options for the server")
    commands.add_parser("down", help="stop it")
    commands.add_parser("status", help="say whether it runs; exit status 3 if not")
    log = commands.add_parser("log", help="print its log")
    log.add_argument("-f", "--follow", action="store_true", help="go on as it grows")
    options = parser.parse_args(argv)
    try:
        if options.command == "up":
            print(up(options.port, options.gguf, options.timeout, options.args))
        elif options.command == "down":
            print(down())
        elif options.command == "status":
            sentence, healthy = status()
            print(sentence)
            return 0 if healthy else 3
        else:
            follow_log(options.follow)
    except LatencyError as error:
        print(f"voice-llm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `voice-llm log | head`: the reader has left, which is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
