"""Checks of the prefill step's files where they were made by hand. Pure."""

from __future__ import annotations

from ...evidence.timeline import COLD_SHARE
from ..by_hand import Given, Problem, in_seconds

CLOCK_SHARE = 0.95  # a client's time may be so much below the server's own


def prefill_times(given: Given) -> Problem:
    timed = [
        (f"prefill.json[{number}]", row.ttft_ms, row.prompt_ms)
        for number, row in enumerate(given.prefill or ())
        if row.prompt_ms is not None
    ]
    because = "prompt_ms of the same row is the server's own time, a part of it"
    for units in (
        [in_seconds(f"{at}.ttft_ms", ttft, own, because) for at, ttft, own in timed],
        [in_seconds(f"{at}.prompt_ms", own, ttft, "ttft_ms is more") for at, ttft, own in timed],
    ):
        # (One row alone may have waited, for a model that was loaded, say.)
        if units and None not in units:
            return units[0]
    for where, ttft_ms, prompt_ms in timed:
        if ttft_ms < CLOCK_SHARE * prompt_ms:
            return (
                "before-the-prompt",
                f"{where}.ttft_ms: found {ttft_ms:.6g}, expected at least prompt_ms "
                f"{prompt_ms:.6g} (less 5 %), because the first text cannot come before the "
                "prompt is processed: is it the moment of the headers or of the role chunk?",
            )
    return None


def prefill_cold(given: Given) -> Problem:
    row, cache = given.longest, given.cache
    if row is None or row.prompt_n is None or cache is None or cache.first.prompt_n is None:
        return None
    if row.prompt_n >= COLD_SHARE * cache.first.prompt_n:
        return None
    return (
        "not-cold",
        f"prefill.json: prompt_n of {row.docs} documents: found {row.prompt_n:,}, expected at "
        f"least {COLD_SHARE * cache.first.prompt_n:,.0f}, because cache.json's first leg processed "
        f"{cache.first.prompt_n:,} tokens of the same prompt: a part came from the cache; ask with "
        "cache_prompt false",
    )
