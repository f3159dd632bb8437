"""Does a longer stream cost more than its bytes? CPU and memory against the number of pieces.

`python bench/accuracy/growth.py` plays 1,000 to 45,000 events of 90 bytes back to back; each
is read, derived and written as evidence in a process of its own, as a step of the lab does.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from emitter import Shape, emit
from readers import BODY

EVENTS = (1_000, 10_000, 45_000)  # an answer has 50,000 at most
ROUNDS = 3
SHAPES = [Shape(f"{events:,}", events, gap_ms=0.0, ttft_ms=5.0) for events in EVENTS]


def peak_kb() -> int:
    """The process's peak memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read(port: int, number: int) -> dict[str, float]:
    """One stream, read, derived, kept."""
    from pytest_llm_latency import sse
    from pytest_llm_latency.evidence.derive import derive
    from pytest_llm_latency.evidence.run_directory import RunDirectory
    from pytest_llm_latency.wire.client import Client
    from pytest_llm_latency.wire.dialect import Dialect
    from pytest_llm_latency.wire.exchange import Exchange

    sse.CHAT = f"/{number}"
    with tempfile.TemporaryDirectory() as directory:
        client = Client(
            f"http://127.0.0.1:{port}",
            dialect=Dialect(api_path=""),
            keep=RunDirectory(Path(directory), {}).keep,
        )
        memory, cpu = peak_kb(), time.process_time()
        timeline = derive(Exchange(client, "own/1").run(BODY))
        assert len(timeline.pieces) == SHAPES[number].events, timeline.error
        return {"cpu_s": time.process_time() - cpu, "memory_kb": peak_kb() - memory}


def main() -> None:
    """Print a table; a round is all sizes, one after another."""
    emitter = subprocess.Popen(
        [sys.executable, __file__, "emit"], stdout=subprocess.PIPE, text=True
    )
    assert emitter.stdout is not None
    found: list[list[dict[str, float]]] = [[] for _ in SHAPES]
    try:
        port = emitter.stdout.readline().strip()
        for _ in range(ROUNDS):
            for number in range(len(SHAPES)):
                command = [sys.executable, __file__, "read", port, str(number)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[number].append(json.loads(done.stdout))
    finally:
        emitter.kill()
        emitter.wait()
    print("| pieces | CPU a piece | memory a piece |\n|---|---|---|")
    for shape, runs in zip(SHAPES, found):
        cpu = min(run["cpu_s"] for run in runs) / shape.events
        memory = min(run["memory_kb"] for run in runs) / shape.events
        print(f"| {shape.events:,} | {cpu * 1e6:.1f} µs | {memory * 1024:.0f} bytes |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["emit"]:
        emit(SHAPES)
    elif sys.argv[1:2] == ["read"]:
        print(json.dumps(read(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        main()
