"""Where a server's log is read from: a file, a command's output, or nowhere.

It returns bytes and does not interpret them.
"""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..errors import ConfigError

_COMMAND_TIMEOUT_S = 30.0


class Log(Protocol):
    """A log that grows. `source` names it for messages."""

    @property
    def source(self) -> str: ...

    def read(self) -> bytes:
        """All of it so far. Raises ConfigError where it cannot be read."""
        ...


@dataclass(frozen=True)
class FileLog:
    """The log is a file."""

    path: Path
    source: str

    def read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.source}: cannot read {self.path}: {error.strerror}") from None


@dataclass(frozen=True)
class CommandLog:
    """The log is what a command prints (both its outputs): `docker logs NAME`."""

    command: str
    source: str

    def read(self) -> bytes:
        try:
            done = subprocess.run(
                shlex.split(self.command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"{self.source}: {self.command!r} failed: {error}") from None
        if done.returncode != 0:
            words = done.stdout.decode("utf-8", "replace").strip()[-200:]
            raise ConfigError(
                f"{self.source}: {self.command!r} ended with status {done.returncode}: {words}"
            )
        return done.stdout


class RunLog:
    """The part of a log that was written since this object was made."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._before = log.read()

    @property
    def source(self) -> str:
        return self._log.source

    def read(self) -> bytes:
        """What came since. A log that was rotated in between is returned whole."""
        now = self._log.read()
        return now[len(self._before) :] if now.startswith(self._before) else now
