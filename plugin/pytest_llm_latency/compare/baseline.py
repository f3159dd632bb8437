"""This run's verdicts and ratios beside those of an earlier one: what is worse by more than noise.

What cannot be compared is not judged, and says why. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..evidence.run_index import FAILING
from ..steps.ttft.result import TtftResult
from ..verdicts.decision import ROUNDS_TO_COMPARE
from ..verdicts.verdict import Cause, Verdict
from .noise import ROUNDS_FOR_SPREAD, change, side, spread
from .ratios import RATIOS, Length, Ratio

SAME_LENGTH_SHARE = 0.1

# What else than the first words of each may have happened: both make the ratio worse.
_REASONS = {
    "ttft": (
        "what comes before the first text got slower (prefill, a queue, something on the way)",
        "generation got faster",
    ),
    "prefill": ("prefill got slower", "generation got faster"),
    "cache": (
        "the cached prompt got slower (it is reused less, or there is more to wait for than "
        "prefill)",
        "a cold prompt got faster",
    ),
    "sentence": (
        "what comes before the first sentence is complete got slower",
        "the rest of the answer got faster",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What one run has of a step: the verdicts on it, its ratio or why there is none (None: the
    step has none), and how the times of that run's equal requests scatter (None: not known)."""

    verdicts: Sequence[Verdict]
    ratio: Ratio | str | None
    spread_of_one: Callable[[], float | None]


def measured(
    step: str, result: Any, verdicts: Sequence[Verdict], ttft: Callable[[], TtftResult | None]
) -> Measured:
    """Of a step's result; `ttft` gives the same run's equal requests, where it has them."""

    def spread_of_one() -> float | None:
        runs = ttft()
        return spread([run.ttft_ms for run in runs.ttft.runs]) if runs is not None else None

    return Measured(verdicts, RATIOS[step](result) if step in RATIOS else None, spread_of_one)


def compare(step: str, here: Measured, there: Measured | str, tolerance: float) -> list[Verdict]:
    """The verdicts on a step beside the baseline's; a sentence for one that cannot be used."""
    if isinstance(there, str):
        relation = "no worse than in the baseline"
        return [_not_judged(step, relation, "nothing to compare with", "no-baseline", there)]
    verdicts = _still_holds(step, here.verdicts, there.verdicts)
    if here.ratio is not None and there.ratio is not None:
        verdicts.append(_ratio(step, here, there, tolerance))
    return verdicts


def _not_judged(step: str, relation: str, numbers: str, code: str, why: str) -> Verdict:
    return Verdict(step, relation, "not judged", numbers, Cause(code, why))


def _still_holds(step: str, here: Sequence[Verdict], there: Sequence[Verdict]) -> list[Verdict]:
    """Nothing where nothing held."""
    held = {verdict.relation: verdict for verdict in there if verdict.outcome == "holds"}
    if not held:
        return []
    relation = "what held in the baseline is not broken"
    lost = [verdict for verdict in here if verdict.outcome == "broken" and verdict.relation in held]
    judged = {verdict.relation for verdict in here if verdict.outcome == "holds"}
    missing = [name for name in held if name not in judged]
    if not lost and missing:
        numbers = f"{len(held) - len(missing)} of {len(held)} that held there hold here"
        return [_not_judged(step, relation, numbers, "no-longer-judged", f"not here: {missing[0]}")]
    if not lost:
        return [Verdict(step, relation, "holds", f"{len(held)} held there")]
    numbers = f"{lost[0].relation}: {held[lost[0].relation].numbers} there, {lost[0].numbers} here"
    if len(lost) > 1:
        numbers = f"{numbers} (and {len(lost) - 1} more)"
    cause = Cause(
        "held-in-baseline",
        f"in the baseline it held ({held[lost[0].relation].numbers}): what has changed since, the "
        "server, its options, or what stands before it?",
    )
    return [Verdict(step, relation, "broken", numbers, cause)]


