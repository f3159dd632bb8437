"""A server process of our own: started, watched until it is healthy, and surely ended.

It knows processes, ports and logs; which program runs and why is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from .. import sse
from ..errors import ServerError, ServerStartError
from ..masking import Mask
from ..secrecy import secrets_in, without_credentials
from ..wire.client import Client

GUARD = Path(__file__).with_name("guard.py")
POLL_S = 0.02
LOG_TAIL_LINES = 8
LOG_TAIL_BYTES = 8192
_STOP_WAIT_S = 10.0

Progress = Callable[[str], None]


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_taken(port: int) -> bool:
    """Whether something listens on the loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def log_tail(log_path: Path, command: Sequence[str]) -> str:
    """The last lines of a log, indented, for an error message; without the secrets of the
    command that wrote it."""
    mask = Mask(secrets_in(list(command)))
    try:
        with log_path.open("rb") as log:
            log.seek(0, 2)
            # What is cut off in front of the lines may be half a secret.
            log.seek(max(0, log.tell() - 2 * LOG_TAIL_BYTES))
            tail = mask.data(log.read())[-LOG_TAIL_BYTES:]
            lines = without_credentials(tail.decode("utf-8", "replace")).splitlines()
    except OSError as error:
        return f"  (no log: {error})"
    return "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:]) or "  (the log is empty)"


def wait_until_healthy(
    base_url: str,
    died: Callable[[], str | None],
    deadline_s: float,
    progress: Progress,
) -> None:
    """Poll /health until it says ok.

    `died` says how the process ended, None while it lives. Raises ServerStartError.
    """
    client = Client(base_url)
    begun = sse.now()
    last = "no answer yet"
    while True:
        end = died()
        if end is not None:
            raise ServerStartError(end)
        try:
            reply = client.get("/health", timeout_s=2.0)
            # A server that could not have the port has ended, and another one answers there.
            if reply.status == 200 and died() is None:
                return
            last = f"HTTP {reply.status}"
        except ServerError as error:
            last = str(error)
        waited_s = sse.now() - begun
        if waited_s > deadline_s:
            raise ServerStartError(f"{base_url} is not healthy after {deadline_s:g} s: {last}")
        progress(f"server loading, {waited_s:.0f} s")
        sse.pause(POLL_S)


def environment() -> dict[str, str]:
    """The environment for an own server: settings that are meant for the user's other
    llama.cpp servers (an API key above all) are left out."""
    prefixes = ("LLAMA_API_KEY", "LLAMA_ARG_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


@contextlib.contextmanager
def guarded(
    command: Sequence[str],
    log_path: Path,
    base_url: str,
    deadline_s: float,
    progress: Progress,
    env: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run `command` until the block ends; it is healthy when the block begins.

    Its output goes to `log_path`. It ends with this process, however this process ends.
    Raises ServerStartError with the log's last lines.
    """
    with _writable(log_path) as log:
        guard = subprocess.Popen(
            [sys.executable, str(GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=dict(env if env is not None else environment()),
            start_new_session=True,  # Ctrl-C is for pytest, which then ends the server
        )
    try:

        def died() -> str | None:
            status = guard.poll()
            if status is None:
                return None
            return (
                f"{Path(command[0]).name} ended with status {status} before it was healthy; "
                f"the end of its log:\n{log_tail(log_path, command)}"
            )

        try:
            wait_until_healthy(base_url, died, deadline_s, progress)
        except ServerStartError as error:
            if "end of its log" in str(error):
                raise
            raise ServerStartError(
                f"{error}; the end of its log:\n{log_tail(log_path, command)}"
            ) from None
        yield
    finally:
        _end(guard)


def _writable(log_path: Path) -> BinaryIO:
    try:
        # Never into a file that is there, which may be a link, or known by another name, too.
        log_path.unlink(missing_ok=True)
        return log_path.open("xb")
    except OSError as error:
        raise ServerStartError(f"cannot write the log {log_path}: {error.strerror}") from None


def _end(guard: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None
    guard.stdin.close()  # the guard ends the server at end of file
    try:
        guard.wait(_STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
