"""Why the legs of the cache step prove nothing: a table of doubts, tried in order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...evidence.timeline import Timeline
from ...verdicts.causes import OTHERS, clock_disagreement, warm_leg
from ...verdicts.prompts import changed_prefix_hit
from ...verdicts.times import with_spread
from ...verdicts.verdict import Cause, count, milliseconds
from .result import CACHE_COLD, CacheResult

CACHE_SOMETIMES = Cause(
    "cache-sometimes",
    "the same prompt was reused in some rounds and processed again in others: does somebody else "
    "use the server meanwhile, or do the requests go to several servers in turn?",
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


def changed_front_hit(result: CacheResult) -> Timeline | None:
    """A leg whose front was changed, and that was in the cache all the same."""
    return next((leg for leg in result.legs["changed_prefix"] if leg.warm), None)


def _warm_first(result: CacheResult) -> Timeline | None:
    return next((leg for leg in result.legs["first"] if leg.warm), None)


def _hits(result: CacheResult) -> bool:
    return all(map(result.hits, CACHE_COLD))


def _is_settled(result: CacheResult) -> bool:
    """The counts decide, or the clock shows that they are another answer's."""
    if not result.counted:
        return False
    return _hits(result) or clock_disagreement(result.legs["second"][-1]) is not None


def _is_beaten_by_changed(result: CacheResult) -> bool:
    changed, second_n = changed_front_hit(result), result.cache.second.prompt_n
    return changed is not None and second_n is not None and second_n < (changed.prompt_n or 0)


# --- what is shown ---


def _tokens_by_round(result: CacheResult) -> str:
    second = result.legs["second"]
    shown = ", ".join(count(leg.prompt_n) for leg in second)
    return f"{shown} tokens in {len(second)} rounds"


def _tokens(result: CacheResult) -> str:
    second, first = result.cache.second, result.cache.first
    return f"{count(second.prompt_n)} against {count(first.prompt_n)} tokens"


def _times(result: CacheResult) -> str:
    soon_ms, late_ms = result.prefilled_ms("second"), result.prefilled_ms("first")
    times = f"{milliseconds(soon_ms)} against {milliseconds(late_ms)}"
    return with_spread(times, result.ratios("first"))


def _reused(result: CacheResult) -> str:
    changed = changed_front_hit(result)
    assert changed is not None
    return f"{count(changed.cache_n)} of {count(changed.prompt_total)} tokens reused"


# --- the causes that name a leg ---


def _warm(result: CacheResult) -> Cause:
    leg = _warm_first(result)
    assert leg is not None
    return warm_leg("first", leg)


def changed_hit(result: CacheResult) -> Cause:
    """Why the changed front was reused."""
    changed = changed_front_hit(result)
    assert changed is not None
    return changed_prefix_hit(result.legs["second"][-1], changed)


@dataclass(frozen=True)
class Doubt:
    """A row of the table: where `when` is true, nothing is proven."""

    when: Callable[[CacheResult], bool]
    numbers: Callable[[CacheResult], str]
    cause: Callable[[CacheResult], Cause]


DOUBTS: Sequence[Doubt] = (
    Doubt(lambda result: _warm_first(result) is not None, lambda _: "no cold leg", _warm),
    Doubt(
        lambda result: result.counted and result.sometimes,
        _tokens_by_round,
        lambda _: CACHE_SOMETIMES,
    ),
    Doubt(
        lambda result: result.counted and result.others and not _hits(result),
        _tokens,
        lambda _: OTHERS,
    ),
    Doubt(
        lambda result: not _is_settled(result) and result.replayed,
        _times,
        lambda _: REPLAYED,
    ),
    Doubt(
        lambda result: result.counted and not _is_settled(result) and result.hits_by_time() is True,
        _times,
        lambda _: COUNTS_AGAINST_TIMES,
    ),
    Doubt(_is_beaten_by_changed, _reused, changed_hit),
)


def doubt_of(result: CacheResult) -> Doubt | None:
    """The first doubt that fits; None: the legs prove something."""
    return next((doubt for doubt in DOUBTS if doubt.when(result)), None)
