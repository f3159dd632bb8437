"""Which request a leg of any step sends. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..look import CAPABILITIES, HI, LOOK_TOKENS
from ..plan import Plan
from .cache.asks import CLEARING, question_of_cache
from .cache.result import CACHE_COLD
from .cancel.asks import question_of_cancel
from .cancel.legs import CANCEL_PREFILL
from .legs import LONGER, SALTED, Question, is_numbered
from .sentence.result import SENTENCE_AGAIN
from .ttft.result import run_numbers


def is_salted(step: str, leg: str) -> bool:
    """Whether the leg's prompt has a salt."""
    if step == "cancel":
        return leg == CANCEL_PREFILL
    return leg.startswith((SALTED, LONGER)) and CLEARING not in leg


def question(
    step: str,
    leg: str,
    plan: Plan,
    documents: Sequence[str] = (),
    salt: str | None = None,
    times: int = 1,
) -> Question | None:
    """What a leg asks; None: it is no leg of the step, or no chat. `times`: so often has it the
    documents, or (of two at once) so many tokens more, which its name does not say."""
    name = leg.removeprefix(SALTED)
    if step == CAPABILITIES and is_numbered(leg, "stream-"):
        return Question(HI, LOOK_TOKENS, False)
    if step == "sse" and is_numbered(leg, "stream-"):
        return Question(plan.short(), plan.max_tokens, True)
    if step == "ttft" and re.fullmatch(r"[1-9]\d*(\.[2-9])?", name):
        return Question(plan.short(salt), plan.max_tokens, False)
    if step == "prefill" and (match := re.fullmatch(r"(\d+)docs-[1-9]\d*", name)):
        some = documents[: int(match.group(1))]
        return Question(plan.with_documents(some, salt), plan.kb_max_tokens, False)
    if step == "cache":
        return question_of_cache(leg, plan, [*documents] * times, salt)
    if step == "sentence" and (is_numbered(leg, "stream-") or is_numbered(leg, SENTENCE_AGAIN)):
        return Question(plan.sentence(), plan.sentence_max_tokens, True)
    if step == "cancel":
        return question_of_cancel(leg, plan, documents, salt, times)
    return None


def cold_legs(step: str, plan: Plan) -> list[str]:
    """The legs of the first round that must be proven cold."""
    if step == "ttft":
        return run_numbers(plan)
    if step == "prefill":
        return [f"{docs}docs-1" for docs in plan.doc_counts]
    return [f"{name}-1" for name in CACHE_COLD]
