"""Which request a leg of a step sends, and when a step has been measured often enough. Pure.

Measuring asks by it, and a grading compares with it what a directory says was asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import sse
from .decision import ROUNDS_AT_MOST, enough
from .plan import Messages, Plan
from .results import (
    CACHE_COLD,
    CACHE_LEGS,
    CANCEL_CLOSE_AT,
    CANCEL_CONTROL,
    CANCEL_FIRST_PIECE,
    CANCEL_NEXT,
    CANCEL_ONE_TOKEN,
    CANCEL_PREFILL,
    CANCEL_TWO,
    CAPABILITIES,
    LONGER,
    SALTED,
    SENTENCE_AGAIN,
    CacheResult,
    PrefillResult,
)
from .timeline import Timeline

LOOK_TOKENS = 8
CONTROL_TOKENS = 16
# An answer that ends before even a close after its first piece is asked for longer.
LONGER_ANSWERS = (1, 8, 24)
PREFILL_CASE_CLOSE_AT_MS = 100.0
HI: Messages = [{"role": "user", "content": "hi"}]
AFTER_CLOSE, BEFORE_ONE_TOKEN, STIR = "after-", "before-", "stir-"
CLEARING = "clearing"


@dataclass(frozen=True)
class Question:
    """A chat request before a server's dialect."""

    messages: Messages
    max_tokens: int
    cache_prompt: bool

    def body(self) -> dict[str, Any]:
        """As JSON."""
        return sse.request_body(self.messages, self.max_tokens, self.cache_prompt)


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
    if step == CAPABILITIES and _is_numbered(leg, "stream-"):
        return Question(HI, LOOK_TOKENS, False)
    if step == "sse" and _is_numbered(leg, "stream-"):
        return Question(plan.short(), plan.max_tokens, True)
    if step == "ttft" and re.fullmatch(r"[1-9]\d*(\.[2-9])?", name):
        return Question(plan.short(salt), plan.max_tokens, False)
    if step == "prefill" and (match := re.fullmatch(r"(\d+)docs-[1-9]\d*", name)):
        some = documents[: int(match.group(1))]
        return Question(plan.with_documents(some, salt), plan.kb_max_tokens, False)
    if step == "cache":
        return _of_cache(leg, plan, [*documents] * times, salt)
    if step == "sentence" and (_is_numbered(leg, "stream-") or _is_numbered(leg, SENTENCE_AGAIN)):
        return Question(plan.sentence(), plan.sentence_max_tokens, True)
    if step == "cancel":
        return _of_cancel(leg, plan, documents, salt, times)
    return None


def _is_numbered(leg: str, prefix: str) -> bool:
    return re.fullmatch(re.escape(prefix) + r"[1-9]\d*", leg) is not None


def _of_cache(leg: str, plan: Plan, documents: Sequence[str], salt: str | None) -> Question | None:
    name, _, number = leg.removeprefix(SALTED).removeprefix(LONGER).rpartition("-")
    if not number.isdecimal():
        return None
    if name == CLEARING:
        return Question(plan.clearing(), plan.clearing_max_tokens, False)
    if name not in CACHE_LEGS:
        return None
    before = plan.changed_line if name == "changed_prefix" else ""
    after = "\n\n" + plan.changed_line.strip() if name == "changed_suffix" else ""
    messages = plan.with_documents(documents, salt, before=before, after=after)
    return Question(messages, plan.kb_max_tokens, True)


def _of_cancel(
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
    if _is_numbered(leg, BEFORE_ONE_TOKEN):
        return Question(plan.cancel(), 1, True)
    asks_one = leg == CANCEL_TWO[1] or _is_numbered(leg, CANCEL_ONE_TOKEN)
    if asks_one or leg.startswith((AFTER_CLOSE, STIR)):
        return Question(HI, 1, True)
    return None


def numbers(plan: Plan) -> list[str]:
    """The runs of the ttft step."""
    return [str(number) for number in range(1, plan.ttft_runs + 1)]


def cold_legs(step: str, plan: Plan) -> list[str]:
    """The legs of the first round that must be proven cold."""
    if step == "ttft":
        return numbers(plan)
    if step == "prefill":
        return [f"{docs}docs-1" for docs in plan.doc_counts]
    return [f"{name}-1" for name in CACHE_COLD]


def warm(timelines: Iterable[tuple[str, Timeline]], cold: Sequence[str]) -> Timeline | None:
    """The first of the legs of `cold`, repeats included, that is not proven cold."""
    proofs = (timeline for name, timeline in timelines if name.partition(".")[0] in cold)
    return next((proof for proof in proofs if not proof.cold), None)


def enough_of_prefill(rounds: int) -> Callable[[PrefillResult], bool]:
    """Whether a further round is needless, where `rounds` are wanted in any case."""

    def is_enough(result: PrefillResult) -> bool:
        if result.stalled is not None:
            return True  # the counts decide
        if result.counted and len(result.ratios()) == 1 and not result.in_order:
            return False
        return enough(result.ratios(), result.counted, rounds)

    return is_enough


def enough_of_cache(rounds: int) -> Callable[[CacheResult], bool]:
    """The same of the cache step."""

    def is_enough(result: CacheResult) -> bool:
        number = len(result.legs["first"])
        if result.counted and not all(map(result.hits, CACHE_COLD)):
            # The counts decide, if they do so twice, and the times do not contradict them.
            return number >= ROUNDS_AT_MOST or (number > 1 and result.hits_by_time() is not None)
        if result.counted and number == 1 and result.legs["changed_suffix"][0].cold:
            return False  # was the hit a lucky one, of several servers in turn?
        ratios = [result.ratios(name) for name in CACHE_COLD]
        if not result.counted:
            ratios.append(result.visible())  # what "no difference" means depends on it
        return all(enough(one, result.counted, rounds) for one in ratios)

    return is_enough
