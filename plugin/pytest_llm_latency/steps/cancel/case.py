"""One close: what it fell into, whether it stopped the server, and by what that is known. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...errors import StreamError
from ...evidence.activity import (
    ONE_TOKEN,
    Idle,
    Poll,
    batches_after,
    looks,
    our_task,
    shows_others,
    slots_state,
    tokens_after,
)
from ...evidence.derive import derive
from ...evidence.recording import Recording
from ...evidence.server_log import cancel_line, tells_of_requests
from ...evidence.timeline import Timeline, answer_limit
from ..answers import raise_if_limited
from ..legs import Recordings
from .beat import beat_ms_of, is_controlled
from .legs import CANCEL_ONE_TOKEN

Phase = Literal["prefill", "generation", "ended"]
Stop = Literal["stopped", "ran on", "unknown"]
Proof = Literal["log", "slots", "tokens", "time"]
# A server that was not seen for so long after a close was not seen to work on.
WATCHED_AT_LEAST_MS = 1000.0
# A slot that is idle in less than this share of the time that the rest of the answer needs
# did not generate it; one that is idle only after the other share did, nearly.
STOPPED_SHARE = 0.5
RAN_ON_SHARE = 0.75
RAN_ON_TOKENS_AT_LEAST = 64
# A close is noticed at the next token; on a busy machine that was seen to take some hundred
# milliseconds, with llama-cpp-python, which looks once in a while, 650 to 1,250.
NOTICED_AT_LEAST_MS = 1300.0
PREFILL_DONE_SHARE = 0.95
PREFILL_NOTICE_MS = 1200.0
LATE_TOKENS = 16
LATE_SHARE = 0.25


@dataclass(frozen=True)
class LogSpan:
    """The bytes of the run's log that were written between a request and its idle slot."""

    log_from: int
    log_to: int


@dataclass(frozen=True)
class CancelCase:
    """One close. `seen_busy`: whether `/slots` showed the stream while it was under way; None:
    not asked. `phase` is what the close fell into: "ended" if the answer was complete by
    then. `stop` says whether the generation stopped, or ran on to its own end; `proof` what shows
    it: the log, what `/slots` says of the answer, the tokens of the prompt that it processed, or
    nothing but the time (None: it is unknown). `idle_after_ms`
    counts from the close, None: not seen idle, or no `/slots`; the slot was last seen busy
    `resolution_ms` before that. `log_line` names our task. `tokens_after_close` is what was
    generated after the close; in prefill `prompt_processed` of `prompt_tokens` were processed
    when the slot went idle; each None where the server does not say. `others`: meanwhile `/slots`
    showed requests of others; `log_talks`: this part of the log tells of requests at all. `late`:
    by the server's own beat it was idle long after a close that arrives. `shown_busy`: what shows
    that the server is idle has shown it busy, too, before or after the close. Of the pieces of
    text, `received_tokens`, reasoning is none; `tokens_before_close` are those of any channel."""

    name: str
    phase: Phase
    stop: Stop
    proof: Proof | None
    seen_busy: bool | None
    max_tokens: int
    received_tokens: int
    closed_at_ms: float
    idle_after_ms: float | None
    resolution_ms: float | None
    waited_ms: float | None
    tokens_after_close: int | None
    prompt_processed: int | None
    prompt_tokens: int | None
    log_line: str | None
    log_span: LogSpan | None
    others: bool = False
    log_talks: bool = False
    late: bool = False
    shown_busy: bool = False
    tokens_before_close: int = 0


