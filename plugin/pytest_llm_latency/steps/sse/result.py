"""What the sse step gives, derived from its recordings. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...evidence.artifacts import Chunk
from ...evidence.derive import derive
from ...evidence.timeline import Timeline
from ..legs import Recordings, leg_of


@dataclass(frozen=True)
class SseResult:
    """Step 2: the raw bytes, the pieces, the timeline. From files alone the timeline has no
    times, and `timed` is false."""

    raw: bytes
    chunks: tuple[Chunk, ...]
    timeline: Timeline
    timed: bool = True


def sse_result(recordings: Recordings) -> SseResult:
    """From the last of the recordings "stream-1", "stream-2", …: those before it did not come
    as they were made."""
    recording = leg_of(recordings, f"stream-{max(len(recordings), 1)}")
    timeline = derive(recording)
    chunks = tuple(Chunk(piece.t_ms, piece.text) for piece in timeline.sent)
    return SseResult(recording.body, chunks, timeline)
