"""Judges the cancel step: cancellation. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...verdicts.verdict import Cause, Verdict, alike, count, holds_if, milliseconds
from .case import CancelCase
from .causes import (
    cancel_ignored,
    prefill_late,
    prefill_unseen,
)
from .legs import CANCEL_PREFILL
from .result import CancelResult
from .slot_idle import SLOT_IDLE, judge_slot_idle, ran_on

PREFILL_STOPS = "a close in prefill stops it"
LOGGED = "the log has the task's cancel line"


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
            judge_slot_idle(result, case),
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
    worked_on = ran_on(result)
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
        cancel_ignored(worked_on)
        if worked_on is not None and worked_on.proof != "time"
        else not_logged,
    )
    # One that tells of no request at all is another server's, and proves nothing.
    silent = logged.cause is not None and case is not None and not case.log_talks
    return replace(logged, outcome="inconclusive") if silent else logged


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
