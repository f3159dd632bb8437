"""Error rates of the rule that judges by times alone, on recorded noise.

`python bench/noise/simulate.py SERIES.json [RUNS]`: every run starts at a random place of a
recorded series and gives its legs, slow and fast in turn, the next factors; the true ratio of the
legs is set. Counted apart: holds, broken, inconclusive, and the rounds needed. The series were
recorded after the rule was fixed, and nothing was tuned on them.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pytest_llm_latency.verdicts.decision import ROUNDS_AT_MOST, decide_pairs

SEED = 20261129
TRUE_RATIOS = (1.0, 3.0, 5.6, 20.0)


def one_run(factors: list[float], true_ratio: float, draw: random.Random) -> tuple[str, int]:
    """(verdict, rounds)."""
    place = draw.randrange(len(factors))
    slow: list[float] = []
    fast: list[float] = []
    for number in range(ROUNDS_AT_MOST):
        first, second = (factors[(place + 2 * number + leg) % len(factors)] for leg in (0, 1))
        slow.append(true_ratio * first)
        fast.append(second)
        verdict = decide_pairs(slow, fast)
        if verdict is not None:
            return verdict, len(slow)
    return "inconclusive", len(slow)


def cell(name: str, factors: list[float], true_ratio: float, runs: int) -> str:
    """A row of the table."""
    draw = random.Random(f"{SEED} {name} {true_ratio}")
    found = [one_run(factors, true_ratio, draw) for _ in range(runs)]
    counts = Counter(verdict for verdict, _ in found)
    rounds = sorted(number for _, number in found)
    shares = (interval(counts[verdict], runs) for verdict in ("holds", "broken", "inconclusive"))
    return (
        f"| {name} | {true_ratio:g} | " + " | ".join(shares)
        + f" | {statistics.median(rounds):g}, {rounds[int(0.95 * runs)]} |"
    )  # fmt: skip


def interval(count: int, runs: int) -> str:
    """A share in percent with its 95 % interval (Wilson's)."""
    z = 1.96
    share = count / runs
    middle = (share + z * z / (2 * runs)) / (1 + z * z / runs)
    half = (
        z / (1 + z * z / runs) * math.sqrt(share * (1 - share) / runs + z * z / (4 * runs * runs))
    )
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return f"{share:.2%} ({low:.2%}-{high:.2%})"


def main() -> None:
    """Print Markdown."""
    recorded = json.loads(Path(sys.argv[1]).read_text())["factors"]
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    print(f"{runs:,} runs a row, seed {SEED}\n")
    print("| load | true ratio | holds | broken | inconclusive | rounds: median, 95 % |")
    print("|---|---|---|---|---|---|")
    with ProcessPoolExecutor() as pool:
        rows = [
            pool.submit(cell, name, factors, true_ratio, runs)
            for name, factors in recorded.items()
            for true_ratio in TRUE_RATIOS
        ]
        for row in rows:
            print(row.result(), flush=True)


if __name__ == "__main__":
    main()
