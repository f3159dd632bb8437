"""Judges the prefill step: prefill growth. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...evidence.artifacts import PrefillRow
from ...verdicts.causes import INVISIBLE, clock_off, warm_leg
from ...verdicts.prompts import prompt_not_growing
from ...verdicts.times import (
    judge_clock,
    no_count,
    not_counted,
    reasoning_hides,
    times_confirm,
    times_decide,
    to_first_tokens,
)
from ...verdicts.verdict import Cause, Verdict, alike, count, graded, holds_if, milliseconds
from .result import PrefillResult

PREFILL_TIME = Cause(
    "prefill-time",
    "more tokens were processed, and the first text came no later: the machine is too busy to see "
    "the effect; measure again when it is quiet, or give longer documents (--llm-kb)",
)


def judge_prefill(result: PrefillResult) -> list[Verdict]:
    """Step 4."""
    rows = result.rows
    docs = ", ".join(str(row.docs) for row in rows)
    legs = [leg for docs_legs in result.legs.values() for leg in docs_legs]
    by_count = f"prompt_n grows with the documents ({docs})"
    by_time = f"ttft grows with the documents ({docs})"
    for leg in legs:
        if leg.warm:
            warm = warm_leg("uncached", leg)
            both = alike("prefill", (by_count, by_time), "inconclusive", f"docs {docs}", warm)
            return [*both, *judge_clock("prefill", legs)]
    times = to_first_tokens(", ".join(map(milliseconds, result.prefilled_ms())), legs)
    ratios, in_order = result.ratios(), result.in_order
    off = clock_off(legs)
    if off is not None:
        ratios, in_order = [], False
    hidden = off or reasoning_hides(legs)
    found = result.stalled
    cut_off = None if found is None else prompt_not_growing(*found)
    if not result.counted:
        if not result.legs:
            grows = holds_if("prefill", by_time, result.in_order, times, PREFILL_TIME)
            return [no_count("prefill", "every row has its prompt_n"), grows]
        if found is not None:
            numbers = f"{count(found[0])} and {count(found[1])} tokens in all"
            assert cut_off is not None
            both = alike("prefill", (by_count, by_time), "broken", numbers, cut_off)
            return [*both, *judge_clock("prefill", legs)]
        # Prompts that grow by the server's own count are not cut off; they are only fast.
        totals = [leg.prompt_total for leg in result.legs[max(result.legs)]]
        fast = None if all(total is None for total in totals) else INVISIBLE
        decided = None if off else result.decided()
        unseen = hidden or fast
        verdict = times_decide("prefill", by_time, times, in_order, ratios, decided, unseen)
        return [not_counted("prefill", by_count), verdict, *judge_clock("prefill", legs)]
    numbers = ", ".join(count(row.prompt_n) for row in rows) + " tokens"
    verdicts = [holds_if("prefill", by_count, cut_off is None, numbers, cut_off)]
    cause = cut_off or hidden or PREFILL_TIME
    if not result.legs:
        verdicts.append(holds_if("prefill", by_time, in_order, times, cause))
    else:
        verdicts.append(times_confirm("prefill", by_time, times, in_order, ratios, cause))
    return verdicts + judge_clock("prefill", legs)


def lab_documents(rows: Sequence[PrefillRow]) -> Verdict:
    """The lab asks with 0, 4 and 12 documents."""
    docs = [row.docs for row in rows]
    problem = f"prefill.json: docs {docs}" if docs != [0, 4, 12] else None
    return graded("prefill", "docs are 0, 4, 12", problem)
