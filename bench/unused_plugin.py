"""What does the installed plugin cost a suite that does not use it?

Runs `pytest --co` on a suite of one test, with the plugin and with `-p no:…`, interleaved, and
prints the median difference. No figure here is asserted: machines differ.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 20
PLUGIN = "pytest_llm_latency.plugin"


def collect_ms(directory: str, *args: str) -> float:
    """Wall time of one `pytest --co`, in milliseconds."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pytest", "--co", "-q", "-p", "no:cacheprovider", *args],
        cwd=directory,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return (time.perf_counter() - begun) * 1000.0


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "test_one.py").write_text("def test_one():\n    pass\n")
        collect_ms(directory)
        pairs = [
            (collect_ms(directory), collect_ms(directory, "-p", f"no:{PLUGIN}"))
            for _ in range(RUNS)
        ]
    with_plugin, without = (statistics.median(column) for column in zip(*pairs, strict=True))
    difference = statistics.median(a - b for a, b in pairs)
    print(f"pytest --co, median of {RUNS}: {with_plugin:.0f} ms with, {without:.0f} ms without")
    print(f"median difference of a pair: {difference:.1f} ms")


if __name__ == "__main__":
    main()
