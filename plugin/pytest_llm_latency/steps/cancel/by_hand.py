"""Checks of the cancel step's files where they were made by hand. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ...evidence.artifacts import Cancel
from ..by_hand import CANCEL_TOKENS, LAB_TOKENS, Given, Problem

CLOSE_AT_MS = (450.0, 5000.0)
FAST_ANSWER_MS = 3000.0  # one that may have ended before the close at 500 ms
PROMPT_TOKENS_AT_MOST = 1024  # of the cancel step's question, with any template
_STAMP = re.compile(rb"^(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) ")
_TASK = re.compile(rb'(?:task |id_task"? ?[=:] ?)(\d+)')
_HELD = re.compile(rb"n_tokens = (\d+)")


def limit_of_tokens(given: Given) -> Problem:
    if given.cancel is None or given.cancel.max_tokens == CANCEL_TOKENS:
        return None
    return (
        "wrong-limit",
        f"cancel.json: max_tokens: found {given.cancel.max_tokens}, expected {CANCEL_TOKENS}, "
        "because the lab asks for so many",
    )


def close_moment(given: Given) -> Problem:
    if given.cancel is None:
        return None
    found = given.cancel.closed_at_ms
    expected = "expected about 500, because the close comes half a second after the request"
    if found < 5.0 and not _is_fast(given):
        return (
            "wrong-unit",
            f"cancel.json: closed_at_ms: found {found:.6g}, {expected}: are these seconds?",
        )
    low, high = CLOSE_AT_MS
    if found < low and not _is_fast(given):
        return (
            "wrong-moment",
            f"cancel.json: closed_at_ms: found {found:.6g}, {expected}; sooner ({low:.0f}) only "
            "where the whole answer is over before that",
        )
    slow_ms = 3 * given.ttft.ttft_p50 if given.ttft else 0.0
    if found > max(high, slow_ms):
        return (
            "wrong-moment",
            f"cancel.json: closed_at_ms: found {found:.6g}, {expected} (allowed: {high:.0f}, or "
            "three times the time to first text)",
        )
    return None


def _is_fast(given: Given) -> bool:
    """Whether an answer of 256 tokens may be over before half a second."""
    if given.ttft is None:
        return True
    return given.ttft.total_p50 * CANCEL_TOKENS / LAB_TOKENS < FAST_ANSWER_MS


def log_is_there(given: Given) -> Problem:
    if given.log is not None:
        return None
    return (
        "no-log",
        "server.log: found none, expected the server's log, because its 'cancel task' line proves "
        "that the close arrived: voice-llm log > server.log (in this directory), or "
        "--llm-log=FILE, --llm-log-command=CMD",
    )


def cancelled_task(given: Given) -> Problem:
    """The cancelled task is the one that was closed: it held what was received, and ran as long."""
    if given.log is None or given.cancel is None:
        return None
    launched: dict[bytes, float | None] = {}
    ours: list[_Cancelled] = []
    for line in given.log.splitlines():
        task = _TASK.search(line)
        if task is None:
            continue
        number = task.group(1)
        if b"processing task" in line and b"stop processing" not in line:
            launched[number] = _moment_ms(line)
        elif b"cancel task" in line and number in launched:
            # (A log may be of several runs of a server, each with a task of this number.)
            ours.append(_Cancelled(number, launched.pop(number), _moment_ms(line)))
        elif b"stop processing" in line and (size := _HELD.search(line)) is not None:
            same = [at for at, one in enumerate(ours) if one.number == number]
            if same and ours[same[-1]].size is None and number not in launched:
                ours[same[-1]] = replace(ours[same[-1]], size=int(size.group(1)))
    if not ours or any(_is_ours(given.cancel, one) for one in ours):
        return None
    last = ours[-1]
    shown = f", which held {last.size} tokens" if last.size is not None else ""
    return (
        "other-task",
        f"server.log: the cancelled task is {last.number.decode()}{shown}; expected that of "
        f"cancel.json ({given.cancel.received_tokens} pieces received, closed "
        f"{given.cancel.closed_at_ms:.0f} ms after the request), because the line must be that of "
        "this close, not of an earlier request",
    )


@dataclass(frozen=True)
class _Cancelled:
    """A cancelled task of the log: when it began and was cancelled, by the log's own clock, and
    how many tokens it held; None: not said."""

    number: bytes
    begun_ms: float | None
    ended_ms: float | None
    size: int | None = None


def _is_ours(cancel: Cancel, task: _Cancelled) -> bool:
    begun_ms, ended_ms, size = task.begun_ms, task.ended_ms, task.size
    received = cancel.received_tokens
    if size is not None and not received <= size <= received + PROMPT_TOKENS_AT_MOST:
        return False
    if begun_ms is None or ended_ms is None:
        return True
    ran_ms = ended_ms - begun_ms
    # It begins a little after the request, and the server may notice late.
    return ran_ms > 0.5 * cancel.closed_at_ms - 100.0 and (
        cancel.slot_idle_after_ms is None
        or ran_ms < 1.5 * (cancel.closed_at_ms + cancel.slot_idle_after_ms) + 300.0
    )


def _moment_ms(line: bytes) -> float | None:
    """The moment of a line of today's llama.cpp; None: it has none, or in another form."""
    match = _STAMP.match(line)
    if match is None:
        return None
    minutes, seconds, milli, micro = map(int, match.groups())
    return (minutes * 60 + seconds) * 1000.0 + milli + micro / 1000.0
