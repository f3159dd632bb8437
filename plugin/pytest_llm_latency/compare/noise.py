"""How far two runs' ratios can be trusted: their noise, and whether a change exceeds it. Pure.

A ratio is worse where the lower bound of its change lies above the tolerance, and (nearly) every
round here above (nearly) every round there. The noise is the spread of the rounds of each run;
where there are too few, that of five equal requests stands for it, with a margin that leaves
little to be seen. docs/verdicts.md has the error rates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..verdicts.decision import ROUNDS_TO_COMPARE

ROUNDS_FOR_SPREAD = 3
# By how many standard errors the median must be off; few rounds say less of their own spread.
_ERRORS = 2.5
_ERRORS_OF_FEW = 6.0
_ERRORS_OF_ONE = 6.0
# What the natural logarithm of a ratio scatters by even where its rounds happen to agree.
_SPREAD_AT_LEAST = 0.05
_SPREAD_OF_ONE_AT_LEAST = 0.3
# One round of six may stray.
_STRAYS = 6
_LARGEST_LOG = 100.0  # beyond, a factor is nothing but "very large"
_MEDIAN_ERROR = 1.2533  # sqrt(pi / 2): a median's error over a mean's, and a deviation's over its


@dataclass(frozen=True)
class Side:
    """A ratio of one run: natural logarithms of its rounds' median, of the error of that, and of
    the rounds between which all but a few strays lie."""

    median: float
    error: float
    low: float
    high: float


def spread(values: Sequence[float]) -> float | None:
    """How far the natural logarithms scatter, as a standard deviation: by their mean distance
    from the median, which a stray moves little. None for fewer than three."""
    if len(values) < ROUNDS_FOR_SPREAD:
        return None
    logs = [_log(value) for value in values]
    middle = statistics.median(logs)
    return _MEDIAN_ERROR * sum(abs(log - middle) for log in logs) / (len(logs) - 1)


def side(rounds: Sequence[float], spread_of_one: float | None) -> Side | None:
    """What the rounds say; `spread_of_one` is the `spread` of times of equal requests, which
    stands for theirs where they are too few. None: the noise is not known."""
    logs = sorted(map(_log, rounds))
    scattered = spread(rounds)
    if scattered is not None:
        errors = _ERRORS if len(logs) >= ROUNDS_TO_COMPARE else _ERRORS_OF_FEW
        scale = max(scattered, _SPREAD_AT_LEAST)
        error = errors * _MEDIAN_ERROR * scale / math.sqrt(len(logs))
    elif spread_of_one is not None and logs:
        # A ratio is of two times.
        error = _ERRORS_OF_ONE * math.sqrt(2) * max(spread_of_one, _SPREAD_OF_ONE_AT_LEAST)
    else:
        return None
    strays = len(logs) // _STRAYS
    return Side(statistics.median(logs), error, logs[strays], logs[-1 - strays])


@dataclass(frozen=True)
class Change:
    """The ratio here over the one there, and the factor that noise alone can make. It `is_worse`,
    or `is_no_worse`, by more than the tolerance even so; neither: noise hides it."""

    factor: float
    noise: float
    is_worse: bool
    is_no_worse: bool


def change(here: Side, there: Side, tolerance: float) -> Change:
    """Whether the ratio is worse here by more than `tolerance` (a share), noise set aside, and
    whether it is not, whatever noise did."""
    difference, error = here.median - there.median, math.hypot(here.error, there.error)
    bound = math.log1p(tolerance)
    apart = here.low - there.high > bound
    return Change(
        _factor(difference),
        _factor(error),
        difference - error > bound and apart,
        difference + error <= bound,
    )


def _factor(log: float) -> float:
    return math.exp(min(log, _LARGEST_LOG))


def _log(ratio: float) -> float:
    return math.log(max(ratio, 1e-9))
