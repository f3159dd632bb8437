"""Which request a leg of the cache step sends, and when it is measured often enough. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...plan import Plan
from ...verdicts.decision import ROUNDS_AT_MOST, enough
from ..legs import LONGER, SALTED, Question
from .result import CACHE_COLD, CACHE_LEGS, CacheResult

CLEARING = "clearing"


def question_of_cache(
    leg: str, plan: Plan, documents: Sequence[str], salt: str | None
) -> Question | None:
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
