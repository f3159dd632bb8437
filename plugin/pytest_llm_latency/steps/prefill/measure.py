"""Measures the prefill step."""

from __future__ import annotations

from ..asks import cold_legs
from ..bench import Bench
from ..rounds import Legs, in_rounds, leg_salt, measured_cold, prefix_of
from .enough import enough_of_prefill
from .result import PrefillResult, prefill_result


def measure_prefill(bench: Bench) -> PrefillResult:
    """Step 4: more and more documents, uncached; again until times and counts agree."""
    plan = bench.plan

    def measure(salt: str | None, number: int = 1) -> Legs:
        legs = {}
        # Up, down, up: what slows the first or the last of a round hits either end in turn.
        for docs in plan.doc_counts if number % 2 else plan.doc_counts[::-1]:
            bench.progress(f"prefill {docs} documents, round {number}")
            leg = f"{prefix_of(salt)}{docs}docs-{number}"
            legs[leg] = bench.ask("prefill", leg, leg_salt(salt))
        return legs

    legs, salt = measured_cold(bench, "prefill", cold_legs("prefill", plan), measure)
    is_enough = enough_of_prefill(bench.rounds)
    return in_rounds(legs, salt, measure, prefill_result, is_enough)
