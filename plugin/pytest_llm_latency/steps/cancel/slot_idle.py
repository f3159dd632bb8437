"""Whether a close stopped the server: a table of conditions, each with its verdict. Pure.

The rows are tried in order, and the first that fits decides. They read beside docs/verdicts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...evidence.run_index import Outcome
from ...verdicts.verdict import Cause, Verdict, milliseconds
from .case import WATCHED_AT_LEAST_MS, CancelCase, is_soon_by_time
from .causes import (
    CANCEL_UNPROVEN,
    GAUGE_NEVER_IDLE,
    OTHERS_AT_THE_CLOSE,
    SLOTS_BLIND,
    UNANSWERED,
    cancel_ignored,
    cancel_late,
    cancel_slow,
)
from .result import CancelResult

SLOT_IDLE = "the close stops the server: the slot goes idle"


def ran_on(result: CancelResult) -> CancelCase | None:
    """A close in generation that did not stop it. By its time alone, or because it was never seen
    idle, one may seem to have been ignored where others kept the server busy."""
    in_generation = [case for case in result.cases if case.phase == "generation"]
    stopped = any(case.stop == "stopped" for case in in_generation)
    for case in in_generation:
        unsure = case.proof == "time" or case.idle_after_ms is None
        if case.stop == "ran on" and not (unsure and stopped) and not is_soon_by_time(case):
            return case
    return None


@dataclass(frozen=True)
class Closes:
    """What is known of the closes: `case` is the contract's, None where only the file is there."""

    result: CancelResult
    case: CancelCase | None

    @cached_property
    def idle_ms(self) -> float | None:
        """When the contract's slot was idle, from the close."""
        return self.result.cancel.slot_idle_after_ms

    @cached_property
    def missing(self) -> str | None:
        """Why nothing shows whether the server is idle; None: something does."""
        if self.case is None and self.idle_ms is None:
            return "slot_idle_after_ms is null, and no evidence says why"
        return self.result.unwatched

    @cached_property
    def in_generation(self) -> Sequence[CancelCase]:
        """The closes that fell into generation."""
        return [one for one in self.result.cases if one.phase == "generation"]

    @cached_property
    def ran_on(self) -> CancelCase | None:
        """One that did not stop the generation."""
        return ran_on(self.result)

    @cached_property
    def works_on(self) -> bool:
        """Whether the server was seen to work on after a close, or not seen idle."""
        return self.ran_on is not None or self.idle_ms is None

    @cached_property
    def watched(self) -> CancelCase:
        """The close that shows it. What was never idle after the first is seen to be at work after
        the next."""
        assert self.case is not None
        if self.idle_ms is None and not self.case.others:
            return self.case
        return self.ran_on or self.case

    @cached_property
    def late(self) -> CancelCase | None:
        """One in generation after which too many tokens came."""
        return next(filter(cancel_late, self.in_generation), None)

    @cached_property
    def slow(self) -> Sequence[CancelCase]:
        """Those in generation that were followed late, by the server's own beat."""
        return [one for one in self.in_generation if one.late]

    # --- the conditions of the table ---

    def unanswered(self) -> bool:
        """Nothing answered after the close, or not for long enough to see that it works on."""
        if self.case is None:
            return False
        waited_ms = self.case.waited_ms
        return waited_ms is None or (self.idle_ms is None and waited_ms < WATCHED_AT_LEAST_MS)

    def gauge_never_idle(self) -> bool:
        """A gauge counts the requests of everybody."""
        is_gauge = self.result.watched_by == "/metrics"
        return self.ran_on is None and self.idle_ms is None and is_gauge

    def blind(self) -> bool:
        """What never showed a busy server proves nothing, where nothing else tells of this
        request."""
        changed = any(
            one.shown_busy or one.log_line is not None or one.proof == "slots"
            for one in self.result.cases
        )
        return not changed or any(one.seen_busy is False for one in self.in_generation)

    def decided_among_others(self) -> bool:
        """The close that decides fell among requests of others."""
        by_slots = self.case is not None and self.case.proof == "slots"
        told_by = self.late or (self.case if by_slots else None)
        return told_by is not None and told_by.others

    def all_slow(self) -> bool:
        """Every one of several closes in generation was followed late."""
        return 1 < len(self.slow) == len(self.in_generation)

    def unproven(self) -> bool:
        """Nothing tells a cancelled answer from one that came to its own end."""
        some_ran_on = any(one.stop == "ran on" for one in self.in_generation)
        none_stopped = all(one.stop != "stopped" for one in self.result.cases)
        return bool(self.slow) or some_ran_on or none_stopped

    # --- what is shown ---

    def idle_words(self) -> str:
        """When the slot was idle, and by what that is known."""
        words = f"idle {milliseconds(self.idle_ms)} after the close"
        if self.result.watched_by not in (None, "/slots"):
            return f"{words}, by {self.result.watched_by}"
        return words if self.result.log_source is not None else f"{words}, by /slots alone (no log)"

    def idle_within(self) -> str:
        """The same, and how exactly that is known."""
        assert self.case is not None
        return f"{self.idle_words()} (to within {milliseconds(self.case.resolution_ms)})"

    def busy_words(self) -> str:
        """Until when the server was seen busy."""
        return f"busy until {milliseconds(self.watched.waited_ms)} after the close"