def _ratio(step: str, here: Measured, there: Measured, tolerance: float) -> Verdict:
    found, base = here.ratio, there.ratio
    name = found.name if isinstance(found, Ratio) else base.name if isinstance(base, Ratio) else ""
    relation = f"{name or 'its ratio'} is no worse than in the baseline"
    if not isinstance(found, Ratio) or not isinstance(base, Ratio):
        where, why = ("here", found) if isinstance(found, str) else ("in the baseline", base)
        return _not_judged(step, relation, f"no ratio {where}", "no-ratio", str(why))
    medians = statistics.median(found.rounds), statistics.median(base.rounds)
    numbers = f"{medians[0]:.3g} against {medians[1]:.3g}"
    for where, verdicts in (("here", here.verdicts), ("in the baseline", there.verdicts)):
        if any(verdict.outcome in FAILING for verdict in verdicts):
            why = f"the step does not hold {where}, and then its ratio says nothing"
            return _not_judged(step, relation, numbers, "step-does-not-hold", why)
    differing = _incomparable(found, base)
    if differing is not None:
        return _not_judged(step, relation, numbers, *differing)
    sides = [
        side(one.rounds, run.spread_of_one() if len(one.rounds) < ROUNDS_FOR_SPREAD else None)
        for one, run in ((found, here), (base, there))
    ]
    if sides[0] is None or sides[1] is None:
        where = "here" if sides[0] is None else "in the baseline"
        why = (
            f"its noise is not known {where}, by fewer than {ROUNDS_FOR_SPREAD} rounds and without "
            "the ttft step of the same run: record both runs with it, and with "
            f"--llm-rounds={ROUNDS_TO_COMPARE}"
        )
        return _not_judged(step, relation, numbers, "noise-unknown", why)
    found_change = change(sides[0], sides[1], tolerance)
    numbers += (
        f": x{found_change.factor:.2f} (noise x{found_change.noise:.2f}, tolerance "
        f"x{1 + tolerance:.2f})"
    )
    if found_change.is_no_worse:
        return Verdict(step, relation, "holds", numbers)
    if found_change.factor <= 1 + tolerance:
        why = (
            "it looks no worse, but noise could hide that it is: measure again when the machine is "
            "quiet, or with more --llm-rounds, the baseline, too"
        )
        return _not_judged(step, relation, numbers, "noise", why)
    if medians[0] - medians[1] <= found.resolution + base.resolution:
        why = (
            "the difference is no larger than the stamps' own error (jitter_ms, and cpu_wait_ms: "
            "how long this process waited for a core)"
        )
        return _not_judged(step, relation, numbers, "within-jitter", why)
    if not found_change.is_worse:
        rounds = f"{len(found.rounds)} rounds here, {len(base.rounds)} there"
        why = (
            f"it looks worse, but noise can do that ({rounds}): measure again when the machine is "
            "quiet, or with more --llm-rounds, the baseline, too"
        )
        return _not_judged(step, relation, numbers, "noise", why)
    slower, faster = _REASONS[step]
    cause = Cause(
        "worse-than-baseline",
        f"x{found_change.factor:.2f} what it was; noise explains no more than "
        f"x{found_change.noise:.2f}, and x{1 + tolerance:.2f} is tolerated (--llm-tolerance). "
        f"Either {slower}; or {faster}",
    )
    return Verdict(step, relation, "broken", numbers, cause)


def _incomparable(here: Ratio, there: Ratio) -> tuple[str, str] | None:
    """(code, why) two ratios are of different things; None: they are not."""
    if here.text != there.text:
        return "another-text", (
            "the answers are not the same text, and another text has another first sentence: "
            "--llm-body='{\"temperature\": 0}' in both runs makes them so on most servers"
        )
    if here.length is None or there.length is None:
        return None
    return _other_length(here.length, there.length)


def _other_length(here: Length, there: Length) -> tuple[str, str] | None:
    code, what = "another-length", here.what
    if (here.tokens is None) != (there.tokens is None):
        counted, not_counted = ("here", "in the baseline")[:: 1 if there.tokens is None else -1]
        return code, f"the tokens of the {what} are counted {counted}, and not {not_counted}"
    unit, one, other = "tokens", here.tokens, there.tokens
    if one is None:
        unit, one, other = "characters", here.characters, there.characters
    if one is None or other is None:
        return code, f"how long the {what} are is not known on both sides"
    if abs(one - other) > SAME_LENGTH_SHARE * max(one, other):
        return code, (
            f"the {what} are of other lengths: {one:,.0f} {unit} here, {other:,.0f} in the baseline"
        )
    return None
