"""Causes that every step shares: a stream that failed, was held back, or cannot be timed. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from ..evidence.timeline import COLD_SHARE, Timeline
from .held import Held, measure
from .verdict import Cause

# Two clocks that measure the same stretch may differ by this share.
CLOCK_SHARE = 0.05
# A stamp that may be late by more than this share of what it shall prove proves nothing.
LATE_SHARE = 0.2
ASK_BEHIND = ". Measure the server behind, too: --llm-upstream-url"


def hold(timeline: Timeline) -> Cause | None:
    """The pieces did not come as they were made: all together, in clumps all the way, or some of
    them. Where this reader itself may have been as late as that, the cause is `reader-behind`,
    which proves nothing."""
    held = measure(timeline)
    if held.shape == "not":
        return None
    words = {"all": _burst, "clumps": _coalesced, "heaps": _held_back}
    shown, cause = words[held.shape](timeline, held)
    return _reader_behind(timeline, shown, held.long_ms) or cause


def hold_of(timeline: Timeline, piece: int) -> Cause | None:
    """The same, where it made a good share of the moment of this piece of the answer. Clumps come
    all the way, and make a little of every moment."""
    held = measure(timeline)
    # The answer's are the last of all.
    at = piece if piece < 0 else piece - len(timeline.pieces)
    made = held.shape != "clumps" and held.made(at, timeline.pieces[piece].t_ms)
    return hold(timeline) if made else None


def first_held_ms(timeline: Timeline) -> float:
    """How long the first text was held, where that is a good share of its time; else 0."""
    held, ttft_ms = measure(timeline), timeline.ttft_ms
    at = -len(timeline.pieces)
    return held.held_ms[at] if ttft_ms is not None and held.made(at, ttft_ms) else 0.0


def _burst(timeline: Timeline, held: Held) -> tuple[str, Cause]:
    pieces, arrivals = timeline.sent, len(timeline.arrivals)
    reads = "1 read" if arrivals == 1 else f"{arrivals} reads"
    shown = (
        f"{len(pieces)} pieces came in {reads} within {held.span_ms:.1f} ms, after "
        f"{pieces[0].t_ms / 1000:.1f} s"
    )
    if held.generated_ms is not None:
        shown += f"; the server generated them in {held.generated_ms / 1000:.1f} s"
    return shown, Cause(
        "burst",
        f"{shown}: something between you and the model buffers, or the server cuts up a finished "
        "answer. In nginx: proxy_buffering off, no gzip for text/event-stream; or let the server "
        "send X-Accel-Buffering: no",
    )


def _coalesced(timeline: Timeline, held: Held) -> tuple[str, Cause]:
    clump = statistics.median(heap.count for heap in held.heaps)
    gap_ms = statistics.median(heap.since_ms for heap in held.heaps[1:])
    shown = (
        f"{len(timeline.sent)} pieces came in {len(held.heaps)} clumps of {clump:g}, "
        f"{gap_ms:.0f} ms apart"
    )
    return shown, Cause(
        "coalesced",
        f"{shown}: something on the way waits to fill its packets (HAProxy: option "
        "http-no-delay; a TCP connection without TCP_NODELAY), or the server sends several "
        "tokens at a time",
    )


def _held_back(_: Timeline, held: Held) -> tuple[str, Cause]:
    longest = max(held.holds, key=lambda heap: heap.held_ms)
    together, count = held.counts
    shown = (
        f"{together} of {count} pieces came together {held.where}, at {longest.came_ms:.0f} ms: at "
        f"{held.source} own beat of {held.beat_ms:.3g} ms a piece, the first of them was ready "
        f"{longest.held_ms:.0f} ms before"
    )
    if held.made(0, held.first_ms):
        shown += (
            f", and the first text, which came after {held.first_ms:.0f} ms, after about "
            f"{held.first_ms - held.held_ms[0]:.0f} ms"
        )
    size = f" (here {longest.size_bytes:,} bytes)" if longest.size_bytes else ""
    return shown, Cause(
        "held-back",
        f"{shown}. Something on the way, or the server itself, waits until a buffer is full"
        f"{size}: in nginx proxy_buffering off, or let the server send X-Accel-Buffering: no; no "
        "compression of text/event-stream; a flush after every event",
    )


def _reader_behind(timeline: Timeline, shown: str, held_ms: float) -> Cause | None:
    """This process may itself have been late by a good share of `held_ms`."""
    late_ms = timeline.jitter_ms + (timeline.cpu_wait_ms or 0.0)
    if late_ms <= LATE_SHARE * held_ms:
        return None
    return Cause(
        "reader-behind",
        f"{shown}; but this process itself waited {late_ms:.0f} ms for a core: the machine is "
        "too busy to tell who was late. Measure again when it is quiet",
    )


def clock_disagreement(timeline: Timeline) -> Cause | None:
    """The first text came sooner than the server says that it was done with the prompt."""
    ttft_ms, prompt_ms = timeline.ttft_ms, timeline.prompt_ms
    if ttft_ms is None or prompt_ms is None:
        return None
    if ttft_ms + timeline.jitter_ms >= (1.0 - CLOCK_SHARE) * prompt_ms:
        return None
    return Cause(
        "clock-disagreement",
        f"the server says that it processed the prompt for {prompt_ms:.0f} ms, and the first "
        f"text came after {ttft_ms:.0f} ms: something answers from a cache of responses and "
        "repeats its numbers, or one of the two clocks is wrong",
    )


def at_once(timeline: Timeline) -> Cause | None:
    """First text and end lie closer together than stamps can tell, and it is no burst."""
    ttft_ms, total_ms, tokens = timeline.ttft_ms, timeline.total_ms, timeline.tokens
    if ttft_ms is None or total_ms is None or total_ms - ttft_ms > timeline.jitter_ms:
        return None
    if len(timeline.pieces) == 1 and (tokens is None or tokens > 1):
        return Cause("one-piece", "the whole answer came in one piece")
    return Cause(
        "within-jitter",
        f"all came within {timeline.jitter_ms:.3g} ms, as far as two stamps differ here for "
        "nothing: ask for a longer answer, or measure when the machine is quiet",
    )


def no_text(timeline: Timeline) -> Cause:
    """A whole answer without text to time."""
    unclosed = timeline.thought_tag is not None and not timeline.pieces
    if timeline.reasoning is not None and (timeline.finish_reason == "length" or unclosed):
        first_ms = timeline.first_token_ms
        shown = "" if first_ms is None else f" (its first token came after {first_ms:.0f} ms)"
        return Cause(
            "only-reasoning",
            f"all that it might generate went into reasoning{shown}, so that there is no answer to "
            "time: let it generate more (max_tokens), or turn reasoning off "
            """(--llm-body='{"chat_template_kwargs": {"enable_thinking": false}}')""",
        )
    return Cause("no-text", f"the answer has no text (finish_reason {timeline.finish_reason!r})")


def clock_off(timelines: Iterable[Timeline]) -> Cause | None:
    """The clock by which these were timed did not run as another one of the system did."""
    off_ms = max((one.clock_off_ms for one in timelines), key=abs, default=0.0)
    if not off_ms:
        return None
    return Cause(
        "clock-off",
        f"over one request the clock that measures and another one of the system are "
        f"{abs(off_ms):.0f} ms apart: the machine slept meanwhile, or something stopped or set the "
        "clock of this process (freezegun?). Its times prove nothing; measure again without that",
    )


def why_not_as_made(timeline: Timeline) -> Cause | None:
    """Why a whole answer did not come as it was made; None: it did, or it is no whole answer."""
    if unusable(timeline) is not None:
        return None
    return hold(timeline) or at_once(timeline)


def unusable(timeline: Timeline) -> Cause | None:
    """The stream itself failed, or a limit let none begin."""
    if timeline.limited is not None:
        return Cause("rate-limited", timeline.limited)
    if timeline.error is not None:
        code = "no-blank-lines" if timeline.no_blank_lines else "stream-error"
        return Cause(code, timeline.error)
    if timeline.cut_short and timeline.unended is not None:
        return Cause(
            "no-blank-lines",
            f"the last event ({timeline.unended!r}) was not ended by a blank line, and before it "
            "came neither a finish_reason nor [DONE]: the server must end each event with two "
            "newlines, or the stream was cut off within the last one",
        )
    if timeline.cut_short:
        return Cause(
            "cut-short",
            f"the stream ended after {len(timeline.pieces)} pieces with neither a finish_reason "
            "nor [DONE]: the server, or a proxy's read timeout, cut it",
        )
    return None


def warm_leg(name: str, leg: Timeline) -> Cause:
    """A leg that must be cold was not, so that nothing can be said about the cache."""
    return Cause(
        "cold-leg-was-warm",
        f"{leg.cache_n} of {leg.prompt_total} prompt tokens of the leg {name!r} came from a cache "
        f"(less than {COLD_SHARE:.0%} were processed), although it was new",
    )


REASONING_HIDES = Cause(
    "reasoning-hides-prefill",
    "the model reasons where nobody sees it, and the first text waits for that: what the prompt "
    "took cannot be told from it. Turn reasoning off "
    """(--llm-body='{"chat_template_kwargs": {"enable_thinking": false}}')""",
)
OTHERS = Cause(
    "others-use-the-server",
    "the same prompt was processed again, and while nothing was asked here, /slots showed tasks of "
    "others: they may have taken its place in the cache. Measure again when nobody else uses the "
    "server",
)
INVISIBLE = Cause(
    "effect-invisible",
    "the times do not differ, and a long prompt takes no longer than a short one either: prefill "
    "is too fast here to be seen behind the rest (network, queue): give longer documents "
    "(--llm-kb)",
)
SAME_TIME = Cause(
    "no-difference-in-time",
    "the server counts no tokens, and the times do not differ: a cache that never hits, or a "
    "prompt that never reaches the model",
)
NOISE = Cause(
    "noise",
    "the server counts no tokens, and the times differ too little or too wildly to tell: measure "
    "again when the machine is quiet, or give longer documents (--llm-kb)",
)
ONE_PAIR = Cause(
    "one-pair",
    "the server counts no tokens, and one pair of times shows too little: repeat the pair, and "
    "judge the ratios with pytest_llm_latency.decision.decide",
)
