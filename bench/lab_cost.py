"""What does the lab cost beside the measuring itself?

Runs the lab in this process and prints, as JSON, its wall time, the time in which a request or
the wait for a slot was under way, the rest, and this process's peak memory (Linux; the server
is a process of its own). Arguments go to pytest, e.g. --llm-gguf=FILE.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import pytest


def peak_mb() -> float:
    """This process's peak resident memory, in MB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def measuring_ms(directory: Path) -> float:
    """Milliseconds of all recorded requests and of all waiting for a slot."""
    total = 0.0
    for path in (directory / "evidence").rglob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
        if path.name.endswith(".polls.jsonl"):
            total += max((row["answered_ms"] for row in rows), default=0.0)
        else:
            total += rows[-1]["t_ms"]
    return total


def main() -> int:
    """Run and print."""
    with tempfile.TemporaryDirectory() as directory:
        begun = time.perf_counter()
        status = pytest.main(
            ["--pyargs", "test_llm_latency", "-q", f"--llm-artifacts={directory}", *sys.argv[1:]]
        )
        wall_s = time.perf_counter() - begun
        measuring_s = measuring_ms(Path(directory)) / 1000.0
    figures = {
        "wall_s": round(wall_s, 2),
        "measuring_s": round(measuring_s, 2),
        "rest_s": round(wall_s - measuring_s, 2),
        "peak_memory_mb": round(peak_mb(), 1),
    }
    print(json.dumps(figures))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
