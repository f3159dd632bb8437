"""What shows whether the server is idle: /slots, a gauge, or a request for one token. Pure."""

from __future__ import annotations

from ...evidence.activity import answer_of
from ...evidence.derive import derive
from ..answers import known_ms, reply_of
from ..legs import Recordings, leg_of
from .legs import CANCEL_METRICS, CANCEL_SLOTS, CANCEL_TWO

# A short answer that waited for this share of the long one before it was not made beside it.
WAITED_SHARE = 0.8
MEASURABLE_MS = 100.0


def watched_by(recordings: Recordings) -> tuple[str | None, str | None]:
    """(what shows whether the server is idle, why nothing does), one of them None.

    "slots" and "metrics" are answers of these endpoints before the first close; "one-token-1", …
    are requests for one token; the two of `CANCEL_TWO` were asked for at once.
    """
    slots = reply_of(leg_of(recordings, CANCEL_SLOTS))
    first = answer_of(slots.status, slots.body)
    found, answer = "/slots", first
    if first.busy is None and CANCEL_METRICS in recordings:
        metrics = reply_of(recordings[CANCEL_METRICS])
        found, answer = "/metrics", answer_of(metrics.status, metrics.body)
    if answer.busy is not None:
        busy = f"{found} says that the server is busy with requests of others"
        return (None, busy) if answer.busy else (found, None)
    several = serves_several(recordings)
    if several is not None:
        why = "it has no gauge of running requests in /metrics"
        return None, f"{first.missing}; {why}; {several}"
    return "1-token request", None


def serves_several(recordings: Recordings) -> str | None:
    """Why a request cannot tell whether the server is idle; None: it can, since the server works
    on one at a time. The short one was asked for when the long one had its first piece."""
    if any(name not in recordings for name in CANCEL_TWO):
        return "no two requests could be made at once"
    long, short = (derive(recordings[name]) for name in CANCEL_TWO)
    for timeline in (short, long):
        if timeline.error is not None or not timeline.pieces:
            return f"two requests at once failed: {timeline.error or 'no text'}"
    if long.finish_reason is None:
        return "a second request ends the first"
    span_ms = long.pieces[-1].t_ms - long.pieces[0].t_ms
    if span_ms < MEASURABLE_MS:
        return "its answers are over too soon to tell whether it works on two at once"
    if known_ms(short.ttft_ms) < WAITED_SHARE * span_ms:
        return "it answers two requests at once"
    return None
