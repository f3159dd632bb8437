"""Runs a server's process and ends it when its parent is gone, in whatever way it went.

A program of its own (`python guard.py COMMAND …`): it holds the read end of a pipe whose
write end only the parent has, so that even `kill -9` of the parent is seen as end of file.
It must not import the package: it runs by its path.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading

_STOP_WAIT_S = 5.0
_PR_SET_PDEATHSIG = 1


def _die_with(guard_pid: int) -> None:
    """Linux: should the guard itself be killed, the kernel kills the server."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard_pid:  # it was killed before the kernel knew
        os._exit(1)


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        child.kill()


def main() -> int:
    """Run the command; return its exit status."""
    child = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        preexec_fn=functools.partial(_die_with, os.getpid()) if sys.platform == "linux" else None,
    )

    def stop_when_parent_is_gone() -> None:
        # os.read, not sys.stdin: a buffered reader's lock would hang the interpreter's exit.
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        _stop(child)

    def stop_when_told(_signum: int, _frame: object) -> None:
        threading.Thread(target=_stop, args=(child,), daemon=True).start()

    signal.signal(signal.SIGTERM, stop_when_told)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=stop_when_parent_is_gone, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
