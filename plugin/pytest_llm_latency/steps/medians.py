"""Medians and ratios of the rounds of a step. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from ..evidence.timeline import Timeline
from ..verdicts.decision import Decision, decide_pairs
from .answers import known_ms


def jitter_ms_of(legs: Iterable[Sequence[Timeline]]) -> float:
    return max((leg.jitter_ms for rounds in legs for leg in rounds), default=0.0)


def prefilled_ms_of(legs: Sequence[Timeline]) -> list[float]:
    """The times that prefill took, by round: reasoning, which comes before the first text, is as
    long as it likes."""
    return [max(known_ms(leg.prefilled_ms), 0.001) for leg in legs]


def ratios_of(slow: Sequence[Timeline], fast: Sequence[Timeline]) -> list[float]:
    return [a / b for a, b in zip(prefilled_ms_of(slow), prefilled_ms_of(fast))]


def decided_by(slow: Sequence[Timeline], fast: Sequence[Timeline]) -> Decision:
    return decide_pairs(prefilled_ms_of(slow), prefilled_ms_of(fast))


def median_prefilled_ms(rounds: Sequence[Timeline]) -> float:
    return statistics.median(known_ms(leg.prefilled_ms) for leg in rounds)


def median_count(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return statistics.median_low(known) if len(known) == len(values) else None


def median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None
