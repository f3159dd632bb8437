"""How long each piece of an answer must have been ready before it came. Pure.

A server makes a piece a beat. Pieces that came together were made one after the other, a beat
apart, and all but the last of them have waited. What is said of that stands in `causes.py`.
"""

from __future__ import annotations

import heapq
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Literal

from .timeline import CHARACTERS_A_TOKEN, Piece, Timeline

PIECES_AT_LEAST = 8
FASTEST_BEAT_MS = 0.1  # nothing generates 10,000 tokens a second for one listener
# What disturbs no listener is no hold, and can come of scheduling.
HELD_AT_LEAST_MS = 50.0
HELD_BEATS_AT_LEAST = 3.0
HELD_SHARE = 0.2
# A released buffer comes in many reads, of some milliseconds each on a busy machine. Pieces at more
# than a quarter of the beat are no heap: a server is as much faster before others ask it, too.
NEAR_SHARE = 0.1
NEAR_MS = 4.0
NEAR_SHARE_AT_MOST = 0.25
# A beat that rests on fewer arrivals is a guess, and only what is much closer is a heap by it.
ARRIVALS_AT_LEAST = 3
NEAR_SHARE_OF_A_GUESS = 0.02
FIRST_GUESS_MS = 2.0
HEAP_AT_LEAST = 4
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
# A piece that is as long, and so much longer than the others, was merged of several.
LONG_CHARACTERS = 32
LONGER_THAN_USUAL = 6.0
ALL_SPAN_SHARE = 0.1
ALL_SPAN_SHARE_OF_TOTAL = 0.02
ALL_ARRIVALS_SHARE = 0.25

Shape = Literal["not", "all", "clumps", "heaps"]
Source = Literal["the server's", "the stream's"]


