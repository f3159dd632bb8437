"""What came together of an answer, and at which beat its pieces were made. Pure.

How long anything was held by that is `held.py`'s.
"""

from __future__ import annotations

import heapq
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

from ..evidence.timeline import CHARACTERS_A_TOKEN, Piece, Timeline

FASTEST_BEAT_MS = 0.1  # nothing generates 10,000 tokens a second for one listener
# A released buffer comes in many reads, of some milliseconds each on a busy machine. Pieces at more
# than a quarter of the beat are no heap: a server is as much faster before others ask it, too.
NEAR_SHARE = 0.1
NEAR_MS = 4.0
NEAR_SHARE_AT_MOST = 0.25
# A beat that rests on fewer arrivals is a guess, and only what is much closer is a heap by it.
ARRIVALS_AT_LEAST = 3
NEAR_SHARE_OF_A_GUESS = 0.02
# A piece that is as long, and so much longer than the others, was merged of several.
LONG_CHARACTERS = 32
LONGER_THAN_USUAL = 6.0


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
class Stream:
    """All that was generated, whatever the channel: when it came, of how many pieces it was
    merged, how many bytes it had. What is text of the answer is at `texts`."""

    t_ms: tuple[float, ...]
    sizes: tuple[float, ...]
    size_bytes: tuple[int, ...]
    texts: tuple[int, ...]
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


def stream_of(timeline: Timeline) -> Stream:
    """Every delta: reasoning and tool calls are generated, too, and wait like any other."""
    texts = [(piece.t_ms, piece) for piece in timeline.sent]
    others = Counter(timeline.token_ms) - Counter(piece.t_ms for piece in timeline.sent)
    silent = [(t_ms, None) for t_ms in sorted(others.elements())]
    moments: list[tuple[float, Piece | None]] = list(heapq.merge(silent, texts, key=itemgetter(0)))
    pieces = [piece for _, piece in moments]
    return Stream(
        t_ms=tuple(t_ms for t_ms, _ in moments),
        sizes=tuple(_sizes(pieces, timeline.tokens)),
        size_bytes=tuple(0 if piece is None else piece.size_bytes for piece in pieces),
        texts=tuple(i for i, piece in enumerate(pieces) if piece is not None),
        jitter_ms=timeline.jitter_ms,
    )


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


def generated_ms_of(timeline: Timeline) -> float | None:
    """How long the server says that it generated what came: of tokens that are not shown
    (reasoning that is taken out on the way) only the share of the others. Pieces of several
    tokens are longer, and hide none. None: not said, in another unit, or never counted."""
    generated_ms, tokens = timeline.predicted_ms, timeline.tokens or 0
    in_pieces = len(timeline.token_ms or timeline.sent)
    characters = sum(len(piece.text) for piece in timeline.sent)
    shown = max(in_pieces, characters // CHARACTERS_A_TOKEN)
    if generated_ms is not None and tokens > 2 * shown:
        generated_ms *= shown / tokens
    if generated_ms is None or generated_ms < FASTEST_BEAT_MS * in_pieces:
        return None
    return generated_ms


def heaps_of(stream: Stream, told_ms: float | None) -> tuple[list[Heap], float | None]:
    """The heaps, and the beat by which they are heaps: the stream's own, that of its median
    arrival, which no pause moves; or the server's, where that is shorter. The longer of the two
    is that of a clock that goes wrong, or of tokens that are not shown."""
    beat_ms = told_ms
    near_ms = NEAR_MS if told_ms is None else _near_ms(told_ms)
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
