"""Measuring until it is enough: cold legs, further rounds, streams that come as they are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..evidence.derive import derive
from ..evidence.recording import Recording
from ..evidence.timeline import Timeline
from ..plan import new_salt
from ..verdicts.causes import why_not_as_made
from .bench import Bench
from .legs import SALTED, first_warm

ATTEMPTS_AT_MOST = 3

Legs = dict[str, Recording]


def measured_cold(
    bench: Bench, step: str, cold: Sequence[str], measure: Callable[[str | None], Legs]
) -> tuple[Legs, str | None]:
    """Measure to the letter; where a leg of `cold` is not proven cold, again with a salt.

    Gives the recordings by leg, of both where there were two, and the salt.
    """
    legs = measure(None)
    warm = first_warm(((name, derive(leg)) for name, leg in legs.items()), cold)
    if warm is None:
        return legs, None
    why = (
        f"the server's counts contradict each other ({warm.counts_conflict})"
        if warm.counts_conflict is not None
        else "the server counts no reused tokens (vLLM does with --enable-prompt-tokens-details, "
        "SGLang with --enable-cache-report)"
        if warm.cold is None
        else f"{warm.cache_n} of {warm.prompt_total} prompt tokens were in the cache already"
    )
    bench.note(step, f"measured with a salt: {why}, so the prompt to the letter proves nothing")
    salt = new_salt()
    return {**legs, **measure(salt)}, salt


def leg_salt(salt: str | None) -> str | None:
    """A salt of its own for every leg that must be cold: one that they shared would be in the
    cache from the second on, and it is a good part of a short prompt."""
    return None if salt is None else new_salt()


def prefix_of(salt: str | None) -> str:
    return SALTED if salt else ""


def in_rounds(
    legs: Legs,
    salt: str | None,
    measure: Callable[[str | None, int], Legs],
    derive_result: Callable[[Legs], R],
    is_enough: Callable[[R], bool],
    look: Callable[[R], Legs] = lambda _: {},
) -> R:
    """The result of the first round, or of as many salted ones as are needed; `look` gives
    recordings that are no legs.

    Without a salt a further round would find what an earlier one left in the cache, on a server
    with slots or a cache of prompts: the unsalted round then counts no more.
    """
    result = derive_result(legs)
    number = 1 if salt is None else 2
    while not is_enough(result):
        legs = {**legs, **measure(new_salt(), number)}
        result = derive_result(legs)
        number += 1
    found = look(result)
    return derive_result({**legs, **found}) if found else result


R = TypeVar("R")


def as_made(
    bench: Bench, step: str, ask: Callable[[int], R], timeline_of: Callable[[R], Timeline]
) -> R:
    """An answer that came as it was made, or the last of three: one that did not says little on
    a busy machine."""
    held_back: list[str] = []
    for attempt in range(1, ATTEMPTS_AT_MOST + 1):
        answer = ask(attempt)
        cause = why_not_as_made(timeline_of(answer))
        if cause is None:
            if held_back:
                bench.note(step, f"asked again: {', '.join(held_back)}")
            break
        held_back.append(cause.code)
    return answer