@dataclass(frozen=True)
class Row:
    """A row of the table: where `when` is true, the verdict."""

    when: Callable[[Closes], bool]
    outcome: Outcome
    numbers: Callable[[Closes], str]
    cause: Callable[[Closes], Cause | None]


def _late_cause(closes: Closes) -> Cause | None:
    return cancel_late(closes.late) if closes.late is not None else None


TABLE: Sequence[Row] = (
    Row(
        lambda closes: closes.missing is not None,
        "not measurable",
        lambda _: "nothing shows it",
        lambda closes: Cause("no-slots", closes.missing or ""),
    ),
    Row(Closes.unanswered, "inconclusive", lambda _: "no answer", lambda _: UNANSWERED),
    Row(
        lambda closes: closes.case is None,  # nothing but the file
        "holds",
        Closes.idle_words,
        lambda _: None,
    ),
    Row(
        Closes.gauge_never_idle,
        "inconclusive",
        lambda _: "never idle",
        lambda _: GAUGE_NEVER_IDLE,
    ),
    Row(
        lambda closes: closes.works_on and closes.watched.others,
        "inconclusive",
        Closes.idle_words,
        lambda _: OTHERS_AT_THE_CLOSE,
    ),
    Row(
        lambda closes: closes.works_on,
        "broken",
        Closes.busy_words,
        lambda closes: cancel_ignored(closes.watched),
    ),
    Row(Closes.blind, "inconclusive", Closes.idle_within, lambda _: SLOTS_BLIND),
    Row(
        Closes.decided_among_others,
        "inconclusive",
        Closes.idle_within,
        lambda _: OTHERS_AT_THE_CLOSE,
    ),
    Row(lambda closes: closes.late is not None, "broken", Closes.idle_within, _late_cause),
    Row(Closes.all_slow, "broken", Closes.idle_within, lambda closes: cancel_slow(closes.slow)),
    Row(Closes.unproven, "inconclusive", Closes.idle_within, lambda _: CANCEL_UNPROVEN),
    Row(lambda _: True, "holds", Closes.idle_within, lambda _: None),
)


def deciding_row(closes: Closes) -> Row:
    """The first row that fits; the last fits always."""
    return next(row for row in TABLE if row.when(closes))


def judge_slot_idle(result: CancelResult, case: CancelCase | None) -> Verdict:
    """The verdict of the row that decides."""
    closes = Closes(result, case)
    row = deciding_row(closes)
    return Verdict("cancel", SLOT_IDLE, row.outcome, row.numbers(closes), row.cause(closes))
