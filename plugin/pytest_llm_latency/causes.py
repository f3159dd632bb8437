"""Why a relation is broken: a code and a sentence with the remedy, from the evidence. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .held import Held, measure
from .results import CancelCase, tokens_in_time
from .timeline import COLD_SHARE, Timeline

# Two clocks that measure the same stretch may differ by this share.
CLOCK_SHARE = 0.05
# A stamp that may be late by more than this share of what it shall prove proves nothing.
LATE_SHARE = 0.2
# A cache of blocks of hundreds of tokens (vLLM on hybrid models: 784) hits in a prompt as long.
LONG_TOKENS = 2048
# Fewer than these are a block or two, of which no server reuses a part.
SHARED_TOKENS_AT_LEAST = 128
ASK_BEHIND = ". Measure the server behind, too: --llm-upstream-url"
_CONTEXT_CHARACTERS = 12


@dataclass(frozen=True)
class Cause:
    """`code` is for machines and stays; `sentence` is for people."""

    code: str
    sentence: str


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


def held_back(timeline: Timeline) -> Cause | None:
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


def _number(value: int | None) -> str:
    return "an unknown number of" if value is None else str(value)


def cache_miss(cold: Timeline, second: Timeline) -> Cause:
    """A prompt that was known was processed again. Says where the two prompts part.

    Counts that tell of more work than there was time for are the first answer's, repeated; unless
    the server's clock is wrong in that one, too.
    """
    replayed = clock_disagreement(second)
    if replayed is not None and clock_disagreement(cold) is None:
        return replayed
    if second.prompt_n is None:
        return SAME_TIME
    if second.cold is False:
        return Cause(
            "cache-time",
            f"{second.cache_n} tokens were reused, and still the first text came no sooner: the "
            "time goes elsewhere (queue, other load on the server)",
        )
    shown = f"{second.prompt_n} tokens were processed again, {_number(second.cache_n)} reused"
    if cold.prompt != second.prompt:
        lost = partial_hit_lost(cold, second)
        if lost is not None:
            return lost
        return Cause(
            "prompts-differ",
            f"{shown}: the prompts part at {parting(cold.prompt, second.prompt)}. What changes "
            "belongs at the end of a prompt: a cache holds what is before it",
        )
    before, after = cold.prompt_total, second.prompt_total
    if before is not None and after is not None and before != after:
        return Cause(
            "prompt-changed-on-the-way",
            f"{shown}: the same prompt had {before} tokens the first time and {after} the second: "
            "something between you and the model rewrites it (a time, a session's number, the "
            f"history){ASK_BEHIND}",
        )
    short = "the prompt is shorter than the server's cache block, "
    return Cause(
        "cache-never-hits",
        f"{shown}, of the same prompt, character for character: prompt caching is off or "
        "cache_prompt is dropped on the way, another slot answered (try -np 1), "
        f"{short if before is None or before < LONG_TOKENS else ''}or this model cannot roll its "
        "cache back (sliding window: try --swa-full)",
    )


def partial_hit_lost(known: Timeline, again: Timeline) -> Cause | None:
    """A prompt that begins as a known one does was processed again from far before the place where
    the two part. None: it was not, or nobody counts."""
    if again.prompt_total is None or again.cache_n is None or not again.prompt:
        return None
    same = _same_characters(known.prompt, again.prompt)
    shared = min(round(again.prompt_total * same / len(again.prompt)), same)
    if shared < SHARED_TOKENS_AT_LEAST or again.cache_n >= shared / 2:
        return None
    parted = f"the prompts part at {parting(known.prompt, again.prompt)}, so that "
    return Cause(
        "partial-hit-lost",
        f"{'' if known.prompt == again.prompt else parted}about {shared} of {again.prompt_total} "
        f"tokens (by characters) are the same, and {again.cache_n} reused: this server reuses "
        "no part of a prompt, or less than it could (a sliding window: try --swa-full; blocks "
        "longer than the part; another slot answered: try -np 1)",
    )


def changed_prefix_hit(known: Timeline, changed: Timeline) -> Cause:
    """A prompt that differs from its first character on was served from the cache."""
    reused = (
        "its first text came as soon as that of the cached one"
        if not changed.cache_n
        else f"{changed.cache_n} tokens were reused"
    )
    return Cause(
        "changed-prefix-hit",
        f"{reused} although the prompts part at {parting(known.prompt, changed.prompt)}: does "
        "something answer from a cache of responses, drop the system prompt, or shift the cache "
        "(--cache-reuse)? Or is no prompt cached, and the first request of a round slow?",
    )


def parting(one: str, other: str) -> str:
    """Where two texts first differ, with a little of both."""
    same = _same_characters(one, other)
    start = max(0, same - _CONTEXT_CHARACTERS)
    shown = [repr(text[start : same + _CONTEXT_CHARACTERS]) for text in (one, other)]
    return f"character {same + 1} ({shown[0]} against {shown[1]})"


def _same_characters(one: str, other: str) -> int:
    """How many characters two texts share from the first on."""
    pairs = enumerate(zip(one, other))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def prompt_not_growing(few: int, many: int, added_characters: int) -> Cause:
    """More text, and no more tokens, or far too few."""
    more = f" ({added_characters:,} more characters)" if added_characters > 0 else ""
    return Cause(
        "prompt-not-growing",
        f"the longer prompt had {many} tokens{more} against {few}: it was cut off on its way, or "
        "the cache answered although cache_prompt is false",
    )


def cancel_ignored(case: CancelCase) -> Cause:
    """The slot worked on after the close."""
    waited = f"{(case.waited_ms or 0) / 1000:.1f} s"
    if case.log_line is not None:
        return Cause(
            "cancel-logged-but-running",
            f"the log says {case.log_line!r}, and yet the slot was busy {waited} after the close",
        )
    to_its_end = case.stop == "ran on" and case.idle_after_ms is not None
    how = "generated to the end of its answer" if to_its_end else "was still busy"
    if case.proof == "time":
        how = "was idle only after as long as the rest of the answer takes"
    more = f" ({case.tokens_after_close} more tokens)" if case.tokens_after_close else ""
    return Cause(
        "cancel-ignored",
        f"the slot {how}{more}, {waited} after the close: the disconnect never reached the server. "
        f"A proxy between? In nginx: proxy_ignore_client_abort off{ASK_BEHIND}",
    )


def cancel_late(case: CancelCase) -> Cause | None:
    """The generation stopped, but went on for long after the close."""
    after = case.tokens_after_close
    rest = case.max_tokens - case.tokens_before_close
    if after is None or after <= tokens_in_time(rest):
        return None
    return Cause(
        "cancel-late",
        f"in generation, {after} more tokens were generated after the close of at most {rest}; "
        "the next token is where a server can notice: something on the way holds the "
        "disconnect back",
    )


def cancel_slow(cases: Sequence[CancelCase]) -> Cause:
    """Every close in generation was followed late, by the server's own beat."""
    waited = " and ".join(f"{one.idle_after_ms or 0.0:.0f}" for one in cases)
    said = "" if cases[0].log_line is None else f", although the log says {cases[0].log_line!r}"
    return Cause(
        "cancel-late",
        f"the server was idle only {waited} ms after the closes{said}: longer than the next tokens "
        "take at its own beat, which is where a close can be noticed. Something on the way holds "
        f"the disconnect back, or the server looks for it too seldom{ASK_BEHIND}",
    )


