"""Two clocks, and how long this process waited for a core."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from .. import sse


def since_s(started: float) -> float:
    return sse.now() - started


def since_ms(started: float) -> float:
    return round(since_s(started) * 1000.0, 3)


def cpu_wait_ms_so_far() -> float | None:
    """How long this thread has had work and no core to do it on, so far; None where the system
    does not say (Linux does: Documentation/scheduler/sched-stats.rst of its sources)."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


_OTHER_CLOCK: Callable[[], float] | None = None
if hasattr(time, "clock_gettime"):
    _OTHER_CLOCK = functools.partial(
        time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    )
CLOCK_OFF_SHARE = 0.01
CLOCK_OFF_AT_LEAST_MS = 10.0


def clocks_s() -> tuple[float, float] | None:
    """(our clock, another of the system, which counts while the machine sleeps, too), read
    together; None where it has no other."""
    if _OTHER_CLOCK is None:
        return None
    for _ in range(5):  # this process may have to wait for a core between the two
        before, other, after = sse.now(), _OTHER_CLOCK(), sse.now()
        if after - before < 0.001:
            break
    return (before + after) / 2, other


def clock_off_ms_between(
    before: tuple[float, float] | None, after: tuple[float, float] | None
) -> float:
    """How much longer a stretch was by the other clock than by ours; 0 where they agree."""
    if before is None or after is None:
        return 0.0
    ours_ms, others_ms = ((b - a) * 1000.0 for a, b in zip(before, after))
    off_ms = others_ms - ours_ms
    agreed_ms = max(CLOCK_OFF_AT_LEAST_MS, CLOCK_OFF_SHARE * others_ms)
    return 0.0 if abs(off_ms) <= agreed_ms else round(off_ms, 3)
