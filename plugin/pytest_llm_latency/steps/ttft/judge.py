"""Judges the ttft step: time to first token. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from ...evidence.artifacts import Ttft
from ...verdicts.stream import ttft_below_total, with_holds
from ...verdicts.verdict import Cause, Verdict, graded, holds_if, milliseconds
from .result import TtftResult


def judge_ttft(result: TtftResult) -> list[Verdict]:
    """Step 3."""
    runs = result.ttft.runs
    worst = max(runs, key=lambda run: run.ttft_ms / run.total_ms if run.total_ms else math.inf)
    below = all(run.ttft_ms < run.total_ms for run in runs)
    judged = [ttft_below_total(timeline, "ttft") for timeline in result.timelines]
    failed = [verdict for verdict in judged if verdict.outcome != "holds"]
    # One that is broken says more than one that is unclear.
    failed.sort(key=lambda verdict: verdict.outcome != "broken")
    if len(failed) <= len(judged) / 2:
        # Few of many say nothing; but numbers that do not keep the contract let nothing hold.
        failed = [replace(verdict, outcome="inconclusive") for verdict in failed if not below]
    medians = (
        statistics.median(run.ttft_ms for run in runs),
        statistics.median(run.total_ms for run in runs),
    )
    shown = (result.ttft.ttft_p50, result.ttft.total_p50)
    relation = "ttft < total in every run"
    numbers = f"closest: {milliseconds(worst.ttft_ms)} of {milliseconds(worst.total_ms)}"
    numbers = with_holds(numbers, result.timelines)
    one_piece = Cause("one-piece", "the answer came in one read")
    return [
        replace(failed[0], relation=relation, numbers=numbers)
        if failed
        else holds_if("ttft", relation, below, numbers, one_piece),
        holds_if(
            "ttft",
            "the p50 are the medians",
            medians == shown,
            f"p50 of {len(runs)}: ttft {milliseconds(shown[0])}, total {milliseconds(shown[1])}",
            _not_medians(result),
        ),
    ]


def _not_medians(result: TtftResult) -> Cause:
    """What the two p50 are instead."""
    artifact = result.ttft
    found = {
        "ttft_p50": (artifact.ttft_p50, [run.ttft_ms for run in artifact.runs]),
        "total_p50": (artifact.total_p50, [run.total_ms for run in artifact.runs]),
    }
    wrong = [
        median_words(f"ttft.json: {key}", value, times)
        for key, (value, times) in found.items()
        if value != statistics.median(times)
    ]
    return Cause("not-the-median", "; ".join(wrong))


def median_words(key: str, found: float, times: Sequence[float]) -> str:
    """What a p50 that is not the median is instead."""
    named = {
        "their mean": statistics.fmean(times),
        "the smallest": min(times),
        "the largest": max(times),
        "the middle one as they stand, not sorted": times[len(times) // 2],
        "the first": times[0],
    }
    which = next((name for name, value in named.items() if abs(value - found) < 1e-6), None)
    return (
        f"{key}: found {found:.6g}, expected {statistics.median(times):.6g}, the median: the "
        f"middle one when sorted{'' if which is None else f'; this is {which}'}"
    )


def runs_differ(artifact: Ttft) -> Verdict:
    """No run is a copy of another: two real runs do not agree to the last digit. Runs that are
    rounded to less than a microsecond may agree by chance, but not all of them."""
    runs = [(run.ttft_ms, run.total_ms) for run in artifact.runs]
    fine = [run for run in runs if any(value != round(value, 2) for value in run)]
    copied = len(set(fine)) < len(fine) or (len(runs) > 1 and len(set(runs)) == 1)
    problem = "ttft.json: runs agree to the last digit: copied?" if copied else None
    return graded("ttft", "no run is a copy of another", problem)


def five_runs(artifact: Ttft) -> Verdict:
    """The lab asks five times."""
    problem = f"ttft.json: {len(artifact.runs)} runs" if len(artifact.runs) != 5 else None
    if problem is None and any(run.tokens == 0 for run in artifact.runs):
        problem = "ttft.json: a run with 0 tokens"
    return graded("ttft", "there are five runs", problem)
