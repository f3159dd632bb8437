"""Judges the cache step: the cache effect. Pure."""

from __future__ import annotations

from ...verdicts.causes import INVISIBLE, OTHERS, clock_disagreement, clock_off, warm_leg
from ...verdicts.prompts import cache_miss, changed_prefix_hit
from ...verdicts.times import (
    judge_clock,
    no_count,
    not_counted,
    reasoning_hides,
    times_confirm,
    times_decide,
    to_first_tokens,
    with_spread,
)
from ...verdicts.verdict import Cause, Verdict, alike, count, holds_if, milliseconds
from .result import CACHE_COLD, CacheResult

CACHE_SOMETIMES = Cause(
    "cache-sometimes",
    "the same prompt was reused in some rounds and processed again in others: does somebody else "
    "use the server meanwhile, or do the requests go to several servers in turn?",
)
CACHE_ELSEWHERE = Cause(
    "cache-elsewhere",
    "the same prompt was processed again, and the one after it, with another end, was reused: do "
    "the requests go to several slots or servers in turn (try -np 1; before several servers, let "
    "one conversation always go to the same), or is a prompt cached only at second sight?",
)
COUNTS_AGAINST_TIMES = Cause(
    "counts-against-times",
    "by its counts the server processed the same prompt again, by the times it did not: a field "
    "that it fills and never counts (cached_tokens is always 0), or an answer from a cache of "
    "responses",
)
REPLAYED = Cause(
    "replayed-answer",
    "the same text came again in a tenth of the time that it takes to generate: something answers "
    "from a cache of responses, which says nothing of the cache of prompts. Turn it off, or "
    "measure the server behind",
)
CACHE_ROWS = tuple(
    f"second < {cold} in {what}" for cold in CACHE_COLD for what in ("prompt_n", "ttft")
)


def judge_cache(result: CacheResult) -> list[Verdict]:
    """Step 5: cached < uncached, by tokens and by time, against both cold legs."""
    artifact, second = result.cache, result.cache.second
    if not result.legs and not result.counted:
        return [no_count("cache", "cached < uncached in prompt_n")]
    missed = hit = result.why
    legs = result.legs
    all_legs = [leg for rounds in legs.values() for leg in rounds]
    if legs:
        for leg in legs["first"]:
            if leg.warm:
                warm = warm_leg("first", leg)
                return [
                    *alike("cache", CACHE_ROWS, "inconclusive", "no cold leg", warm),
                    *judge_clock("cache", all_legs),
                ]
        if result.counted and result.sometimes:
            shown = ", ".join(count(leg.prompt_n) for leg in legs["second"])
            numbers = f"{shown} tokens in {len(legs['second'])} rounds"
            rows = alike("cache", CACHE_ROWS, "inconclusive", numbers, CACHE_SOMETIMES)
            return [*rows, *judge_clock("cache", all_legs)]
        if result.counted and result.others and not all(map(result.hits, CACHE_COLD)):
            numbers = f"{count(second.prompt_n)} against {count(artifact.first.prompt_n)} tokens"
            rows = alike("cache", CACHE_ROWS, "inconclusive", numbers, OTHERS)
            return [*rows, *judge_clock("cache", all_legs)]
        unclear = _no_cache_of_prompts(result)
        if unclear is not None:
            numbers = with_spread(
                f"{milliseconds(result.prefilled_ms('second'))} against "
                f"{milliseconds(result.prefilled_ms('first'))}",
                result.ratios("first"),
            )
            rows = alike("cache", CACHE_ROWS, "inconclusive", numbers, unclear)
            return [*rows, *judge_clock("cache", all_legs)]
        missed = hit = cache_miss(*result.missed)
        if missed.code == "cache-never-hits" and result.elsewhere:
            missed = hit = CACHE_ELSEWHERE
        changed = next((leg for leg in legs["changed_prefix"] if leg.warm), None)
        if changed is not None:
            hit = changed_prefix_hit(legs["second"][-1], changed)
            if second.prompt_n is not None and second.prompt_n < (changed.prompt_n or 0):
                numbers = f"{count(changed.cache_n)} of {count(changed.prompt_total)} tokens reused"
                rows = alike("cache", CACHE_ROWS, "inconclusive", numbers, hit)
                return [*rows, *judge_clock("cache", all_legs)]
    verdicts = []
    for name, cold_leg, cause in (
        ("first", artifact.first, missed),
        ("changed_prefix", artifact.changed_prefix, hit),
    ):
        relation = f"second < {name} in ttft"
        soon_ms, late_ms = result.prefilled_ms("second"), result.prefilled_ms(name)
        times = f"{milliseconds(soon_ms)} against {milliseconds(late_ms)}"
        times = to_first_tokens(times, all_legs)
        in_order = late_ms - soon_ms > result.jitter_ms
        ratios = result.ratios(name)
        off = clock_off(all_legs)
        if off is not None:
            in_order, ratios = False, []
        if cold_leg.prompt_n is None or second.prompt_n is None:
            # No difference is a dead cache only where prefill can be seen, and no hit is told.
            told = any(leg.cold is False for leg in legs["second"])
            seen = result.is_visible() and not told
            decided = {} if off else result.decided()
            unseen = off or reasoning_hides(all_legs) or (None if seen else INVISIBLE)
            if name != "first" and decided.get("first") == "holds":
                unseen = changed_prefix_hit(legs["second"][-1], legs[name][-1])
            verdicts.append(not_counted("cache", f"second < {name} in prompt_n"))
            by_time = decided.get(name)
            verdicts.append(
                times_decide("cache", relation, times, in_order, ratios, by_time, unseen)
            )
            continue
        less = result.hits(name)
        numbers = f"{count(second.prompt_n)} against {count(cold_leg.prompt_n)} tokens"
        verdicts.append(holds_if("cache", f"second < {name} in prompt_n", less, numbers, cause))
        if not legs:
            verdicts.append(holds_if("cache", relation, in_order, times, cause))
        else:  # where the counts show no hit, too: a hair's breadth is none
            why = off or cause
            verdicts.append(times_confirm("cache", relation, times, in_order, ratios, why))
    return verdicts + judge_clock("cache", all_legs)


def _no_cache_of_prompts(result: CacheResult) -> Cause | None:
    """Why neither the counts nor the times of the second leg tell of a cache of prompts."""
    hits = all(map(result.hits, CACHE_COLD))
    if result.counted and (hits or clock_disagreement(result.legs["second"][-1])):
        return None  # the counts decide, or the clock shows that they are another answer's
    if result.replayed:
        return REPLAYED
    if result.counted and result.hits_by_time():
        return COUNTS_AGAINST_TIMES
    return None