@dataclass(frozen=True)
class Heap:
    """Deltas that came together: the `first` of all on, `count` of them, the last at `came_ms`.

    `size` counts one that was merged of several as what it holds; `since_ms` is how long after
    the heap before it came; `held_ms` how long its first must have been ready, 0: it need not;
    `size_bytes` that of its events, 0: not known.
    """

    first: int
    count: int
    size: float
    came_ms: float
    since_ms: float
    size_bytes: int
    held_ms: float = 0.0


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
        of it. Clumps come all the way, and make some of every moment."""
        held_ms = self.held_ms[piece] if self.held_ms else 0.0
        return self.shape != "clumps" and held_ms >= max(HELD_AT_LEAST_MS, HELD_SHARE * at_ms)


@dataclass(frozen=True)
class _Stream:
    """All that was generated, whatever the channel: when it came, of how many pieces it was
    merged, how many bytes it had."""

    t_ms: tuple[float, ...]
    sizes: tuple[float, ...]
    size_bytes: tuple[int, ...]
    jitter_ms: float

    @property
    def span_ms(self) -> float:
        return self.t_ms[-1] - self.t_ms[0]

    def heaps(self, near_ms: float) -> list[Heap]:
        """What came no more than `near_ms` apart."""
        near_ms = max(near_ms, self.jitter_ms)
        gaps = enumerate(pairwise(self.t_ms), start=1)
        starts = [0, *(i for i, (a, b) in gaps if b - a > near_ms), len(self.t_ms)]
        found: list[Heap] = []
        for start, end in pairwise(starts):
            came_ms = self.t_ms[end - 1]
            before_ms = found[-1].came_ms if found else 0.0
            size, size_bytes = sum(self.sizes[start:end]), sum(self.size_bytes[start:end])
            found.append(Heap(start, end - start, size, came_ms, came_ms - before_ms, size_bytes))
        return found


def measure(timeline: Timeline) -> Held:
    """What was held back of a whole answer."""
    pieces = timeline.pieces
    if len(pieces) < PIECES_AT_LEAST or timeline.total_ms is None:
        return Held()
    moments = _moments(timeline)
    stream = _Stream(
        tuple(t_ms for t_ms, _ in moments),
        tuple(_sizes([piece for _, piece in moments], timeline.tokens)),
        tuple(0 if piece is None else piece.size_bytes for _, piece in moments),
        timeline.jitter_ms,
    )
    generated_ms = _generated_ms(timeline)
    if generated_ms is not None and generated_ms < FASTEST_BEAT_MS * len(moments):
        generated_ms = None  # in another unit, or never counted
    if _came_at_once(timeline, stream, generated_ms):
        return _all_held(timeline, stream, generated_ms)
    told_ms = None  # without a count a delta of reasoning may be all of it
    if generated_ms is not None and timeline.tokens is not None:
        told_ms = generated_ms / sum(stream.sizes)
    heaps, beat_ms = _heaps(stream, told_ms)
    if beat_ms is None:
        return Held(generated_ms=generated_ms)
    heaps = [replace(heap, held_ms=_held_ms(heap, heaps, stream, beat_ms)) for heap in heaps]
    draft = 2 * DRAFT_TOKENS_AT_MOST if timeline.drafted else 0
    clumps = _are_clumps(heaps, beat_ms, draft)
    if not clumps:
        heaps = _long_and_large(heaps, beat_ms, draft)
    each_ms = (ms for heap in heaps for ms in _each(heap, stream))
    held = Held(
        shape="clumps" if clumps else "heaps",
        heaps=tuple(heaps),
        held_ms=tuple(ms for ms, (_, piece) in zip(each_ms, moments) if piece is not None),
        first_ms=pieces[0].t_ms,
        span_ms=stream.span_ms,
        beat_ms=beat_ms,
        source="the server's" if beat_ms == told_ms else "the stream's",
        generated_ms=generated_ms,
    )
    if clumps or held.is_much or held.made(0, held.first_ms):
        return held
    return replace(held, shape="not")


def _moments(timeline: Timeline) -> list[tuple[float, Piece | None]]:
    """Every delta's moment, with its piece where it is one: reasoning and tool calls are
    generated, too, and wait like any other."""
    pieces = [(piece.t_ms, piece) for piece in timeline.pieces]
    others = Counter(timeline.token_ms) - Counter(piece.t_ms for piece in timeline.pieces)
    silent = [(t_ms, None) for t_ms in sorted(others.elements())]
    return list(heapq.merge(silent, pieces, key=itemgetter(0)))


def _sizes(pieces: Sequence[Piece | None], tokens: int | None) -> Iterator[float]:
    """How many usual pieces each is: what was merged while it waited is much longer than the
    others. Where the server counts its tokens, they leave room for so many."""
    lengths = [len(piece.text) for piece in pieces if piece is not None]
    usual = statistics.median(lengths)
    long = max(LONG_CHARACTERS, LONGER_THAN_USUAL * usual)
    more = [0.0 if p is None or len(p.text) < long else len(p.text) / usual - 1.0 for p in pieces]
    merged = sum(more)
    room = merged if tokens is None else min(merged, max(tokens - len(pieces), 0))
    return (1.0 + (room / merged * one if merged else 0.0) for one in more)


def _generated_ms(timeline: Timeline) -> float | None:
    """How long the server says that it generated what came: of tokens that are not shown
    (reasoning that is taken out on the way) only the share of the others. Pieces of several
    tokens are longer, and hide none."""
    generated_ms, tokens = timeline.predicted_ms, timeline.tokens or 0
    in_pieces = len(timeline.token_ms or timeline.pieces)
    shown = max(in_pieces, len(timeline.text) // CHARACTERS_A_TOKEN)
    if generated_ms is not None and tokens > 2 * shown:
        return generated_ms * shown / tokens
    return generated_ms


def _came_at_once(timeline: Timeline, stream: _Stream, generated_ms: float | None) -> bool:
    """All came together although it took time to make. Where the server says how long, that is
    the measure; else what lies in the last fiftieth of a long answer came together."""
    if generated_ms is not None:
        return (
            stream.span_ms < ALL_SPAN_SHARE * generated_ms
            and generated_ms - stream.span_ms >= HELD_AT_LEAST_MS
        )
    total_ms, first_ms = timeline.total_ms or 0.0, stream.t_ms[0]
    # A fast generation after a long prefill looks the same, but comes piece by piece.
    together = len(timeline.arrivals) <= ALL_ARRIVALS_SHARE * len(timeline.pieces)
    return (
        first_ms >= HELD_AT_LEAST_MS
        and total_ms - first_ms < ALL_SPAN_SHARE_OF_TOTAL * total_ms
        and (together or stream.span_ms < FASTEST_BEAT_MS * len(timeline.pieces))
    )


def _all_held(timeline: Timeline, stream: _Stream, generated_ms: float | None) -> Held:
    """One heap; where no beat is known, it may have been ready since the request."""
    came_ms = stream.t_ms[-1]
    held_ms = stream.t_ms[0]
    if generated_ms is not None:
        held_ms = min(held_ms, generated_ms - stream.span_ms)
    heap = Heap(
        0, len(stream.t_ms), sum(stream.sizes), came_ms, came_ms, sum(stream.size_bytes), held_ms
    )
    return Held(
        shape="all",
        heaps=(heap,),
        held_ms=tuple(_each(heap, stream))[-len(timeline.pieces) :],
        first_ms=timeline.pieces[0].t_ms,
        span_ms=stream.span_ms,
        beat_ms=None if generated_ms is None else generated_ms / heap.size,
        source="the stream's" if generated_ms is None else "the server's",
        generated_ms=generated_ms,
    )


def _heaps(stream: _Stream, told_ms: float | None) -> tuple[list[Heap], float | None]:
    """The heaps, and the beat by which they are heaps: the stream's own, that of its median
    arrival, which no pause moves; or the server's, where that is shorter. The longer of the two
    is that of a clock that goes wrong, or of tokens that are not shown."""
    beat_ms = told_ms
    near_ms = FIRST_GUESS_MS if told_ms is None else _near_ms(told_ms)
    for _ in range(4):  # each beat may show other heaps; it settles in two or three rounds
        heaps = stream.heaps(near_ms)
        beats = [heap.since_ms / heap.size for heap in heaps[1:]]
        own_ms = statistics.median(beats) if beats else None
        beat_ms = min((ms for ms in (own_ms, told_ms) if ms is not None), default=None)
        if told_ms is None and len(beats) < ARRIVALS_AT_LEAST:
            closer_ms = NEAR_SHARE_OF_A_GUESS * (beat_ms or 0.0)
        else:
            closer_ms = _near_ms(beat_ms or 0.0)
        if closer_ms == near_ms:
            break
        near_ms = closer_ms
    return heaps, beat_ms


def _near_ms(beat_ms: float) -> float:
    return min(NEAR_SHARE_AT_MOST * beat_ms, max(NEAR_SHARE * beat_ms, NEAR_MS))


def _held_ms(heap: Heap, heaps: Sequence[Heap], stream: _Stream, beat_ms: float) -> float:
    """How long its first piece must have been ready. As many as it has were made in the time since
    the heap before, or they were not made at this beat; nor is that the beat where another of half
    its size had less time: then so many can be made at once."""
    if not _fits(heap, beat_ms, BEAT_FACTOR):
        return 0.0
    for other in heaps:
        large = other.size >= max(HEAP_AT_LEAST, heap.size / 2)
        if large and not _fits(other, beat_ms, REFUTED_FACTOR):
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
    large = max(HEAP_AT_LEAST, LARGER_THAN_USUAL * usual, draft)
    long_ms = max(HELD_AT_LEAST_MS, HELD_BEATS_AT_LEAST * beat_ms)
    return [
        heap if heap.size >= large and heap.held_ms >= long_ms else replace(heap, held_ms=0.0)
        for heap in heaps
    ]


def _fits(heap: Heap, beat_ms: float, factor: float) -> bool:
    return (heap.size - 1.0) * beat_ms <= factor * heap.since_ms


def _each(heap: Heap, stream: _Stream) -> Iterator[float]:
    """How long each of its pieces was held: they were made one after the other since the first
    was ready."""
    end = heap.first + heap.count
    t_ms, sizes = stream.t_ms[heap.first : end], stream.sizes[heap.first : end]
    if heap.held_ms <= 0.0:
        return (0.0 for _ in t_ms)
    ready_ms = t_ms[0] - heap.held_ms
    beat_ms = (heap.came_ms - ready_ms) / max(heap.size - 1.0, 1.0)
    made = accumulate(sizes, initial=0.0)
    return (max(t - ready_ms - size * beat_ms, 0.0) for t, size in zip(t_ms, made))
