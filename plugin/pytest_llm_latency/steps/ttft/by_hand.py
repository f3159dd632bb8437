"""Checks of the ttft step's files where they were made by hand. Pure."""

from __future__ import annotations

from ...evidence.artifacts import Ttft
from ...verdicts.verdict import Verdict, graded
from ..by_hand import LAB_TOKENS, SECONDS, Given, Problem, in_seconds, same_question, server_time_ms


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


def ttft_unit(given: Given) -> Problem:
    """The question of the sse step, asked again."""
    if given.ttft is None:
        return None
    server_ms = server_time_ms(given.stream)
    total_ms = given.ttft.total_p50
    if server_ms is not None:
        because = "sse_raw.txt has so many of the same question (prompt_ms + predicted_ms)"
        problem = in_seconds("ttft.json: total_p50", total_ms, server_ms, because)
        if problem is not None:
            return problem
    if not given.chunks:
        return None
    first_ms = given.chunks[0].t_ms
    if given.ttft.ttft_p50 <= first_ms < SECONDS[0] * given.ttft.ttft_p50:
        return None  # the very first request may wait, for a model that is loaded, say
    return same_question(
        "ttft.json: ttft_p50",
        given.ttft.ttft_p50,
        "chunks.jsonl's first t_ms",
        first_ms,
    )


def tokens_at_most(given: Given) -> Problem:
    for number, run in enumerate(given.ttft.runs if given.ttft else ()):
        if run.tokens is not None and run.tokens > LAB_TOKENS:
            return (
                "wrong-count",
                f"ttft.json: runs[{number}].tokens: found {run.tokens}, expected at most "
                f"{LAB_TOKENS}, because max_tokens is {LAB_TOKENS}; it is timings.predicted_n",
            )
    return None
