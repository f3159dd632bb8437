"""Other processes that keep the machine busy, all the time or in spells."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

SPIN = "while True: pass"


@contextlib.contextmanager
def spinning(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many spinning processes while the block runs."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def busy(
    per_core: int, spells_s: tuple[float, float] | None = None, seed: int = 1
) -> Iterator[None]:
    """`per_core` spinning processes for every core while the block runs; with `spells_s` they
    spin and rest in turn, each for a random time between the two."""
    over = threading.Event()
    with spinning(per_core * (os.cpu_count() or 1)) as processes:

        def toggle() -> None:
            draw = random.Random(seed)
            stop = True
            while spells_s is not None and not over.wait(draw.uniform(*spells_s)):
                for process in processes:
                    process.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)
                stop = not stop

        spells = threading.Thread(target=toggle, daemon=True)
        spells.start()
        try:
            yield
        finally:
            over.set()
            spells.join()
