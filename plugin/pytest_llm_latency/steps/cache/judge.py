"""Judges the cache step: the cache effect. Pure."""

from __future__ import annotations

from ...verdicts.causes import INVISIBLE, clock_off
from ...verdicts.prompts import cache_miss, changed_prefix_hit
from ...verdicts.times import (
    judge_clock,
    no_count,
    not_counted,
    reasoning_hides,
    times_confirm,
    times_decide,
    to_first_tokens,
)
from ...verdicts.verdict import Cause, Verdict, alike, count, holds_if, milliseconds
from .doubts import changed_front_hit, changed_hit, doubt_of
from .result import CACHE_COLD, CacheResult

CACHE_ELSEWHERE = Cause(
    "cache-elsewhere",
    "the same prompt was processed again, and the one after it, with another end, was reused: do "
    "the requests go to several slots or servers in turn (try -np 1; before several servers, let "
    "one conversation always go to the same), or is a prompt cached only at second sight?",
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
        doubt = doubt_of(result)
        if doubt is not None:
            numbers, cause = doubt.numbers(result), doubt.cause(result)
            rows = alike("cache", CACHE_ROWS, "inconclusive", numbers, cause)
            return [*rows, *judge_clock("cache", all_legs)]
        missed = hit = cache_miss(*result.missed)
        if missed.code == "cache-never-hits" and result.elsewhere:
            missed = hit = CACHE_ELSEWHERE
        if changed_front_hit(result) is not None:
            hit = changed_hit(result)
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
