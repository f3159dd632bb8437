"""How times judge where the server counts, and where it does not. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from ..evidence.timeline import Timeline
from .causes import NOISE, REASONING_HIDES, SAME_TIME, clock_disagreement
from .decision import Decision, confirms
from .stream import with_holds
from .verdict import Cause, Verdict, holds_if, milliseconds

# Relations that only support another one: where they cannot be measured, the row says why, and the
# test is passed by the others.
CLOCK = "ttft >= the server's own prompt time"


def to_first_tokens(times: str, legs: Sequence[Timeline]) -> str:
    """The times, and that they are not those to the first text, or were made by holds, where it is
    so."""
    times = with_holds(times, legs)
    if any(leg.prefilled_ms != leg.ttft_ms for leg in legs):
        return f"{times} (to the first token, of reasoning)"
    return times


def reasoning_hides(legs: Iterable[Timeline]) -> Cause | None:
    """Why times to the first text say little of prefill."""
    hidden = any(leg.reasoning == "hidden" for leg in legs)
    return REASONING_HIDES if hidden else None


def no_count(step: str, relation: str) -> Verdict:
    """A count is null in a file, and no evidence says why."""
    cause = Cause("no-count", "prompt_n is null, and no evidence says why")
    return Verdict(step, relation, "not measurable", "no count", cause)


def not_counted(step: str, relation: str) -> Verdict:
    """Times decide."""
    cause = Cause("no-count", "the server does not count the tokens that it processes now")
    return Verdict(step, relation, "not measurable", "no count", cause)


def with_spread(numbers: str, ratios: Sequence[float]) -> str:
    """With the effect (the median ratio of the rounds) and the noise (the factor by which a
    typical round misses it)."""
    if len(ratios) < 2:
        return numbers
    effect = statistics.median(ratios)
    noise = statistics.median(math.exp(abs(math.log(ratio / effect))) for ratio in ratios)
    return f"{numbers}; effect x{effect:.2f}, noise x{noise:.2f} in {len(ratios)} rounds"


def times_decide(
    step: str,
    relation: str,
    times: str,
    in_order: bool,
    ratios: Sequence[float],
    decided: Decision,
    unseen: Cause | None,
) -> Verdict:
    """The server counts no tokens: the rule judges the rounds. The medians must show it,
    too, for a verdict that holds; `unseen`: why no effect could be seen, if there is
    one. None: it would be seen."""
    numbers = with_spread(times, ratios) + "; count not reported"
    if decided == "broken":
        if unseen is not None:
            return Verdict(step, relation, "inconclusive", numbers, unseen)
        return Verdict(step, relation, "broken", numbers, SAME_TIME)
    if decided == "holds" and in_order:
        return Verdict(step, relation, "holds", numbers)
    cause = unseen if unseen is not None and not ratios else NOISE
    return Verdict(step, relation, "inconclusive", numbers, cause)


def times_confirm(
    step: str,
    relation: str,
    times: str,
    in_order: bool,
    ratios: Sequence[float],
    cause: Cause,
) -> Verdict:
    """The counts show the effect. Times that do not follow are noise, or time that goes
    elsewhere; a fault of the server they do not prove."""
    if in_order and confirms(ratios):
        return Verdict(step, relation, "holds", times)
    return Verdict(step, relation, "inconclusive", with_spread(times, ratios), cause)


def judge_clock(step: str, legs: Iterable[Timeline]) -> list[Verdict]:
    """The first text comes no sooner than the server itself was done with the prompt; nothing of
    files alone."""
    legs = list(legs)
    if not legs:
        return []
    legs = [leg for leg in legs if not leg.clock_off_ms]
    timed = [leg for leg in legs if leg.prompt_ms is not None and leg.ttft_ms is not None]
    if not timed:
        cause = Cause("no-timings", "the server does not say how long it processed the prompt")
        return [Verdict(step, CLOCK, "not measurable", "no time of the server's", cause)]
    found = next(filter(None, map(clock_disagreement, timed)), None)
    closest = min(timed, key=lambda leg: _above(leg.ttft_ms, leg.prompt_ms))
    numbers = (
        f"closest: {milliseconds(closest.ttft_ms)}, the server's {milliseconds(closest.prompt_ms)}"
    )
    return [holds_if(step, CLOCK, found is None, numbers, found)]


def _above(ttft_ms: float | None, prompt_ms: float | None) -> float:
    return (ttft_ms or 0.0) / max(prompt_ms or 0.0, 0.001)
