"""A verdict: a relation of a step, its outcome, the numbers compared and the cause. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..evidence.run_index import Outcome


@dataclass(frozen=True)
class Cause:
    """`code` is for machines and stays; `sentence` is for people."""

    code: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """One relation judged. `relation` says it in words, `numbers` shows what was compared;
    `cause` is there unless it holds."""

    step: str
    relation: str
    outcome: Outcome
    numbers: str
    cause: Cause | None = None

    def lines(self, say: Callable[[str], str] = str) -> list[str]:
        """The verdict for a person, at most three lines; `say` puts it into another language."""
        lines = [
            f"{self.step}: {say(self.outcome)}: {say(self.relation)}",
            f"  {say(self.numbers)}",
        ]
        if self.cause is not None:
            lines.append(f"  {say('cause')} {self.cause.code}: {say(self.cause.sentence)}")
        return lines


def holds_if(
    step: str, relation: str, holds: bool, numbers: str, cause: Cause | None = None
) -> Verdict:
    return Verdict(
        step, relation, "holds" if holds else "broken", numbers, None if holds else cause
    )


def outcome_of(cause: Cause) -> Outcome:
    """Where this reader itself was late, or cannot tell, nothing is proven."""
    unproven = ("reader-behind", "within-jitter", "only-reasoning", "clock-off", "rate-limited")
    return "inconclusive" if cause.code in unproven else "broken"


def milliseconds(value: float | None) -> str:
    """A time for people: four significant digits are all that a timing carries."""
    if value is None:
        return "none"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def count(value: int | None) -> str:
    """A token count for people."""
    return "not reported" if value is None else f"{value:,}"


def alike(
    step: str, relations: Iterable[str], outcome: Outcome, numbers: str, cause: Cause
) -> list[Verdict]:
    """Several relations of which the same is known."""
    return [Verdict(step, relation, outcome, numbers, cause) for relation in relations]


def graded(step: str, relation: str, problem: str | None) -> Verdict:
    """A check of files: holds if there is no problem."""
    cause = Cause("evidence-differs", problem or "")
    return holds_if(step, relation, problem is None, problem or "they agree", cause)
