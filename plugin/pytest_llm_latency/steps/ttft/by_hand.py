"""Checks of the ttft step's files where they were made by hand. Pure."""

from __future__ import annotations

from ..by_hand import LAB_TOKENS, SECONDS, Given, Problem, in_seconds, same_question, server_time_ms


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
