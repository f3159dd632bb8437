"""Measures the cache step."""

from __future__ import annotations

from collections.abc import Callable

from ... import sse
from ...errors import BudgetError, ConfigError, RateLimited, StreamError
from ...evidence.timeline import Timeline
from ...plan import new_salt
from ...verdicts.prompts import LONG_TOKENS, cache_miss, partial_hit_lost
from ...wire.costs import CHARACTERS_PER_TOKEN
from ..asks import cold_legs
from ..bench import Bench
from ..legs import LONGER
from ..rounds import Legs, in_rounds, measured_cold, prefix_of
from .asks import CLEARING, enough_of_cache
from .result import CACHE_COLD, CACHE_LEGS, CACHE_LOOK, CacheResult, cache_result

NEARLY_SAME = 1.2
LOOKS_FOR_OTHERS, LOOK_PAUSE_S = 4, 0.5
MISSES_OF_SHORT = ("cache-never-hits", "no-difference-in-time")


def measure_cache(bench: Bench) -> CacheResult:
    """Step 5: cold, again, changed at the end, changed at the front."""

    def measure(salt: str | None, number: int = 1) -> Legs:
        return _cache_round(bench, 1, salt, number, prefix_of(salt))

    def measure_longer(salt: str | None, number: int = 1) -> Legs:
        return _cache_round(bench, times, salt, number, LONGER)

    legs, salt = measured_cold(bench, "cache", cold_legs("cache", bench.plan), measure)
    times = _longer(bench, cache_result(legs))
    measure_more = measure
    if times > 1:
        try:
            legs = {**legs, **measure_longer(new_salt())}
        except (BudgetError, RateLimited):
            raise  # nothing is proven about the server
        except (StreamError, ConfigError) as error:
            bench.note("cache", f"a longer prompt could not be measured: {error}")
        else:
            salt, measure_more = new_salt(), measure_longer

    is_enough = enough_of_cache(bench.rounds)
    result = in_rounds(legs, salt, measure_more, cache_result, is_enough, _look_for_others(bench))
    front, end = result.legs["changed_prefix"][-1], result.legs["changed_suffix"][-1]
    bench.note(
        "cache",
        f"the changing line at the front: {_tokens(front)}{front.ttft_ms:.0f} ms to the first "
        f"text; at the end: {_tokens(end)}{end.ttft_ms:.0f} ms",
    )
    first, second = result.legs["first"][-1], result.legs["second"][-1]
    if second.cold is False:
        for name, known, again in (("second", first, second), ("changed_suffix", second, end)):
            lost = partial_hit_lost(known, again)
            if lost is not None:
                bench.note("cache", f"{name}: {lost.sentence}")
    return result


def _look_for_others(bench: Bench) -> Callable[[CacheResult], Legs]:
    """Where the cache never hit: some answers of /slots while nothing is asked here."""

    def look(result: CacheResult) -> Legs:
        path = bench.behind_offers.slots
        if path is None or not result.counted or all(map(result.hits, CACHE_COLD)):
            return {}
        found: Legs = {}
        for number in range(1, LOOKS_FOR_OTHERS + 1):
            found[f"{CACHE_LOOK}-{number}"] = bench.behind.fetch(
                path, f"cache/{CACHE_LOOK}-{number}"
            )
            sse.pause(LOOK_PAUSE_S)
        return found

    return look


def _cache_round(bench: Bench, times: int, salt: str | None, number: int, prefix: str) -> Legs:
    """One round; the prompt has the documents so many `times`."""
    bench.progress(f"cache, clearing the slot, round {number}")
    clearing = f"{prefix}{CLEARING}-{number}"
    legs = {clearing: bench.ask("cache", clearing)}
    for name in CACHE_LEGS:
        bench.progress(f"cache {name}, round {number}")
        leg = f"{prefix}{name}-{number}"
        legs[leg] = bench.ask("cache", leg, salt, times)
    return legs


def _longer(bench: Bench, result: CacheResult) -> int:
    """How many times the documents make a longer prompt, where this one never hit: some servers
    cache only in blocks of hundreds of tokens. 1: not needed, long enough already, or too long to
    fit."""
    first, second = result.legs["first"][-1], result.legs["second"][-1]
    hits = result.hits("first") if result.counted else result.ratios("first")[0] > NEARLY_SAME
    if hits or cache_miss(first, second).code not in MISSES_OF_SHORT:
        return 1
    tokens = (
        first.prompt_total
        or bench.count_tokens(bench.plan.with_documents(bench.documents))
        or len(first.prompt) // CHARACTERS_PER_TOKEN
    )
    context = bench.context()
    room = context - bench.plan.kb_max_tokens if context else 2 * LONG_TOKENS
    times = min(-(-LONG_TOKENS // tokens), room // tokens) if tokens else 0
    if times < 2:
        return 1
    bench.note(
        "cache",
        f"the prompt of about {tokens} tokens never hit; measured again with its documents "
        f"{times} times, since some servers cache only in large blocks",
    )
    return times


def _tokens(leg: Timeline) -> str:
    return "" if leg.prompt_n is None else f"{leg.prompt_n} tokens processed, "
