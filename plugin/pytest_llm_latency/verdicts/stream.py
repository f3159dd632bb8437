"""The relations of one stream: the first text before the end, pieces as they were made. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..evidence.timeline import Timeline
from .causes import at_once, clock_off, first_held_ms, hold, hold_of, no_text, unusable
from .verdict import Verdict, milliseconds, outcome_of


def ttft_below_total(timeline: Timeline, step: str = "own") -> Verdict:
    """The first text came before the end of the answer, neither in one burst with it nor long after
    it was ready."""
    relation = "ttft < total"
    cause = unusable(timeline)
    if cause is not None:
        return Verdict(step, relation, outcome_of(cause), "no whole answer", cause)
    ttft, total = timeline.ttft_ms, timeline.total_ms
    numbers = f"ttft {milliseconds(ttft)}, total {milliseconds(total)}"
    if ttft is None or total is None:
        cause = no_text(timeline)
        return Verdict(step, relation, outcome_of(cause), numbers, cause)
    cause = clock_off([timeline]) or hold_of(timeline, 0) or at_once(timeline)
    if cause is not None:
        return Verdict(step, relation, outcome_of(cause), numbers, cause)
    return Verdict(step, relation, "holds", with_holds(numbers, [timeline]))


def with_holds(numbers: str, timelines: Sequence[Timeline]) -> str:
    """A time to first text that a hold has made is never shown without a word."""
    held = list(filter(None, map(first_held_ms, timelines)))
    if not held:
        return numbers
    how_many = f"{len(held)} of {len(timelines)}"
    return f"{numbers}; first text held back in {how_many}, for {max(held):.0f} ms"


def comes_as_made(timeline: Timeline, step: str = "own") -> Verdict:
    """The pieces came as they were generated: not in one burst, nor in clumps, nor some of them
    together."""
    cause = unusable(timeline) or clock_off([timeline]) or hold(timeline)
    numbers = f"{len(timeline.sent)} pieces in {len(timeline.arrivals)} arrivals"
    relation = "the pieces come as they are made"
    if cause is not None:
        return Verdict(step, relation, outcome_of(cause), numbers, cause)
    return Verdict(step, relation, "holds", numbers)
