"""Measures the sse step."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from ... import sse
from ...evidence import thoughts
from ...evidence.artifacts import Chunk
from ...evidence.derive import derive
from ...evidence.timeline import Timeline
from ...wire.exchange import Exchange
from ..bench import Bench
from ..rounds import as_made
from .result import SseResult


def measure_sse(bench: Bench) -> SseResult:
    """Step 2, with the very `stream()` that the run directory gets a copy of."""

    def ask(attempt: int) -> SseResult:
        return _stream(bench, f"stream-{attempt}")

    result = as_made(bench, "sse", ask, lambda result: result.timeline)
    timeline = result.timeline
    for text in stream_notes(timeline):
        bench.note("sse", text)
    return result


def stream_notes(timeline: Timeline) -> list[str]:
    """Remarks on a stream that holds all the same."""
    notes = []
    if timeline.unended is not None:
        notes.append(
            f"the last event ({timeline.unended!r}) was not ended by a blank line: clients that "
            "follow the standard do not see it"
        )
    elif not timeline.done and timeline.finish_reason is not None:
        notes.append("the stream ended without data: [DONE], with a finish_reason before")
    if timeline.repeats:
        notes.append(
            "every delta repeats all text so far: the pieces are what each adds. A client that "
            "puts deltas together, as OpenAI's do, shows the text many times"
        )
    if timeline.thought_tag is not None:
        notes.append(thoughts.words(timeline.thought_tag))
    return notes


def _stream(bench: Bench, leg: str) -> SseResult:
    bench.progress(f"sse {leg}")
    exchange = Exchange(bench.client, f"sse/{leg}")
    wanted = bench.question("sse", leg)
    question = (wanted.messages, wanted.max_tokens, wanted.cache_prompt)
    # What is read is given to sse.py as it is kept: a secret in it is starred.
    recording = exchange.run(sse.request_body(*question))
    raw = io.BytesIO()
    pieces: list[dict[str, Any]] = []
    # Where the stream fails, the timeline has the words, and the relation judges them.
    with contextlib.suppress(sse.StreamFailure):
        pieces, _, _ = sse.stream(*question, raw_out=raw, send=lambda _: recording.reads)
    timeline = derive(recording)
    if timeline.error is None:
        chunks = tuple(Chunk(piece["t_ms"], piece["text"]) for piece in pieces)
    else:  # stream() raised and gave nothing; what had come is kept
        chunks = tuple(Chunk(piece.t_ms, piece.text) for piece in timeline.sent)
    return SseResult(raw.getvalue(), chunks, timeline)
