"""The relations of two streams: a longer prompt and a shorter, a cached and a cold one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..evidence.timeline import Timeline
from .causes import ONE_PAIR, unusable, warm_leg
from .prompts import cache_miss, prompt_not_growing, stalled
from .verdict import Cause, Verdict, count, holds_if, milliseconds, outcome_of


def long_above_short(short: Timeline, long: Timeline, step: str = "own") -> Verdict:
    """The longer prompt took more tokens to process; where the server counts none, it took the
    longer to its first text. One pair of times shows too little, unless they differ wildly:
    then it is inconclusive."""
    numbers = (
        f"prompt_n {count(short.prompt_n)} and {count(long.prompt_n)}, "
        f"ttft {milliseconds(short.ttft_ms)} and {milliseconds(long.ttft_ms)}"
    )
    return _pair(step, "long > short", (short, long), numbers, _not_growing(short, long))


def _not_growing(short: Timeline, long: Timeline) -> Cause | None:
    found = stalled(
        (short.prompt_n, long.prompt_n),
        (short.prompt_total, long.prompt_total),
        long.prompt_characters - short.prompt_characters,
    )
    return None if found is None else prompt_not_growing(*found)


def cached_below_uncached(uncached: Timeline, cached: Timeline, step: str = "own") -> Verdict:
    """The repeated prompt was processed less than the cold one; judged as `long_above_short`
    is. A first prompt that was not cold proves nothing."""
    numbers = (
        f"prompt_n {count(cached.prompt_n)} against {count(uncached.prompt_n)}, "
        f"ttft {milliseconds(cached.ttft_ms)} against {milliseconds(uncached.ttft_ms)}"
    )
    relation = "cached < uncached"
    if uncached.cold is False:
        warm = warm_leg("uncached", uncached)
        return Verdict(step, relation, "inconclusive", numbers, warm)
    missed = (
        cached.prompt_n is not None
        and uncached.prompt_n is not None
        and (cached.prompt_n >= uncached.prompt_n or cached.cold)
    )
    cause = cache_miss(uncached, cached) if missed else None
    return _pair(step, relation, (cached, uncached), numbers, cause)


def _pair(
    step: str, relation: str, pair: Sequence[Timeline], numbers: str, cause: Cause | None
) -> Verdict:
    """`cause` is why the counts of the two break the relation; None: they do not."""
    for timeline in pair:
        failed = unusable(timeline)
        if failed is not None:
            return Verdict(step, relation, outcome_of(failed), numbers, failed)
    if cause is None and any(timeline.prompt_n is None for timeline in pair):
        return Verdict(step, relation, "inconclusive", numbers, ONE_PAIR)
    return holds_if(step, relation, cause is None, numbers, cause)
