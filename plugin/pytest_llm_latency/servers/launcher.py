"""`voice-llm`: the lab's server in the background, from `up` to `down`.

The server process holds a lock on the state file: the lock says whether it lives, the file
only where. So no stale pid is ever believed, and no other process ever killed.
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from .. import sse
from ..errors import ConfigError, LatencyError, ServerError, ServerStartError
from ..secrecy import hide_arguments
from ..wire.client import Client
from .own_command import own_command, own_kind
from .process import POLL_S, environment, log_tail, port_is_taken, wait_until_healthy

DEFAULT_PORT = 8080
STATE_FILE = "state.json"
LOOK_S = 1.0
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


def state_dir() -> Path:
    """`$XDG_STATE_HOME/pytest-llm-latency`, by default below ~/.local/state."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "pytest-llm-latency"


def log_path() -> Path:
    """The log of the server that runs, or ran last."""
    return state_dir() / "server.log"


@contextlib.contextmanager
def _locked(operation: int, patience_s: float = 0.0) -> Iterator[tuple[int, bool]]:
    """(descriptor of the state file, whether the lock was free), for the length of the block."""
    try:
        state_dir().mkdir(parents=True, exist_ok=True)
        handle = os.open(state_dir() / STATE_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot use {state_dir()}: {error.strerror}") from None
    deadline = sse.now() + patience_s
    try:
        while True:
            try:
                fcntl.flock(handle, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                if sse.now() < deadline:
                    sse.pause(POLL_S)
                    continue
                yield handle, False
            else:
                yield handle, True
            return
    finally:
        os.close(handle)


def running() -> State | None:
    """The server that is running, None if there is none (or it is just being started)."""
    if not (state_dir() / STATE_FILE).exists():
        return None
    with _locked(fcntl.LOCK_SH) as (handle, free):  # shared: two that look do not see each other
        if free:
            return None
        try:
            return State(**json.loads(os.pread(handle, 65536, 0)))
        except (OSError, ValueError, TypeError):
            return None


def up(port: int, gguf: Path | None, deadline_s: float, args: Sequence[str]) -> str:
    """Start the server; return a sentence. Raises ConfigError, ServerStartError."""
    # One that looks (`running`) holds the lock for a moment.
    with _locked(fcntl.LOCK_EX, LOOK_S) as (handle, free):
        if not free:
            return _already(port, gguf)
        os.ftruncate(handle, 0)
        if port_is_taken(port):
            raise ConfigError(
                f"port {port} is in use by another program; choose one: voice-llm up --port N"
            )
        command = own_command(own_kind(gguf), gguf, port, hide_arguments(args))
        with _new_log() as log:
            # The lock goes with the process: it is held exactly as long as the server lives.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
                pass_fds=(handle,),
            )
        state = State(process.pid, port, command[command.index("--model") + 1])
        try:
            os.pwrite(handle, json.dumps(asdict(state)).encode("utf-8"), 0)
        except OSError as error:  # without it, `down` would not know the server
            process.kill()
            process.wait()
            raise ConfigError(f"cannot write into {state_dir()}: {error.strerror}") from None

    def died() -> str | None:
        status = process.poll()
        return None if status is None else f"the server ended with status {status}"

    try:
        wait_until_healthy(state.base_url, died, deadline_s, _show)
    except BaseException as error:
        process.kill()
        process.wait()
        if isinstance(error, ServerStartError):
            tail = log_tail(log_path(), command)
            raise ServerStartError(f"{error}; the end of its log:\n{tail}") from None
        raise
    finally:
        _show("")
    return f"running at http://localhost:{port} (pid {state.pid}, {Path(state.model).name})"


def _new_log() -> BinaryIO:
    try:
        return log_path().open("wb")
    except OSError as error:
        raise ConfigError(f"cannot write {log_path()}: {error.strerror}") from None


def _already(port: int, gguf: Path | None) -> str:
    state = running()
    if state is None:
        raise ConfigError("another voice-llm is just starting or stopping; try again")
    if state.port != port or (gguf is not None and str(gguf) != state.model):
        raise ConfigError(
            f"already running at {state.base_url} (pid {state.pid}); stop it first: voice-llm down"
        )
    return f"already running at {state.base_url} (pid {state.pid})"


def _show(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def down() -> str:
    """Stop the server, if there is one; return a sentence."""
    state = running()
    if state is None:
        return "not running"
    deadline = sse.now() + _STOP_WAIT_S
    how = signal.SIGTERM
    while running() == state:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(state.pid, how)
        if sse.now() > deadline:
            how = signal.SIGKILL
        sse.pause(POLL_S)
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
    if not log_path().exists():
        raise ConfigError("there is no log yet; start the server: voice-llm up")
    with log_path().open("rb") as log:
        while True:
            data = log.read()
            if data:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            elif not follow:
                return
            else:
                sse.pause(_FOLLOW_POLL_S)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 1 to 65535")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """The command `voice-llm`; returns its exit status."""
    parser = argparse.ArgumentParser(prog="voice-llm", description="The lab's LLM server.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    start = commands.add_parser("up", help="start it; return when it is healthy")
    start.add_argument("--port", type=_port, default=DEFAULT_PORT, help="default: %(default)s")
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
