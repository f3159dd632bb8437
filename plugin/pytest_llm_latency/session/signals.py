"""SIGTERM and SIGHUP (a cancelled CI job, a closed terminal) end a measurement as Ctrl-C does.

By default they kill the process where it stands: no table, no page, no end of what was begun. The
handlers are there while a measuring test runs, and only where nobody has installed others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ending_as_by_ctrl_c() -> Iterator[None]:
    """Have these signals raise KeyboardInterrupt until the block ends. A second one kills."""
    if threading.current_thread() is not threading.main_thread():  # which has the handlers
        yield
        return
    pid, ours = os.getpid(), []

    def end(signum: int, _frame: object) -> None:
        signal.signal(signum, signal.SIG_DFL)
        if os.getpid() != pid:  # a process that a test has forked ends as it would
            os.kill(os.getpid(), signum)
        raise KeyboardInterrupt(signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_DFL:
            ours.append(signum)
            signal.signal(signum, end)
    try:
        yield
    finally:
        for signum in ours:
            if signal.getsignal(signum) is end:
                signal.signal(signum, signal.SIG_DFL)
