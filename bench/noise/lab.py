"""The lab on the real server while both cores are kept busy: what does it say, run after run?

`python bench/noise/lab.py [RUNS] [pytest's arguments]` prints a line per run: steps that passed,
causes of those that did not, seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from load import busy


def main() -> None:
    """Run and count."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    outcomes: Counter[str] = Counter()
    with busy(per_core=2):
        for number in range(1, runs + 1):
            with tempfile.TemporaryDirectory() as directory:
                begun = time.monotonic()
                subprocess.run(
                    [sys.executable, "-m", "pytest", "--pyargs", "test_llm_latency", "-q",
                     "-p", "no:cacheprovider", f"--llm-artifacts={directory}", *sys.argv[2:]],
                    capture_output=True, check=False,
                )  # fmt: skip
                index = json.loads((Path(directory) / "run.json").read_text("utf-8"))
                seconds = time.monotonic() - begun
            verdicts = [
                verdict
                for entry in index["steps"].values()
                for verdict in entry.get("verdicts", ())
            ]
            bad = [
                " ".join((v["step"], v["outcome"], v["cause"]["code"]))
                for v in verdicts if v["outcome"] != "holds"
            ]  # fmt: skip
            bad += [f"{step} failed: {one['error']}" for step, one in index["failures"].items()]
            words = ("broken", "failed", "inconclusive")
            outcome = next((word for word in words if any(word in line for line in bad)), "holds")
            outcomes[outcome] += 1
            print(f"run {number}: {outcome}, {seconds:.0f} s {'; '.join(bad)}", flush=True)
    print(dict(outcomes))


if __name__ == "__main__":
    main()
