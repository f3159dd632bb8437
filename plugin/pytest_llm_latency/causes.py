"""Why a relation is broken: a code and a sentence with the remedy, from the evidence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .results import CancelCase
from .timeline import COLD_SHARE, Timeline

BURST_PIECES_AT_LEAST = 8
BURST_SPAN_SHARE = 0.1
BURST_SPAN_SHARE_OF_TOTAL = 0.02
BURST_GENERATION_AT_LEAST_MS = 200.0
_CONTEXT_CHARACTERS = 12


@dataclass(frozen=True)
class Cause:
    """`code` is for machines and stays; `sentence` is for people."""

    code: str
    sentence: str


def burst(timeline: Timeline) -> Cause | None:
    """All pieces came together although their generation took time.

    Where the server says how long it generated, that is the measure; else pieces that all lie
    in the last fiftieth of a long answer are a burst. Short generations are not judged: a
    busy machine may wake this reader too late to tell.
    """
    pieces, total_ms = timeline.pieces, timeline.total_ms
    if len(pieces) < BURST_PIECES_AT_LEAST or total_ms is None:
        return None
    span_ms = pieces[-1].t_ms - pieces[0].t_ms
    generated_ms = timeline.predicted_ms
    if generated_ms is not None:
        is_burst = (
            generated_ms >= BURST_GENERATION_AT_LEAST_MS
            and span_ms < BURST_SPAN_SHARE * generated_ms
        )
    else:
        is_burst = (
            total_ms >= BURST_GENERATION_AT_LEAST_MS
            and total_ms - pieces[0].t_ms < BURST_SPAN_SHARE_OF_TOTAL * total_ms
        )
    if not is_burst:
        return None
    moments = len({piece.t_ms for piece in pieces})
    return Cause(
        "burst",
        f"{len(pieces)} pieces came within {span_ms:.1f} ms ({moments} reads) after "
        f"{pieces[0].t_ms / 1000:.1f} s: something between you and the model buffers, or the "
        "server cuts up a finished answer. In nginx: proxy_buffering off, no gzip for "
        "text/event-stream; or let the server send X-Accel-Buffering: no",
    )


def within_jitter(timeline: Timeline) -> Cause:
    """First text and end lie closer together than stamps can tell."""
    return Cause(
        "within-jitter",
        f"all came within {timeline.jitter_ms:.3g} ms, as far as two stamps differ here for "
        "nothing: ask for a longer answer, or measure when the machine is quiet",
    )


def unusable(timeline: Timeline) -> Cause | None:
    """The stream itself failed."""
    if timeline.error is not None:
        return Cause("stream-error", timeline.error)
    if timeline.cut_short:
        return Cause(
            "cut-short",
            f"the stream ended after {len(timeline.pieces)} pieces with neither a finish_reason "
            "nor [DONE]: the server, or a proxy's read timeout, cut it",
        )
    return None


def warm_leg(name: str, leg: Timeline) -> Cause | None:
    """A leg that must be cold was not, so that nothing can be said about the cache."""
    if leg.cold is not False:
        return None
    return Cause(
        "cold-leg-was-warm",
        f"{leg.cache_n} of {leg.prompt_total} prompt tokens of the leg {name!r} came from a cache "
        f"(less than {COLD_SHARE:.0%} were processed), although it was new",
    )


def _number(value: int | None) -> str:
    return "an unknown number of" if value is None else str(value)


def cache_miss(second: Timeline) -> Cause:
    """The same prompt was processed again."""
    if second.cold is not False:
        return Cause(
            "cache-never-hits",
            f"the same prompt was processed in full again ({_number(second.prompt_n)} tokens, "
            f"{_number(second.cache_n)} reused): prompt caching is off or cache_prompt is dropped "
            "on the way, another slot answered (try -np 1), or this model cannot roll its cache "
            "back (sliding window: try --swa-full)",
        )
    return Cause(
        "cache-time",
        f"{second.cache_n} tokens were reused, and still the first text came no sooner: the time "
        "goes elsewhere (queue, other load on the server)",
    )


def changed_prefix_hit(leg: Timeline, prompt: str, changed_prompt: str) -> Cause:
    """A prompt that differs from its first character on was served from the cache."""
    return Cause(
        "changed-prefix-hit",
        f"{leg.cache_n} tokens were reused although the prompts part at "
        f"{parting(prompt, changed_prompt)}: does something answer from a "
        "cache of responses, drop the system prompt, or shift the cache (--cache-reuse)?",
    )


def parting(one: str, other: str) -> str:
    """Where two texts first differ, with a little of both."""
    same = 0
    for a, b in zip(one, other):
        if a != b:
            break
        same += 1
    start = max(0, same - _CONTEXT_CHARACTERS)
    shown = [repr(text[start : same + _CONTEXT_CHARACTERS]) for text in (one, other)]
    return f"character {same + 1} ({shown[0]} against {shown[1]})"


def prefill_flat(short_n: int | None, long_n: int | None) -> Cause:
    """More documents, and no more work."""
    if short_n is not None and long_n is not None and long_n <= short_n:
        return Cause(
            "prompt-not-growing",
            f"the longer prompt had {long_n} tokens to process against {short_n}: it was cut off "
            "on its way, or the cache answered although cache_prompt is false",
        )
    return Cause(
        "prefill-time",
        "more tokens were processed, and the first text came no later: the machine is too busy "
        "to see the effect; measure again when it is quiet, or give longer documents (--llm-kb)",
    )


def cancel_ignored(case: CancelCase) -> Cause:
    """The slot worked on after the close."""
    waited = f"{(case.waited_ms or 0) / 1000:.1f} s"
    if case.log_line is not None:
        return Cause(
            "cancel-logged-but-running",
            f"the log says {case.log_line!r}, and yet the slot was busy {waited} after the close",
        )
    how = "generated to the end of its answer" if case.stop == "ran on" else "was still busy"
    return Cause(
        "cancel-ignored",
        f"the slot {how}, {waited} after the close: the disconnect never reached the server. A "
        "proxy between? Measure the server behind it directly, too (--llm-url). In nginx: "
        "proxy_ignore_client_abort off",
    )


CANCEL_UNPROVEN = Cause(
    "cancel-unproven",
    "the slot went idle, but nothing tells a cancelled answer from one that came to its own end: "
    "give the server's log (--llm-log, --llm-log-command), or ask for a longer answer "
    "(llm_plan.cancel_max_tokens)",
)

SLOTS_BLIND = Cause(
    "slots-blind",
    "while an answer was streaming, /slots said that no slot was busy: does something between "
    "you and the server (a balancer, a cache) answer /slots for another one?",
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
