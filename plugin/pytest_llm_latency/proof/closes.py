"""What a close, the answers of /slots around it and the log of the cancel step cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..evidence.activity import ONE_TOKEN, Poll, answer_of
from ..evidence.derive import TokenWatch
from ..evidence.recording import Recording
from ..evidence.run_index import RUN_FILE
from ..plan import Plan
from ..steps.cancel.asks import PREFILL_CASE_CLOSE_AT_MS
from ..steps.cancel.legs import (
    CANCEL_CLOSE_AT,
    CANCEL_METRICS,
    CANCEL_PREFILL,
    CANCEL_SLOTS,
    is_close,
    order_of_closes,
)
from .evidence import Evidence, Run, file_of, lab_step
from .recordings import late_ms

REFUSALS = (401, 403, 404, 405, 501)
WATCHED_AT_MOST_MS = {True: 120_000.0, False: 30_000.0}  # in prefill, or else
ANSWERED_AT_MOST_MS = 30_000.0


def problem(evidence: Evidence, step: str) -> str | None:
    """What is wrong with the first close of the step that is wrong."""
    if lab_step(step) != "cancel":
        return None
    run, legs = evidence.run(step), evidence.recordings(step)
    for leg, recording in sorted(legs.items()):
        if not is_close(leg):
            continue
        words = _closed(leg, recording, run)
        if words is not None:
            return f"{file_of(step, leg)}: {words}"
        words = _polled(recording, evidence.load_polls(step, leg))
        if words is not None:
            return f"evidence/{step}/{leg}.polls.jsonl: {words}"
    return _offered(evidence, step, run) or (_logged(evidence, run) if step == "cancel" else None)


def _closed(leg: str, recording: Recording, run: Run) -> str | None:
    close_at_ms = _close_at_ms(leg, run.plan or Plan())
    end, times = recording.end, [read.t_ms for read in recording.reads]
    if close_at_ms is not None and run.plan is not None:
        if end.kind == "closed" and end.t_ms < close_at_ms:
            return (
                f"it was closed at {end.t_ms:.6g} ms, expected {close_at_ms:.6g} or later, because "
                "the step closes then"
            )
        late = close_at_ms + late_ms(recording)
        if end.kind == "eof" and end.t_ms > late:
            return (
                f"it ended with eof at {end.t_ms:.6g} ms, expected closed, because the step closes "
                f"at {close_at_ms:.6g} ms"
            )
        after = [time_ms for time_ms in times if time_ms >= close_at_ms]
        if len(set(after)) > 1:
            return (
                f"reads came at {after[0]:.6g} and {after[-1]:.6g} ms, expected one at most from "
                f"{close_at_ms:.6g} ms on, because the step closes then"
            )
        return None
    if close_at_ms is None and end.kind == "closed" and run.is_ours:
        first = _first_token(recording)
        if first is None or len(set(times[first:])) > 1:
            which = "no read" if first is None else f"read {first + 1} of {len(times)}"
            return (
                f"{which} has the first token, expected the last, because the step closes right "
                "after it"
            )
    return None


def _close_at_ms(leg: str, plan: Plan) -> float | None:
    """When a close is made by time; None: right after the first token."""
    if leg == CANCEL_CLOSE_AT:
        return plan.cancel_close_at_ms
    return PREFILL_CASE_CLOSE_AT_MS if leg == CANCEL_PREFILL else None


def _first_token(recording: Recording) -> int | None:
    """The read with the first token, counted from 0."""
    watch = TokenWatch()
    return next((i for i, read in enumerate(recording.reads) if watch.feed(read.data)), None)


def _polled(recording: Recording, polls: Sequence[Poll]) -> str | None:
    for poll in polls:
        if poll.answered_ms < poll.asked_ms:
            return (
                f"answered_ms is {poll.answered_ms:.6g}, expected {poll.asked_ms:.6g} or later, "
                "because it was asked then"
            )
    for one, other in pairwise(polls):
        if other.asked_ms < one.answered_ms:
            return (
                f"asked_ms is {other.asked_ms:.6g}, expected {one.answered_ms:.6g} or later, "
                "because the answer before came then, and one is asked after the other"
            )
    begun_ms = -(recording.end.t_ms + late_ms(recording))
    if polls and polls[0].asked_ms < begun_ms:
        return (
            f"asked_ms is {polls[0].asked_ms:.6g}, expected {-recording.end.t_ms:.6g} or later, "
            "because the request was sent then (times count from the close)"
        )
    after = [poll for poll in polls if poll.asked_ms >= 0]
    idle = next((number for number, poll in enumerate(after, 1) if poll.busy is False), None)
    if idle is not None and idle < len(after):
        return (
            f"{len(after)} answers after the close, expected {idle}, because that one is idle, and "
            "then nothing more is asked"
        )
    in_prefill = _first_token(recording) is None
    latest_ms = WATCHED_AT_MOST_MS[in_prefill] + ANSWERED_AT_MOST_MS
    if after and after[-1].body != ONE_TOKEN and after[-1].asked_ms > latest_ms:
        return (
            f"asked_ms is {after[-1].asked_ms:.6g}, expected {latest_ms:.6g} at most, because no "
            "slot is watched longer"
        )
    return None


def _offered(evidence: Evidence, step: str, run: Run) -> str | None:
    """What shows that the server is idle, against what the look at it found."""
    offers, legs = run.offers(behind=True), evidence.recordings(step)
    for leg, key in ((CANCEL_SLOTS, "slots"), (CANCEL_METRICS, "metrics")):
        if leg not in legs or not offers.get(key):
            continue
        status, body = legs[leg].status or 0, legs[leg].body
        if status in REFUSALS or (status == 200 and answer_of(status, body).busy is None):
            return (
                f"{file_of(step, leg)}: found no answer with slots or a gauge (HTTP {status}), "
                f"expected one, because {RUN_FILE} says that the server offers {offers[key]}"
            )
    return None


def _logged(evidence: Evidence, run: Run) -> str | None:
    entry = evidence.index.step("cancel")
    source, log = entry.get("log_source"), run.server.get("log")
    if "log" in run.server and source != log:
        return (
            f"{RUN_FILE}: log_source is {source!r}, expected {log!r}, because the run says that "
            "this is its log"
        )
    named = [key for key in ("log", "log_command") if run.options.get(key)]
    if named and source is None:
        return (
            f"{RUN_FILE}: log_source is null, expected a log, because the run was given "
            f"--llm-{named[0].replace('_', '-')}"
        )
    if run.server.get("kind", "url") != "url" and source is None:
        return (
            f"{RUN_FILE}: log_source is null, expected a log, because the server was the run's own"
        )
    cases = [case for case in entry.get("cases") or [] if isinstance(case, dict)]
    if source is None:
        spanned = [case["name"] for case in cases if case.get("log_span") is not None]
        if spanned:
            return f"{RUN_FILE}: {spanned[0]} has a log_span, expected none: there is no log"
        return None
    bare = [case["name"] for case in cases if case.get("log_span") is None]
    if bare:
        return f"{RUN_FILE}: {bare[0]} has no log_span, expected one, because there is a log"
    return _spans(evidence, cases)


def _spans(evidence: Evidence, cases: Sequence[dict[str, object]]) -> str | None:
    size, end = len(evidence.read("server.log")), 0
    order = sorted(cases, key=lambda case: order_of_closes(str(case["name"])))
    for case in order:
        span = case["log_span"]
        assert isinstance(span, dict)
        begin, until = span["log_from"], span["log_to"]
        if not begin <= until <= size:
            return (
                f"{RUN_FILE}: log_span of {case['name']} is {begin} to {until}, expected a part of "
                f"server.log, which has {size} bytes"
            )
        if begin < end:
            return (
                f"{RUN_FILE}: log_span of {case['name']} begins at {begin}, expected {end} or "
                "later, because the close before it ended there"
            )
        end = until
    return None
