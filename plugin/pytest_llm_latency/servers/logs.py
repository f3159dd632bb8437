"""Where a server's log is read from: a file, a command's output, or nowhere.

It returns bytes and does not interpret them.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from ..errors import ConfigError
from ..masking import Mask
from ..secrecy import Hidden

_COMMAND_TIMEOUT_S = 30.0


class Log(Protocol):
    """A log that grows. `source` names it for messages."""

    @property
    def source(self) -> str: ...

    def size(self) -> int:
        """Bytes so far. Raises ConfigError where the log cannot be read."""
        ...

    def read(self, start: int) -> bytes:
        """What came after the first `start` bytes; all of it if the log is shorter than that
        (it was rotated). Raises ConfigError where the log cannot be read."""
        ...


@dataclass(frozen=True)
class FileLog:
    """The log is a file."""

    path: Path
    source: str

    def size(self) -> int:
        try:
            with self._open() as file:
                return file.seek(0, 2)
        except OSError as error:
            raise self._unreadable(error) from None

    def read(self, start: int) -> bytes:
        try:
            with self._open() as file:
                if file.seek(0, 2) >= start:
                    file.seek(start)
                else:
                    file.seek(0)
                return file.read()
        except OSError as error:
            raise self._unreadable(error) from None

    def _open(self) -> BinaryIO:
        """A pipe is not waited for: nobody may write into it."""
        file = os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb")
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise ConfigError(f"{self.source}: {self.path} is not a regular file")
        return file

    def _unreadable(self, error: OSError) -> ConfigError:
        return ConfigError(f"{self.source}: cannot read {self.path}: {error.strerror}")


@dataclass(frozen=True)
class CommandLog:
    """The log is what a command prints (both its outputs): `docker logs NAME`. `mask` stars what
    no message may hold."""

    command: str = field(repr=False)
    source: str
    mask: Mask = field(default_factory=Mask, repr=False)

    def size(self) -> int:
        return len(self._run())

    def read(self, start: int) -> bytes:
        printed = self._run()
        return printed[start:] if len(printed) >= start else printed

    def _run(self) -> bytes:
        try:
            done = subprocess.run(
                [Hidden(a) if self.mask.text(a) != a else a for a in shlex.split(self.command)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            command = self.mask.words(self.command)
            raise ConfigError(
                f"{self.source}: {command!r} failed: {self.mask.words(str(error))}"
            ) from None
        if done.returncode != 0:
            words = self.mask.words(done.stdout.decode("utf-8", "replace")).strip()[-200:]
            command = self.mask.words(self.command)
            raise ConfigError(
                f"{self.source}: {command!r} ended with status {done.returncode}: {words}"
            )
        return done.stdout


class RunLog:
    """The part of a log that was written since this object was made, its secrets starred by
    `mask`: the bytes stay as many."""

    def __init__(self, log: Log, mask: Mask | None = None) -> None:
        self._log = log
        self._mask = mask or Mask()
        self._start = log.size()

    @property
    def source(self) -> str:
        return self._log.source

    def size(self) -> int:
        """Bytes of the part so far."""
        return max(0, self._log.size() - self._start)

    def read(self, start: int = 0) -> bytes:
        """The part, from its byte `start` on."""
        return self._mask.data(self._log.read(self._start + start))
