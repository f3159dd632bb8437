"""Which request a leg of the cancel step sends. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...look import HI
from ...plan import Plan
from ..legs import Question, is_numbered
from .legs import (
    CANCEL_CLOSE_AT,
    CANCEL_CONTROL,
    CANCEL_FIRST_PIECE,
    CANCEL_NEXT,
    CANCEL_ONE_TOKEN,
    CANCEL_PREFILL,
    CANCEL_TWO,
)

CONTROL_TOKENS = 16
# An answer that ends before even a close after its first piece is asked for longer.
LONGER_ANSWERS = (1, 8, 24)
PREFILL_CASE_CLOSE_AT_MS = 100.0
AFTER_CLOSE, BEFORE_ONE_TOKEN, STIR = "after-", "before-", "stir-"


def question_of_cancel(
    leg: str, plan: Plan, documents: Sequence[str], salt: str | None, times: int
) -> Question | None:
    if leg == CANCEL_CLOSE_AT:
        return Question(plan.cancel(), plan.cancel_max_tokens, True)
    if leg == CANCEL_TWO[0]:
        return Question(plan.cancel(), times * plan.cancel_max_tokens, True)
    if leg.startswith(f"{CANCEL_FIRST_PIECE}-"):
        attempt = leg.removeprefix(f"{CANCEL_FIRST_PIECE}-")
        if attempt not in map(str, range(1, len(LONGER_ANSWERS) + 1)):
            return None
        factor = LONGER_ANSWERS[int(attempt) - 1]
        return Question(plan.cancel(), factor * plan.cancel_max_tokens, True)
    if leg == CANCEL_PREFILL:
        long = plan.with_documents([*documents] * times, salt)
        return Question(long, plan.kb_max_tokens, True)
    if leg == CANCEL_CONTROL:
        return Question(plan.cancel(), CONTROL_TOKENS, False)
    if leg == CANCEL_NEXT:
        # Long enough to show the beat of the server after the closes.
        return Question(plan.short(), CONTROL_TOKENS, False)
    if is_numbered(leg, BEFORE_ONE_TOKEN):
        return Question(plan.cancel(), 1, True)
    asks_one = leg == CANCEL_TWO[1] or is_numbered(leg, CANCEL_ONE_TOKEN)
    if asks_one or leg.startswith((AFTER_CLOSE, STIR)):
        return Question(HI, 1, True)
    return None
