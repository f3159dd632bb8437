"""Judges the cancel step: cancellation. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...verdicts.verdict import Cause, Verdict, alike, count, holds_if, milliseconds
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
    prefill_late,
    prefill_unseen,
)
from .legs import CANCEL_PREFILL
from .result import CancelResult

PREFILL_STOPS = "a close in prefill stops it"
LOGGED = "the log has the task's cancel line"
SLOT_IDLE = "the close stops the server: the slot goes idle"


def judge_cancel(result: CancelResult) -> list[Verdict]:
    """Step 7: closed in time, the slot idle, prefill stopped, too, the log agrees, the next request
    answered."""
    artifact = result.cancel
    case = result.cases[0] if result.cases else None
    numbers = (
        f"{artifact.received_tokens} < {artifact.max_tokens} pieces, closed at "
        f"{milliseconds(artifact.closed_at_ms)}"
    )
    early = "received < max_tokens"
    if case is not None and case.phase == "ended":
        ended = Cause(
            "answer-ended",
            "the answer ended even before a close right after its first piece: nothing was "
            "cancelled. Ask for a longer answer (llm_plan.cancel_question, cancel_max_tokens)",
        )
        verdicts = alike("cancel", (early, SLOT_IDLE), "inconclusive", numbers, ended)
        verdicts.append(_prefill_stops(result))
        verdicts.append(Verdict("cancel", LOGGED, "not measurable", "nothing cancelled", ended))
    else:
        answer_ended = "the answer ended before the close, which proves nothing"
        verdicts = [
            holds_if(
                "cancel",
                early,
                artifact.received_tokens < artifact.max_tokens,
                f"{numbers} in {case.phase}" if case is not None else numbers,
                Cause("answer-ended", answer_ended),
            ),
            _slot_goes_idle(result, case),
        ]
        if case is not None:
            verdicts.append(_prefill_stops(result))
        if case is not None or result.log_source is not None:
            verdicts.append(_logged(result, case))
    if case is not None:
        verdicts.append(
            holds_if(
                "cancel",
                "the next request is answered",
                result.next_error is None,
                result.next_error or "answered in full",
                Cause("next-request-suffers", f"after the cancel: {result.next_error}"),
            )
        )
    return verdicts


def _logged(result: CancelResult, case: CancelCase | None) -> Verdict:
    if result.log_source is None:
        cause = Cause("no-log", "no log was given: --llm-log=FILE, --llm-log-command=CMD")
        return Verdict("cancel", LOGGED, "not measurable", "no log", cause)
    ran_on = _ran_on(result)
    not_logged = Cause(
        "cancel-not-logged",
        f"{result.log_source} has no 'cancel task' for this request: is it this server's log, "
        "at its default level?",
    )
    logged = holds_if(
        "cancel",
        LOGGED,
        result.log_line is not None,
        result.log_line or f"not in {result.log_source}",
        # The log of a server that was seen to work on is right.
        cancel_ignored(ran_on) if ran_on is not None and ran_on.proof != "time" else not_logged,
    )
    # One that tells of no request at all is another server's, and proves nothing.
    silent = logged.cause is not None and case is not None and not case.log_talks
    return replace(logged, outcome="inconclusive") if silent else logged


def _ran_on(result: CancelResult) -> CancelCase | None:
    """A close in generation that did not stop it. By its time alone, or because it was never seen
    idle, one may seem to have been ignored where others kept the server busy."""
    in_generation = [case for case in result.cases if case.phase == "generation"]
    stopped = any(case.stop == "stopped" for case in in_generation)
    for case in in_generation:
        unsure = case.proof == "time" or case.idle_after_ms is None
        if case.stop == "ran on" and not (unsure and stopped) and not is_soon_by_time(case):
            return case
    return None


def _slot_goes_idle(result: CancelResult, case: CancelCase | None) -> Verdict:
    relation = SLOT_IDLE
    idle_ms = result.cancel.slot_idle_after_ms
    missing = result.unwatched
    if case is None and idle_ms is None:
        missing = "slot_idle_after_ms is null, and no evidence says why"
    if missing is not None:
        cause = Cause("no-slots", missing)
        return Verdict("cancel", relation, "not measurable", "nothing shows it", cause)
    if case is not None and (
        case.waited_ms is None or (idle_ms is None and case.waited_ms < WATCHED_AT_LEAST_MS)
    ):
        return Verdict("cancel", relation, "inconclusive", "no answer", UNANSWERED)
    numbers = f"idle {milliseconds(idle_ms)} after the close"
    if result.watched_by not in (None, "/slots"):
        numbers += f", by {result.watched_by}"
    elif result.log_source is None:
        numbers += ", by /slots alone (no log)"
    if case is None:
        return holds_if("cancel", relation, True, numbers)
    in_generation = [one for one in result.cases if one.phase == "generation"]
    ran_on = _ran_on(result)
    if ran_on is None and idle_ms is None and result.watched_by == "/metrics":
        return Verdict("cancel", relation, "inconclusive", "never idle", GAUGE_NEVER_IDLE)
    # What was never idle after the first close is seen to be at work after the next.
    watched = case if idle_ms is None and not case.others else ran_on or case
    if watched.others and (ran_on is not None or idle_ms is None):
        cause = OTHERS_AT_THE_CLOSE
        return Verdict("cancel", relation, "inconclusive", numbers, cause)
    if ran_on is not None or idle_ms is None:
        ignored = cancel_ignored(watched)
        shown = milliseconds(watched.waited_ms)
        return Verdict("cancel", relation, "broken", f"busy until {shown} after the close", ignored)
    numbers += f" (to within {milliseconds(case.resolution_ms)})"
    # What never showed a busy server proves nothing, where nothing else tells of this request.
    changed = any(
        one.shown_busy or one.log_line is not None or one.proof == "slots" for one in result.cases
    )
    if not changed or any(one.seen_busy is False for one in in_generation):
        return Verdict("cancel", relation, "inconclusive", numbers, SLOTS_BLIND)
    late = next(filter(cancel_late, in_generation), None)
    told_by = late or (case if case.proof == "slots" else None)
    if told_by is not None and told_by.others:
        cause = OTHERS_AT_THE_CLOSE
        return Verdict("cancel", relation, "inconclusive", numbers, cause)
    if late is not None:
        return Verdict("cancel", relation, "broken", numbers, cancel_late(late))
    slow = [one for one in in_generation if one.late]
    if len(slow) > 1 and len(slow) == len(in_generation):
        return Verdict("cancel", relation, "broken", numbers, cancel_slow(slow))
    unclear = bool(slow) or any(one.stop == "ran on" for one in in_generation)
    if unclear or all(one.stop != "stopped" for one in result.cases):
        return Verdict("cancel", relation, "inconclusive", numbers, CANCEL_UNPROVEN)
    return Verdict("cancel", relation, "holds", numbers)


def _prefill_stops(result: CancelResult) -> Verdict:
    """Not measurable where the prompt's tokens are not counted, or it was processed too fast for
    a close to be seen."""
    # The contract's own close may fall into prefill, too, of a prompt that nobody has counted.
    in_prefill = [one for one in result.cases if one.phase == "prefill"]
    in_prefill.sort(key=lambda one: one.prompt_tokens is None)
    asked = [one for one in result.cases if one.name == CANCEL_PREFILL]
    case = next(iter([*in_prefill, *asked]), None)
    numbers = "nothing shows it"
    if case is not None and case.idle_after_ms is not None:
        numbers = f"idle {milliseconds(case.idle_after_ms)} after the close"
    if case is not None and case.prompt_processed is not None and case.prompt_tokens is not None:
        processed = f"{count(case.prompt_processed)} of {count(case.prompt_tokens)}"
        numbers = f"{processed} tokens processed, {numbers}"
    why = prefill_unseen(case)
    if case is None or why is not None:
        cause = Cause("prefill-not-seen", why or "no close in prefill could be measured")
        return Verdict("cancel", PREFILL_STOPS, "not measurable", numbers, cause)
    stopped = case.stop == "stopped"
    return holds_if("cancel", PREFILL_STOPS, stopped, numbers, prefill_late(case))