def prefill_unseen(case: CancelCase | None) -> str | None:
    """Why a close in prefill cannot be judged; None: it can."""
    if case is None:
        return "no close in prefill could be measured"
    if case.phase != "prefill":
        return "the prompt was processed before the close: prefill is too fast here, or cached"
    if case.others:
        return "/slots showed tasks of others meanwhile"
    if case.idle_after_ms is None:
        return "nothing shows when the server was idle"
    if case.prompt_tokens is None or case.prompt_processed is None:
        return "the tokens of the prompt that were processed are not told (/tokenize, /slots)"
    if case.stop == "unknown":
        return (
            "all of the prompt was processed, and whether it could have been stopped before is "
            "not seen: a server notices at the end of a batch, a second after the close or later"
        )
    return None


def prefill_late(case: CancelCase) -> Cause:
    """The whole prompt was processed although its reader had gone."""
    return Cause(
        "cancel-late-in-prefill",
        f"the connection was closed {case.closed_at_ms:.0f} ms after the request, and all "
        f"{case.prompt_processed} prompt tokens were processed still; at the end of a batch (by "
        "default 2,048 tokens) a server can notice. Look for a proxy that tells of a disconnect "
        "only when it next sends (in HAProxy: option abortonclose; in nginx: "
        f"proxy_ignore_client_abort off){ASK_BEHIND}",
    )


CANCEL_UNPROVEN = Cause(
    "cancel-unproven",
    "the slot went idle, but nothing tells a cancelled answer from one that came to its own end: "
    "give the server's log (--llm-log, --llm-log-command), or ask for a longer answer "
    "(llm_plan.cancel_max_tokens)",
)

PREFILL_TIME = Cause(
    "prefill-time",
    "more tokens were processed, and the first text came no later: the machine is too busy to see "
    "the effect; measure again when it is quiet, or give longer documents (--llm-kb)",
)
SLOTS_BLIND = Cause(
    "slots-blind",
    "while an answer was streaming, /slots (or /metrics) said that nothing was busy: does "
    "something between you and the server (a balancer, a cache) answer it for another one?",
)
CACHE_SOMETIMES = Cause(
    "cache-sometimes",
    "the same prompt was reused in some rounds and processed again in others: does somebody else "
    "use the server meanwhile, or do the requests go to several servers in turn?",
)
CACHE_ELSEWHERE = Cause(
    "cache-elsewhere",
    "the same prompt was processed again, and the one after it, with another end, was reused: do "
    "the requests go to several slots or servers in turn (try -np 1; before several servers, let "
    "one conversation always go to the same), or is a prompt cached only at second sight?",
)
COUNTS_AGAINST_TIMES = Cause(
    "counts-against-times",
    "by its counts the server processed the same prompt again, by the times it did not: a field "
    "that it fills and never counts (cached_tokens is always 0), or an answer from a cache of "
    "responses",
)
REPLAYED = Cause(
    "replayed-answer",
    "the same text came again in a tenth of the time that it takes to generate: something answers "
    "from a cache of responses, which says nothing of the cache of prompts. Turn it off, or "
    "measure the server behind",
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
OTHERS_AT_THE_CLOSE = Cause(
    "others-use-the-server",
    "after the close /slots showed tasks of others, and whose work went on cannot be told: measure "
    "again when nobody else uses the server",
)
UNANSWERED = Cause(
    "unanswered",
    "after the close nothing answered the question whether the server is idle: is it overloaded, "
    "or does it limit how often it is asked?",
)
GAUGE_NEVER_IDLE = Cause(
    "gauge-never-idle",
    "/metrics never showed an idle server, and counts the requests of everybody: measure again "
    "when nobody else uses it, or give the server's log (--llm-log, --llm-log-command)",
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
