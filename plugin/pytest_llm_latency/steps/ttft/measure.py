"""Measures the ttft step."""

from __future__ import annotations

import statistics

from ...evidence.derive import derive
from ...evidence.recording import Recording
from ..bench import Bench
from ..rounds import Legs, as_made, leg_salt, measured_cold, prefix_of
from .result import TtftResult, run_numbers, ttft_result


def measure_ttft(bench: Bench) -> TtftResult:
    """Step 3: the question of step 2, uncached, several times."""
    plan = bench.plan
    numbers = run_numbers(plan)

    def measure(salt: str | None) -> Legs:
        legs = {}
        for number in numbers:

            def ask(attempt: int, number: str = number) -> Recording:
                bench.progress(f"ttft {number}/{plan.ttft_runs}")
                leg = prefix_of(salt) + (number if attempt == 1 else f"{number}.{attempt}")
                legs[leg] = bench.ask("ttft", leg, leg_salt(salt))
                return legs[leg]

            as_made(bench, "ttft", ask, derive)
        return legs

    result = ttft_result(measured_cold(bench, "ttft", numbers, measure)[0])
    first, *later = (run.ttft_ms for run in result.ttft.runs)
    if later:
        later_ms = statistics.median(later)
        bench.note(
            "ttft", f"first text of run 1 after {first:.0f} ms, of the later {later_ms:.0f} ms"
        )
    return result
