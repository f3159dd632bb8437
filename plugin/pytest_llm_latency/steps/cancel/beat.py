"""The time between two tokens, by which a close is judged where nothing counts. Pure."""

from __future__ import annotations

from ...evidence.derive import derive
from ...evidence.timeline import Timeline
from ..legs import Recordings
from .legs import CANCEL_CLOSE_AT, CANCEL_CONTROL, CANCEL_NEXT, CANCEL_TWO

BEAT_TOKENS_AT_LEAST = 3


def beat_ms_of(timeline: Timeline, beside: Recordings) -> float | None:
    """The time between two tokens of any channel: of this answer, and of those asked for before
    and after it, the shortest. What slowed the server before a close may have ended with it."""
    names = (CANCEL_TWO[0], CANCEL_CLOSE_AT, CANCEL_NEXT, CANCEL_CONTROL)
    others = (derive(beside[name]) for name in names if name in beside)
    beats = [beat_of(one) for one in (timeline, *others)]
    return min((ms for ms in beats if ms is not None), default=None)


def beat_of(timeline: Timeline) -> float | None:
    """The time between two tokens of an answer; None where there are too few to tell, or most came
    together: their moments are those of a reader or a buffer."""
    moments = timeline.token_ms
    if len(moments) < BEAT_TOKENS_AT_LEAST or 2 * len(set(moments)) < len(moments):
        return None
    return (moments[-1] - moments[0]) / (len(moments) - 1)


def is_controlled(beside: Recordings) -> bool:
    """Whether the beat was measured again after the closes."""
    controls = (beside[name] for name in (CANCEL_NEXT, CANCEL_CONTROL) if name in beside)
    return any(beat_of(derive(one)) is not None for one in controls)
