"""How true is the clock? Every reader on every shape, interleaved; a table of ratios to the limit.

`python bench/accuracy/run.py [ROUNDS]` prints Markdown. Times differ from machine to machine;
what is compared are readers within a round, one after another on the same emitter.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from emitter import SHAPES
from readers import READERS

HERE = Path(__file__).parent
LIMIT = "recv loop"
COLUMNS = (
    "reader", "delay p50", "/ limit", "p99", "max", "first piece", "TTFT error", "CPU a piece",
    "peak", "lost",
)  # fmt: skip


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def read_once(name: str, port: int, number: int) -> dict[str, Any]:
    """One reader, one stream, a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / "readers.py"), name, str(port), str(number)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{name} on {SHAPES[number].name}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    emitter = subprocess.Popen(
        [sys.executable, str(HERE / "emitter.py")], stdout=subprocess.PIPE, text=True
    )
    assert emitter.stdout is not None
    try:
        port = int(emitter.stdout.readline())
        for number, shape in enumerate(SHAPES):
            results: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for turn in range(rounds):
                names = list(READERS)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    results[name].append(read_once(name, port, number))
            print_shape(shape.name, shape.events, results)
    finally:
        emitter.kill()
        emitter.wait()


def print_shape(name: str, events: int, results: dict[str, list[dict[str, Any]]]) -> None:
    """The table of one shape."""
    print(f"\n### {name} ({events} events)\n")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    limit = statistics.median(statistics.median(r["delays_ms"]) for r in results[LIMIT])
    for reader, runs in results.items():
        delays = [delay for run in runs for delay in run["delays_ms"]]
        p50 = statistics.median(statistics.median(run["delays_ms"]) for run in runs)
        first = statistics.median(run["delays_ms"][0] for run in runs)
        ttft = statistics.median(run["ttft_error_ms"] for run in runs)
        lost = sum(events - run["pieces"] for run in runs)
        order = "" if all(run["in_order"] for run in runs) else ", misordered"
        print(
            f"| {reader} | {p50 * 1000:.0f} µs | {p50 / limit:.2f} | "
            f"{percentile(delays, 0.99) * 1000:.0f} µs | {max(delays):.1f} ms | "
            f"{first * 1000:.0f} µs | {ttft:.2f} ms | "
            f"{statistics.median(run['cpu_us_a_piece'] for run in runs):.0f} µs | "
            f"{max(run['peak_mb'] for run in runs):.0f} MB | {lost}{order} |"
        )


if __name__ == "__main__":
    main()
