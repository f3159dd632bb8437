"""Checks of the cache step's files where they were made by hand. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...evidence.artifacts import Cache, PrefillRow
from ...evidence.timeline import COLD_SHARE
from ...verdicts.verdict import Cause, count, milliseconds
from ..by_hand import Given, Problem, same_question


def first_cold(given: Given) -> Problem:
    row, cache = given.longest, given.cache
    if row is None or row.prompt_n is None or cache is None or cache.first.prompt_n is None:
        return None
    first = cache.first.prompt_n
    if first >= COLD_SHARE * row.prompt_n:
        return None
    second = cache.second.prompt_n
    if second is not None and second >= COLD_SHARE * row.prompt_n:
        return (
            "wrong-leg",
            f"cache.json: first.prompt_n: found {first:,}, and second.prompt_n {second:,}; "
            "expected the cold leg first: are the two swapped?",
        )
    return (
        "not-cold",
        f"cache.json: first.prompt_n: found {first:,}, expected about {row.prompt_n:,}, because "
        f"prefill.json processed so many of the same prompt: the first leg was warm already; ask "
        "the short question ('hi', cache off) before it, or restart the server",
    )


def changed_cold(given: Given) -> Problem:
    cache = given.cache
    if cache is None or cache.first.prompt_n is None or cache.changed_prefix.prompt_n is None:
        return None
    whole = max(cache.first.prompt_n, (given.longest.prompt_n or 0) if given.longest else 0)
    changed = cache.changed_prefix.prompt_n
    if changed >= COLD_SHARE * whole:
        return None
    return (
        "not-cold",
        f"cache.json: changed_prefix.prompt_n: found {changed:,}, expected at least "
        f"{COLD_SHARE * whole:,.0f} (nine tenths of {whole:,}), because a prompt that differs from "
        "its first character on is processed anew: the changing line belongs at the very front of "
        "the system prompt; at its end it is no changed prefix",
    )


def cache_unit(given: Given) -> Problem:
    if given.cache is None or given.longest is None:
        return None
    return same_question(
        "cache.json: first.ttft_ms",
        given.cache.first.ttft_ms,
        "prefill.json's last ttft_ms",
        given.longest.ttft_ms,
    )


def cache_cause(cache: Cache, prefill: Sequence[PrefillRow] | None) -> Cause:
    """Why the second leg was no cheaper, as far as the numbers say."""
    given = Given(prefill=tuple(prefill) if prefill else None, cache=cache)
    found = first_cold(given)
    if found is not None:
        return Cause(*found)
    first, second = cache.first, cache.second
    faster = first.ttft_ms / max(second.ttft_ms, 1e-9)
    shown = f"cache.json: second.prompt_n: found {count(second.prompt_n)}"
    if first.prompt_n is None or second.prompt_n is None:
        return Cause("cache-never-hits", "the same prompt was not cheaper the second time")
    if second.prompt_n == first.prompt_n and faster > 3.0:
        return Cause(
            "wrong-count",
            f"{shown}, as in first, although ttft fell {faster:,.0f} times: these look like all "
            "tokens of the prompt (usage.prompt_tokens); expected timings.prompt_n, those that "
            "were processed now",
        )
    if second.prompt_n > first.prompt_n and first.prompt_n < second.prompt_n / 3:
        return Cause(
            "wrong-leg",
            f"{shown}, and first {count(first.prompt_n)}; expected the cold leg first: are the two "
            "swapped?",
        )
    if second.prompt_n < COLD_SHARE * first.prompt_n:
        return Cause(
            "cache-time",
            f"{shown}, and first {count(first.prompt_n)}: the prompt was reused, and still the "
            f"first text came no sooner (ttft_ms {second.ttft_ms:.6g}, and first "
            f"{first.ttft_ms:.6g}); expected a small part of it: was the server busy?",
        )
    if second.prompt_n != first.prompt_n:
        return Cause(
            "prompts-differ",
            f"{shown}, and first {count(first.prompt_n)}, expected a few of the same prompt: was "
            "it the same, character for character?",
        )
    return Cause(
        "cache-never-hits",
        f"{shown}, as in first, and ttft is about the same ({milliseconds(second.ttft_ms)} against "
        f"{milliseconds(first.ttft_ms)}): the prompt was processed again; ask with cache_prompt "
        "true, on one slot",
    )
