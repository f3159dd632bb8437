"""How often a ratio is called worse than an earlier run's, on recorded noise.

`python bench/noise/baseline.py SERIES.json [RUNS]`: two runs begin at random places of a recorded
series each and give their rounds the next factors, five requests a round as in the cache step, of
which two make the ratio; the true change is set. One sample is two requests after five equal ones,
which stand for its noise. At a true change of 1 every "worse" is a false alarm, at 2 every "holds".
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from simulate import SEED, interval

from pytest_llm_latency.compare.noise import change, side, spread

TRUE_CHANGES = (1.0, 1.5, 2.0, 3.0, 100.0)
ROUNDS = (5, 10, 3, 1)
TOLERANCE = 0.25
MISSED = 2.0  # a change that must not be called none
REQUESTS_A_ROUND = 5


def one_run(
    factors: list[float], rounds: int, true_ratio: float, draw: random.Random
) -> tuple[list[float], float | None]:
    """(the ratio by round, the spread of five equal requests before them)."""
    place = draw.randrange(len(factors))

    def following() -> Iterator[float]:
        while True:
            nonlocal place
            place = (place + 1) % len(factors)
            yield factors[place]

    after = following()
    equal = [next(after) for _ in range(5)]
    ratios = []
    for _ in range(rounds):
        legs = [next(after) for _ in range(REQUESTS_A_ROUND)]
        ratios.append(true_ratio * legs[2] / legs[1])
    return ratios, spread(equal)


def cell(name: str, here: list[float], there: list[float], rounds: int, runs: int) -> str:
    """A row of the table: each true change on the same noise."""
    shares, held = [], []
    for true_change in TRUE_CHANGES:
        draw = random.Random(f"{SEED} {name} {rounds}")
        worse = well = 0
        for _ in range(runs):
            found = side(*one_run(here, rounds, true_change, draw))
            base = side(*one_run(there, rounds, 1.0, draw))
            assert found is not None, "five equal requests tell the noise of one"
            assert base is not None
            judged = change(found, base, TOLERANCE)
            worse += judged.is_worse
            well += judged.is_no_worse
        if true_change == 1.0:
            shares.append(f"{worse} of {runs:,}: {interval(worse, runs)}")
            held.append(f"{well / runs:.1%}")
        else:
            shares.append(f"{worse / runs:.1%}")
            if true_change == MISSED:
                held.append(f"{well} of {runs:,}: {interval(well, runs)}")
    return f"| {rounds} | {name} | " + " | ".join([*shares, *held]) + " |"


def main() -> None:
    """Print Markdown."""
    recorded = json.loads(Path(sys.argv[1]).read_text())["factors"]
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    pairs = [(name, name, name) for name in recorded]
    pairs += [(f"quiet there, {name} here", "quiet", name) for name in recorded if name != "quiet"]
    print(f"{runs:,} pairs of runs a row, tolerance {TOLERANCE}, seed {SEED}\n")
    changes = " | ".join(f"x{value:g}" for value in TRUE_CHANGES[1:])
    print(f"| rounds | load | false alarms | {changes} | holds at x1 | wrongly at x{MISSED:g} |")
    print("|---|---|---|" + "---|" * (len(TRUE_CHANGES) + 1))
    with ProcessPoolExecutor() as pool:
        rows = [
            pool.submit(cell, name, recorded[here], recorded[there], rounds, runs)
            for rounds in ROUNDS
            for name, there, here in pairs
        ]
        for row in rows:
            print(row.result(), flush=True)


if __name__ == "__main__":
    main()