def cancel_case(
    name: str,
    recording: Recording,
    polls: Sequence[Poll],
    log: bytes | None,
    log_span: LogSpan | None,
    prompt_tokens: int | None = None,
    beside: Recordings | None = None,
) -> CancelCase:
    """One close, from the stream's recording, the answers of `/slots` (or what stands for them),
    and the part of the log that `log_span` names. `prompt_tokens` is the server's own count of
    the prompt; `beside` are the step's recordings from before. Raises StreamError if there was
    no answer to close."""
    beside = beside or {}
    one_token_ms = _one_token_ms(beside)
    timeline = derive(recording)
    raise_if_limited(timeline)
    if timeline.error is not None:
        raise StreamError(f"{recording.label}: {timeline.error}")
    polls = [
        replace(poll, answered_ms=max(poll.answered_ms - one_token_ms, poll.asked_ms))
        if poll.body == ONE_TOKEN
        else poll
        for poll in polls
    ]
    before = looks(polls)
    shown_busy = any(poll.busy or poll.body == ONE_TOKEN for poll in polls)
    polls = [poll for poll in polls if poll.asked_ms >= 0]
    idle = slots_state(polls)
    max_tokens = answer_limit(recording.request.body)
    line = cancel_line(log, our_task(before)) if log is not None else None
    phase = _phase(timeline)
    stop: Stop = "unknown"
    proof: Proof | None = None
    processed = None
    late = False
    if phase == "prefill" and idle.idle_after_ms is not None:
        processed = polls[-1].answer.tokens
    if phase == "prefill" and _generated_all(polls, _known_prompt(recording, beside), max_tokens):
        # Nothing had come, since it was held back: the server was long past prefill.
        phase, stop, proof = "generation", "ran on", "slots"
    elif phase == "prefill" and processed is not None and prompt_tokens is not None:
        stop, proof = _prefill_stop(polls, processed, prompt_tokens), "tokens"
    elif phase != "ended":
        beat_ms = beat_ms_of(timeline, beside)
        phase, stop, proof = _stop(phase, timeline, polls, max_tokens, beat_ms)
        speed = _speed(idle, polls, max_tokens - len(timeline.token_ms), beat_ms)
        noticed = idle.idle_after_ms is not None and idle.idle_after_ms <= NOTICED_AT_LEAST_MS
        late = phase == "generation" and speed in ("late", "the rest") and not noticed
        if stop == "stopped" and proof == "time" and not is_controlled(beside):
            stop = "unknown"  # it may have become faster since
        # (In prefill the rest of the prompt takes its time, too.)
        ran_all = phase == "generation" and speed == "the rest"
        if line is not None and stop != "ran on" and not ran_all:
            stop, proof = "stopped", "log"
    return CancelCase(
        name=name,
        phase=phase,
        stop=stop,
        proof=proof if stop != "unknown" else None,
        seen_busy=before[0].busy if before else None,
        max_tokens=max_tokens,
        received_tokens=len(timeline.sent),
        closed_at_ms=recording.end.t_ms,
        idle_after_ms=idle.idle_after_ms,
        resolution_ms=idle.resolution_ms,
        waited_ms=_last_told_ms(polls),
        tokens_after_close=tokens_after(polls) if phase == "generation" else None,
        prompt_processed=processed,
        prompt_tokens=prompt_tokens if phase == "prefill" else None,
        log_line=line,
        log_span=log_span,
        others=shows_others([*before, *polls])
        # Ours cannot have generated so many.
        or (phase == "generation" and (tokens_after(polls) or 0) > max_tokens),
        log_talks=log is not None and tells_of_requests(log),
        late=late,
        shown_busy=shown_busy,
        tokens_before_close=len(timeline.token_ms),
    )


def _known_prompt(recording: Recording, beside: Recordings) -> int | None:
    """The tokens of a request's prompt, as counted when the same was asked beside it."""
    messages = recording.request.body.get("messages")
    same = (one for one in beside.values() if one.request.body.get("messages") == messages)
    totals = (derive(one).prompt_total for one in same)
    return next((total for total in totals if total is not None), None)


def _generated_all(polls: Sequence[Poll], prompt_tokens: int | None, max_tokens: int) -> bool:
    """Whether a slot that was busy after the close held all of the prompt and of the longest
    answer when it was idle: that answer came to its own end."""
    if prompt_tokens is None or not polls or not polls[0].busy or polls[-1].busy is not False:
        return False
    held = polls[-1].answer.tokens
    # The last token is not held: nothing was to follow.
    return held is not None and held >= prompt_tokens + max_tokens - 1


def _phase(timeline: Timeline) -> Phase:
    """What a close fell into; reasoning is generation, too."""
    if timeline.done or timeline.finish_reason or timeline.closed_at_ms is None:
        return "ended"
    return "prefill" if timeline.first_token_ms is None else "generation"


