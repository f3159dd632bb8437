"""Decides from repeated timings alone whether one thing takes longer than another. Pure.

A likelihood ratio on the logarithms of slow/fast, one a round. *Holds*: the true ratio is at
least `ratio`; *broken*: it is 0.9 to 1.1; between them lies a grey zone in which neither is an
error. The noise is a Student t of unknown scale, averaged with more weight on the noisy, and a
fixed share of ruined rounds, so that no single one decides. Where a server counts tokens, the
counts decide, and times only confirm them. Where all rounds are spent and the noise still hides
the answer, the ranks of the times may tell that one is longer. docs/verdicts.md has the error
rates.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

ROUNDS_AT_LEAST = 2
ROUNDS_AT_MOST = 8
ROUNDS_TO_COMPARE = 5  # with another run: so many tell how far they scatter
RATIO = 1.5
_RUINED_SHARE = 0.35
_RUINED_WIDTH = 1.5
_HOLDS_FROM = 1500.0
_BROKEN_FROM = 400.0
_SCALES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # of a log-ratio; prior weight proportional to it
_SAME = (0.9, 0.95, 1.0, 1.05, 1.1)
_LARGEST_RATIO = 60.0
_STEP = 0.05
_SAME_DIRECTION_SHARE = 7 / 8
_RANKED_RATIO = 2.0
_BY_CHANCE_AT_MOST = 0.0004

Decision = Literal["holds", "broken"] | None


def enough(ratios: Sequence[float], counted: bool, at_least: int = 1) -> bool:
    """Whether a further round is needless. `counted`: token counts show the effect already, and
    times need only confirm them; `at_least` rounds are wanted in any case."""
    if len(ratios) < at_least:
        return False
    if len(ratios) >= ROUNDS_AT_MOST:
        return True
    return confirms(ratios) if counted else decide(ratios) is not None


def confirms(ratios: Sequence[float]) -> bool:
    """Whether times confirm what counts show: one round that is clear, several by the rule, or
    all rounds if nearly all have the slow one slower. (With no difference at all, one run in 28
    would: a sign test. Enough to confirm, not to stand alone.)"""
    if len(ratios) == 1:
        return ratios[0] >= RATIO
    if decide(ratios) == "holds":
        return True
    slower = sum(ratio > 1.0 for ratio in ratios)
    return len(ratios) >= ROUNDS_AT_MOST and slower >= _SAME_DIRECTION_SHARE * len(ratios)


def decide_pairs(slow: Sequence[float], fast: Sequence[float]) -> Decision:
    """`decide` by the times of the rounds themselves (in any unit, above 0). After the last round
    it holds, too, if the slow ones are twice the fast by their medians, and would be so much the
    later by rank once in 2,500 if they were the same: in noise that fits no round to the next a
    pair says little, and all against all say much."""
    found = decide([a / b for a, b in zip(slow, fast)])
    rounds = min(len(slow), len(fast))
    if found is not None or rounds < ROUNDS_AT_MOST:
        return found
    if statistics.median(slow) < _RANKED_RATIO * statistics.median(fast):
        return None
    earlier = sum(a <= b for a in slow for b in fast)
    orders = sum(_orders(len(slow), len(fast), number) for number in range(earlier + 1))
    by_chance = orders / math.comb(len(slow) + len(fast), len(fast))
    return "holds" if by_chance <= _BY_CHANCE_AT_MOST else None


@functools.cache
def _orders(slow: int, fast: int, earlier: int) -> int:
    """In how many orders of so many a slow one comes before a fast one so many times (Mann and
    Whitney's U): the last of all is a slow one, or a fast one that all slow ones precede."""
    if earlier < 0 or slow < 0 or fast < 0:
        return 0
    if slow == 0 or fast == 0:
        return int(earlier == 0)
    return _orders(slow - 1, fast, earlier) + _orders(slow, fast - 1, earlier - slow)


def decide(ratios: Sequence[float], ratio: float = RATIO) -> Decision:
    """Judge the ratios slow/fast of the rounds so far; None: not decided.

    With noise of 5 % a true ratio of 2 holds after 5 rounds, one of 1 is broken after 3 to 4.
    """
    if len(ratios) < ROUNDS_AT_LEAST:
        return None
    logs = [math.log(max(value, 1e-9)) for value in ratios]
    same = _best(logs, map(math.log, _SAME))
    low, high = math.log(ratio), max(math.log(_LARGEST_RATIO), *logs)
    steps = int((high - low) / _STEP) + 2
    longer = _best(logs, (low + _STEP * number for number in range(steps)))
    if longer >= _HOLDS_FROM * same:
        return "holds"
    return "broken" if same >= _BROKEN_FROM * longer else None


def _best(logs: Sequence[float], guesses: Iterable[float]) -> float:
    return max(_likelihood(logs, guess) for guess in guesses)


def _likelihood(logs: Sequence[float], guess: float) -> float:
    total = 0.0
    for scale in _SCALES:
        product = scale / sum(_SCALES)
        for value in logs:
            error = value - guess
            product *= (1 - _RUINED_SHARE) * _student(error / scale) / scale + (
                _RUINED_SHARE * math.exp(-abs(error) / _RUINED_WIDTH) / (2 * _RUINED_WIDTH)
            )
        total += product
    return total


def _student(x: float) -> float:
    """The density of Student's t with 3 degrees of freedom."""
    return 2.0 / (math.pi * math.sqrt(3.0) * (1.0 + x * x / 3.0) ** 2)
