"""Whether prefill has been measured often enough. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ...verdicts.decision import enough
from .result import PrefillResult


def enough_of_prefill(rounds: int) -> Callable[[PrefillResult], bool]:
    """Whether a further round is needless, where `rounds` are wanted in any case."""

    def is_enough(result: PrefillResult) -> bool:
        if result.stalled is not None:
            return True  # the counts decide
        if result.counted and len(result.ratios()) == 1 and not result.in_order:
            return False
        return enough(result.ratios(), result.counted, rounds)

    return is_enough