def tokens_in_time(rest: int) -> float:
    """How many of the `rest` tokens may come after a close that arrived: a server notices at
    the next one, and what is on its way is not its fault."""
    return max(LATE_TOKENS, LATE_SHARE * rest)


def _stop(
    phase: Phase,
    timeline: Timeline,
    polls: Sequence[Poll],
    max_tokens: int,
    beat_ms: float | None,
) -> tuple[Phase, Stop, Proof]:
    """Whether the generation stopped, by the answers of `/slots` alone (or what stands for
    them)."""
    rest, idle = max_tokens - len(timeline.token_ms), slots_state(polls)
    idle_ms = idle.idle_after_ms
    speed = _speed(idle, polls, rest, beat_ms)
    finished = polls[-1].answer.finished if polls else None
    # (In prefill the slot still says what its task before had come to.)
    if phase == "prefill" or finished is None:
        # In prefill the time goes elsewhere.
        if speed == "the rest" and phase == "generation":
            return phase, "ran on", "time"
        return phase, "stopped" if speed == "soon" else "unknown", "time"
    if not finished and idle_ms is not None:
        return phase, "stopped", "slots"
    if not finished:  # and at work, as far as it was told
        watched = (_last_told_ms(polls) or 0.0) >= WATCHED_AT_LEAST_MS
        return phase, "ran on" if watched else "unknown", "slots"
    # It came to its own end: long after the close, or just then, which proves nothing.
    after = tokens_after(polls)
    ran_on = polls[0].busy and (
        after > tokens_in_time(rest) if after is not None else speed in ("late", "the rest")
    )
    return ("generation", "ran on", "slots") if ran_on else ("ended", "unknown", "slots")


def _last_told_ms(polls: Sequence[Poll]) -> float | None:
    """When it was last said whether a slot is busy, from the close."""
    return next((poll.answered_ms for poll in reversed(polls) if poll.busy is not None), None)


def _prefill_stop(polls: Sequence[Poll], processed: int, prompt_tokens: int) -> Stop:
    """Whether a close in prefill stopped it. One that ran through counts as "ran on" only where
    `/slots` shows two ends of a batch after the server must have looked at its client, which it
    does once in a second or so: at the first of the two it could have stopped."""
    if processed < PREFILL_DONE_SHARE * prompt_tokens:
        return "stopped"
    return "ran on" if batches_after(polls, PREFILL_NOTICE_MS) >= 2 else "unknown"


Speed = Literal["soon", "late", "the rest"]


def _speed(idle: Idle, polls: Sequence[Poll], rest: int, beat_ms: float | None) -> Speed | None:
    """How soon after the close the server was idle, by its own beat: soon, later than a close
    that arrives can be noticed, or as late as the rest of the answer takes; None: it was not seen,
    the beat is not known, or it lies between."""
    if idle.idle_after_ms is None or beat_ms is None or rest <= 0:
        return None
    # A request for one token waits for its turn: its answer is the moment itself.
    waited = any(poll.body == ONE_TOKEN for poll in polls)
    earliest_ms = idle.idle_after_ms - (0.0 if waited else idle.resolution_ms or 0.0)
    rest_ms = rest * beat_ms
    soon_ms = max(tokens_in_time(rest) * beat_ms, NOTICED_AT_LEAST_MS)
    if rest >= RAN_ON_TOKENS_AT_LEAST and earliest_ms > RAN_ON_SHARE * rest_ms:
        return "the rest"
    if earliest_ms > soon_ms:
        return "late"
    return "soon" if idle.idle_after_ms < STOPPED_SHARE * rest_ms else None


def is_soon_by_time(case: CancelCase) -> bool:
    """Whether nothing but the time says what a close did, and it took no longer than a server may
    take to notice one: where the rest of the answer is as short, that proves nothing."""
    idle_ms = case.idle_after_ms
    return case.proof == "time" and idle_ms is not None and idle_ms <= NOTICED_AT_LEAST_MS


def _one_token_ms(recordings: Recordings) -> float:
    """What a 1-token request takes while the server is idle: the median; 0 where none was made."""
    times = [
        derive(recording).ttft_ms
        for name, recording in recordings.items()
        if name.startswith(CANCEL_ONE_TOKEN)
    ]
    known = [time_ms for time_ms in times if time_ms is not None]
    return statistics.median(known) if known else 0.0
