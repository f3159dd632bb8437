"""How long each piece of an answer must have been ready before it came. Pure.

A server makes a piece a beat. Pieces that came together were made one after the other, a beat
apart, and all but the last of them have waited. What is said of that is in `verdicts/causes.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from ..evidence.timeline import Timeline
from .heaps import FASTEST_BEAT_MS, Heap, Stream, generated_ms_of, heaps_of, stream_of

PIECES_AT_LEAST = 8
# What disturbs no listener is no hold, and can come of scheduling.
HELD_AT_LEAST_MS = 50.0
HELD_BEATS_AT_LEAST = 3.0
HELD_SHARE = 0.2
CLUMP_AT_LEAST = 3
CLUMPS_AT_LEAST = 3
CLUMP_SHARE = 0.5  # of the time between two clumps the first piece waits
# A heap grows in the time since the one before, at a beat that may vary by this factor; one that
# had much less shows another beat.
BEAT_FACTOR = 1.5
REFUTED_FACTOR = 3.0
# A server that sends some tokens at a time always does; a hold makes more of them.
LARGER_THAN_USUAL = 3.0
DRAFT_TOKENS_AT_MOST = 16
# Parsers of tool calls keep some tokens; a window of as many is a hold.
LAG_PIECES_AT_LEAST = 8
LAG_FACTOR = 2.0
ALL_SPAN_SHARE = 0.1
ALL_SPAN_SHARE_OF_TOTAL = 0.02
ALL_ARRIVALS_SHARE = 0.25

Shape = Literal["not", "all", "clumps", "heaps"]
Source = Literal["the server's", "the stream's"]


@dataclass(frozen=True)
class Held:
    """What was held back of an answer.

    `shape`: "all" in one heap, in "clumps" all the way, some in "heaps", or "not". `held_ms` has a
    time for every piece of text; the first came at `first_ms`. `beat_ms` is how long a piece took
    to make, by `source`; None: nothing tells. `generated_ms` is the server's own time for all;
    None: it does not say. `span_ms` is the time in which all came.
    """

    shape: Shape = "not"
    heaps: tuple[Heap, ...] = ()
    held_ms: tuple[float, ...] = ()
    first_ms: float = 0.0
    span_ms: float = 0.0
    beat_ms: float | None = None
    source: Source = "the stream's"
    generated_ms: float | None = None

    @property
    def holds(self) -> tuple[Heap, ...]:
        """The heaps that were held."""
        return tuple(heap for heap in self.heaps if heap.held_ms > 0.0)

    @property
    def counts(self) -> tuple[int, int]:
        """How many came in such heaps, and how many in all."""
        return sum(heap.count for heap in self.holds), sum(heap.count for heap in self.heaps)

    @property
    def long_ms(self) -> float:
        """How long something was held."""
        return sum(heap.held_ms for heap in self.heaps)

    @property
    def is_much(self) -> bool:
        """Whether a good share of the pieces was held, for a good share of the time that they
        took to make."""
        held, count = self.counts
        made_ms = self.span_ms + (self.heaps[0].held_ms if self.heaps else 0.0)
        return held >= HELD_SHARE * count > 0 and self.long_ms >= HELD_SHARE * made_ms

    @property
    def where(self) -> str:
        """Where in the answer."""
        if len(self.holds) != 1:
            return f"in {len(self.holds)} heaps"
        if self.holds[0] is self.heaps[0]:
            return "at the start"
        return "at the end" if self.holds[0] is self.heaps[-1] else "in the middle"

    def made(self, piece: int, at_ms: float) -> bool:
        """Whether a hold made the moment of this piece, `at_ms` after the request, by a good share
        of it."""
        held_ms = self.held_ms[piece] if self.held_ms else 0.0
        return held_ms >= max(HELD_AT_LEAST_MS, HELD_SHARE * at_ms)


def measure(timeline: Timeline) -> Held:
    """What was held back of a whole answer."""
    if len(timeline.sent) < PIECES_AT_LEAST or timeline.total_ms is None:
        return Held()
    stream, generated_ms = stream_of(timeline), generated_ms_of(timeline)
    if _came_at_once(timeline, stream, generated_ms):
        return _all_held(stream, generated_ms)
    told_ms = None  # without a count a delta of reasoning may be all of it
    if generated_ms is not None and timeline.tokens is not None:
        told_ms = generated_ms / sum(stream.sizes)
    heaps, beat_ms = heaps_of(stream, told_ms)
    if beat_ms is None:
        return Held()
    heaps = [replace(heap, held_ms=_held_ms(heap, heaps, stream, beat_ms)) for heap in heaps]
    draft = 2 * DRAFT_TOKENS_AT_MOST if timeline.drafted else 0
    clumps = _are_clumps(heaps, beat_ms, draft)
    if not clumps:
        heaps = _long_and_large(heaps, beat_ms, draft)
    lag_ms = 0.0 if clumps else _lag_ms(heaps, stream, beat_ms, generated_ms)
    if lag_ms:
        heaps[-1] = replace(heaps[-1], held_ms=lag_ms)
    each_ms = [ms for heap in heaps for ms in _each(heap, stream, lag_ms)]
    held = Held(
        shape="clumps" if clumps else "heaps",
        heaps=tuple(heaps),
        held_ms=tuple(each_ms[i] for i in stream.texts),
        first_ms=stream.t_ms[stream.texts[0]],
        span_ms=stream.span_ms,
        beat_ms=beat_ms,
        source="the server's" if beat_ms == told_ms else "the stream's",
        generated_ms=generated_ms,
    )
    if clumps or held.is_much or held.made(0, held.first_ms):
        return held
    return replace(held, shape="not")


def _lag_ms(
    heaps: Sequence[Heap], stream: Stream, beat_ms: float, generated_ms: float | None
) -> float:
    """How long every piece was held by what always keeps the last few, and lets them go at the
    end: all came in less time than the server says that they took, by what those take."""
    if generated_ms is None or heaps[-1].size < LAG_PIECES_AT_LEAST:
        return 0.0
    short_ms, last_ms = generated_ms - stream.span_ms, (heaps[-1].size - 1.0) * beat_ms
    agree = last_ms / LAG_FACTOR <= short_ms <= last_ms * LAG_FACTOR
    return min(short_ms, last_ms) if agree and short_ms >= HELD_AT_LEAST_MS else 0.0


def _came_at_once(timeline: Timeline, stream: Stream, generated_ms: float | None) -> bool:
    """All came together although it took time to make. Where the server says how long, that is
    the measure; else what lies in the last fiftieth of a long answer came together."""
    if generated_ms is not None:
        return (
            stream.span_ms < ALL_SPAN_SHARE * generated_ms
            and generated_ms - stream.span_ms >= HELD_AT_LEAST_MS
        )
    total_ms, first_ms = timeline.total_ms or 0.0, stream.t_ms[0]
    # A fast generation after a long prefill looks the same, but comes piece by piece.
    together = len(timeline.arrivals) <= ALL_ARRIVALS_SHARE * len(timeline.sent)
    return (
        first_ms >= HELD_AT_LEAST_MS
        and total_ms - first_ms < ALL_SPAN_SHARE_OF_TOTAL * total_ms
        and (together or stream.span_ms < FASTEST_BEAT_MS * len(timeline.sent))
    )


def _all_held(stream: Stream, generated_ms: float | None) -> Held:
    """One heap; where no beat is known, it may have been ready since the request."""
    came_ms = stream.t_ms[-1]
    held_ms = stream.t_ms[0] if generated_ms is None else generated_ms - stream.span_ms
    size, size_bytes = sum(stream.sizes), sum(stream.size_bytes)
    heap = Heap(0, len(stream.t_ms), size, came_ms, came_ms, size_bytes, held_ms)
    each_ms = list(_each(heap, stream, 0.0))
    return Held(
        shape="all",
        heaps=(heap,),
        held_ms=tuple(each_ms[i] for i in stream.texts),
        first_ms=stream.t_ms[stream.texts[0]],
        span_ms=stream.span_ms,
        beat_ms=None if generated_ms is None else generated_ms / size,
        source="the stream's" if generated_ms is None else "the server's",
        generated_ms=generated_ms,
    )


def _held_ms(heap: Heap, heaps: Sequence[Heap], stream: Stream, beat_ms: float) -> float:
    """How long its first piece must have been ready. As many as it has were made in the time since
    the heap before, or they were not made at this beat; nor is that the beat where another of half
    its size had less time: then so many can be made at once."""
    if not _fits(heap, beat_ms, BEAT_FACTOR):
        return 0.0
    for other in heaps:
        if other.size >= heap.size / 2 and not _fits(other, beat_ms, REFUTED_FACTOR):
            beat_ms = other.since_ms / (other.size - 1.0)
    ready_ms = heap.came_ms - min((heap.size - 1.0) * beat_ms, heap.since_ms)
    return max(stream.t_ms[heap.first] - ready_ms, 0.0)


def _are_clumps(heaps: Sequence[Heap], beat_ms: float, draft: int) -> bool:
    """All the way, and at a beat much slower than that of their pieces."""
    return (
        len(heaps) >= CLUMPS_AT_LEAST
        and statistics.median(heap.size for heap in heaps) >= max(CLUMP_AT_LEAST, draft)
        and _is_slow(heaps, beat_ms)
        and statistics.median(heap.held_ms / heap.since_ms for heap in heaps[1:]) >= CLUMP_SHARE
    )


def _is_slow(heaps: Sequence[Heap], beat_ms: float) -> bool:
    pause_ms = statistics.median(heap.since_ms for heap in heaps[1:])
    return pause_ms >= max(HELD_AT_LEAST_MS, HELD_BEATS_AT_LEAST * beat_ms)


def _long_and_large(heaps: Sequence[Heap], beat_ms: float, draft: int) -> list[Heap]:
    """Those that were held long, and are larger than what this server sends at a time."""
    usual = statistics.median(heap.size for heap in heaps)
    if len(heaps) < 2 or (usual >= CLUMP_AT_LEAST and _is_slow(heaps, beat_ms)):
        usual = 1.0  # no server sends so many at a time for nothing
    large = max(LARGER_THAN_USUAL * usual, draft)
    long_ms = max(HELD_AT_LEAST_MS, HELD_BEATS_AT_LEAST * beat_ms)
    return [
        heap if heap.size >= large and heap.held_ms >= long_ms else replace(heap, held_ms=0.0)
        for heap in heaps
    ]


def _fits(heap: Heap, beat_ms: float, factor: float) -> bool:
    return (heap.size - 1.0) * beat_ms <= factor * heap.since_ms


def _each(heap: Heap, stream: Stream, lag_ms: float) -> Iterator[float]:
    """How long each of its pieces was held: they were made one after the other since the first
    was ready."""
    end = heap.first + heap.count
    t_ms, sizes = stream.t_ms[heap.first : end], stream.sizes[heap.first : end]
    if heap.held_ms <= 0.0:
        return (lag_ms for _ in t_ms)
    ready_ms = t_ms[0] - heap.held_ms
    beat_ms = (heap.came_ms - ready_ms) / max(heap.size - 1.0, 1.0)
    made = accumulate(sizes, initial=0.0)
    return (max(t - ready_ms - size * beat_ms, 0.0) for t, size in zip(t_ms, made))
