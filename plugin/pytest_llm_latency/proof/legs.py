"""Whether every leg is there that a step measures, and none too many: by the rules that decide,
while it measures, on a repeat, a salt, a further round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

from ..evidence.activity import answer_of
from ..evidence.derive import derive
from ..evidence.endpoints import is_offered
from ..evidence.recording import Recording
from ..plan import Plan
from ..steps.answers import is_usable
from ..steps.asks import cold_legs
from ..steps.cache.asks import CLEARING, enough_of_cache
from ..steps.cache.result import CACHE_LEGS, CACHE_LOOK, cache_result
from ..steps.cancel.asks import BEFORE_ONE_TOKEN
from ..steps.cancel.idle import serves_several, watched_by
from ..steps.cancel.legs import (
    CANCEL_CLOSE_AT,
    CANCEL_FIRST_PIECE,
    CANCEL_METRICS,
    CANCEL_NEXT,
    CANCEL_ONE_TOKEN,
    CANCEL_PREFILL,
    CANCEL_TWO,
    ONE_TOKEN_RUNS,
)
from ..steps.legs import LONGER, SALTED, first_warm
from ..steps.prefill.enough import enough_of_prefill
from ..steps.prefill.result import prefill_result
from ..steps.sentence.result import SENTENCE_AGAIN
from ..steps.server.result import server_result
from ..steps.ttft.result import run_numbers
from ..verdicts.causes import why_not_as_made
from .evidence import Evidence, file_of, lab_step

ATTEMPTS_AT_MOST = 3
Legs = Mapping[str, Recording]


def problem(evidence: Evidence, step: str) -> str | None:
    """The first leg that is missing or one too many. Nothing can be said of a run whose rules may
    have been others."""
    run = evidence.run(step)
    find = _RULES.get(lab_step(step))
    if find is None or run.plan is None or not run.is_ours:
        return None
    rounds = 1 if step != lab_step(step) else run.options.get("rounds", 1)
    wanted: set[str] = set()
    legs = evidence.recordings(step)
    missing = find(legs, run.plan, rounds, wanted)
    if missing is not None:
        return missing if missing.startswith("evidence/") else f"evidence/{step}: {missing}"
    extra = sorted(set(legs) - wanted)
    if extra:
        return f"{file_of(step, extra[0])}: found, expected none, because the step had enough"
    return None


Rule = Callable[[Legs, Plan, int, "set[str]"], "str | None"]


def _chain(legs: Legs, names: Callable[[int], str], wanted: set[str]) -> str | None:
    """The attempts at an answer: again, up to three, while it did not come as it was made."""
    for attempt in range(1, ATTEMPTS_AT_MOST + 1):
        leg = names(attempt)
        if leg not in legs:
            why = "it is always asked" if attempt == 1 else f"{names(attempt - 1)!r} was held back"
            return f"lacks the leg {leg!r}, expected it, because {why}"
        wanted.add(leg)
        if why_not_as_made(derive(legs[leg])) is None:
            break
    return None


def _server(legs: Legs, _: Plan, __: int, wanted: set[str]) -> str | None:
    wanted |= {"health", "props"}
    if not is_offered(server_result(legs).health):
        wanted.add("models")
    return _lacking(legs, sorted(wanted))


def _lacking(legs: Legs, names: Sequence[str]) -> str | None:
    missing = next((name for name in names if name not in legs), None)
    return None if missing is None else f"lacks the leg {missing!r}, which the step always measures"


def _sse(legs: Legs, _: Plan, __: int, wanted: set[str]) -> str | None:
    return _chain(legs, lambda attempt: f"stream-{attempt}", wanted)


def _sentence(legs: Legs, plan: Plan, rounds: int, wanted: set[str]) -> str | None:
    again = [f"{SENTENCE_AGAIN}{number}" for number in range(2, rounds + 1)]
    wanted.update(again)
    return _sse(legs, plan, rounds, wanted) or _lacking(legs, again)


def _ttft(legs: Legs, plan: Plan, _: int, wanted: set[str]) -> str | None:
    salted = _is_warm(legs, "ttft", plan)
    for prefix in ("", SALTED) if salted else ("",):
        for number in run_numbers(plan):

            def name(attempt: int, leg: str = prefix + number) -> str:
                return leg if attempt == 1 else f"{leg}.{attempt}"

            missing = _chain(legs, name, wanted)
            if missing is not None:
                return missing
    return None


def _is_warm(legs: Legs, step: str, plan: Plan) -> bool:
    """Whether a leg to the letter was not proven cold, so that all are measured with a salt."""
    timelines = ((name, derive(leg)) for name, leg in legs.items())
    return first_warm(timelines, cold_legs(step, plan)) is not None


def _prefill(legs: Legs, plan: Plan, rounds: int, wanted: set[str]) -> str | None:
    names = [f"{docs}docs" for docs in plan.doc_counts]
    is_enough = enough_of_prefill(rounds)
    return _in_rounds(
        legs,
        names,
        SALTED,
        _is_warm(legs, "prefill", plan),
        lambda some: is_enough(prefill_result(some)),
        wanted,
    )


def _cache(legs: Legs, plan: Plan, rounds: int, wanted: set[str]) -> str | None:
    names = [CLEARING, *CACHE_LEGS]
    wanted.update(leg for leg in legs if leg.startswith(f"{CACHE_LOOK}-"))
    is_enough = enough_of_cache(rounds)

    def enough(some: Legs) -> bool:
        return is_enough(cache_result(some))

    is_warm = _is_warm(legs, "cache", plan)
    longer = {leg for leg in legs if leg.startswith(LONGER)}
    if not longer:
        return _in_rounds(legs, names, SALTED, is_warm, enough, wanted)
    # Whether a longer prompt is tried depends on what was not recorded; if so, it is repeated.
    if not all(is_usable(legs.get(f"{LONGER}{name}-1")) for name in names):
        wanted |= longer  # it did not fit
        return _in_rounds(legs, names, SALTED, is_warm, enough, wanted)
    wanted.update(f"{SALTED}{name}-1" for name in names if is_warm)
    wanted.update(f"{name}-1" for name in names)
    missing = _lacking(legs, sorted(wanted))
    return missing or _in_rounds(legs, names, LONGER, True, enough, wanted)


def _in_rounds(
    legs: Legs,
    names: Sequence[str],
    prefix: str,
    again: bool,
    is_enough: Callable[[dict[str, Recording]], bool],
    wanted: set[str],
) -> str | None:
    """To the letter, then rounds behind `prefix` (`again`: at least one) until they are enough."""
    wanted.update(f"{name}-1" for name in names)
    missing = _lacking(legs, sorted(wanted & {f"{name}-1" for name in names}))
    if missing is not None:
        return missing
    so_far = {leg: legs[leg] for leg in wanted if leg in legs}
    if not again and is_enough(so_far):
        return None
    for number in count(1):
        some = [f"{prefix}{name}-{number}" for name in names]
        absent = next((leg for leg in some if leg not in legs), None)
        if absent is not None:
            return f"lacks the leg {absent!r}, expected it: the rounds before decide nothing"
        wanted.update(some)
        so_far |= {leg: legs[leg] for leg in some}
        if is_enough(so_far):
            return None
    raise AssertionError("count() ends never")


def _cancel(legs: Legs, _: Plan, __: int, wanted: set[str]) -> str | None:
    always = [CANCEL_CLOSE_AT, f"{CANCEL_FIRST_PIECE}-1", CANCEL_PREFILL, CANCEL_NEXT, "slots"]
    missing = _lacking(legs, always)
    if missing is not None:
        return missing
    attempts = [leg for leg in legs if leg.startswith(f"{CANCEL_FIRST_PIECE}-")]
    missing = _lacking(legs, [f"{CANCEL_FIRST_PIECE}-{n + 1}" for n in range(len(attempts))])
    if missing is not None:
        return missing
    wanted.update(legs)  # what else there is depends on how the server answers
    gauge = legs.get(CANCEL_METRICS, legs["slots"])
    if answer_of(gauge.status or 0, gauge.body).busy is None and CANCEL_TWO[0] not in legs:
        return (
            f"lacks the leg {CANCEL_TWO[0]!r}, expected it, because neither /slots nor /metrics "
            "show what the server works on"
        )
    if watched_by(legs)[0] != "1-token request" or any(leg not in legs for leg in CANCEL_TWO):
        return None
    if serves_several(legs) is not None:
        return None
    runs = range(1, ONE_TOKEN_RUNS + 1)
    each = [(f"{BEFORE_ONE_TOKEN}{n}", f"{CANCEL_ONE_TOKEN}{n}") for n in runs]
    return _lacking(legs, [leg for pair in each for leg in pair])


_RULES: Mapping[str, Rule] = {
    "server": _server,
    "sse": _sse,
    "ttft": _ttft,
    "prefill": _prefill,
    "cache": _cache,
    "sentence": _sentence,
    "cancel": _cancel,
}
