"""The relations of the lab, judged: results in, verdicts with numbers and words out. Pure.

Only numbers of one run are compared with each other; no absolute time is judged.
"""

from __future__ import annotations

import ast
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

from . import causes, sse
from .artifacts import Chunk, PrefillRow, Props, Ttft, check
from .causes import Cause
from .decision import Decision, confirms
from .errors import ArtifactError, LatencyError, RateLimited, ServerError, StreamError
from .recording import Reply
from .results import (
    CACHE_COLD,
    CANCEL_PREFILL,
    WATCHED_AT_LEAST_MS,
    CacheResult,
    CancelCase,
    CancelResult,
    PrefillResult,
    ReportResult,
    SentenceResult,
    ServerResult,
    SseResult,
    TtftResult,
    is_offered,
    is_props,
    is_soon_by_time,
    lists_models,
)
from .timeline import Timeline, stalled

# Servers say in many words that they are well, and answer 200 then; some say with 200 that they
# are not. An unknown word is as good as its 200.
HEALTHY = re.compile(r"(ok|healthy|up|ready|alive|pass|running|serving|green|true|2\d\d)\b", re.I)
UNHEALTHY = re.compile(
    r"^(no|ko|none|null|red|[\d.]*)$|(?<![a-z])not(?![a-z])|^not|busy|critical|dead|degraded"
    r"|\bdown\b|drain|error|\bfail|false|initiali|loading|maintenance|offline|out.of.service"
    r"|pending|starting|stopp|unavailable|unhealthy|unknown|unready|warming",
    re.I,
)
# "not judged": beside a baseline that says nothing of it; it neither fails nor skips a test.
Outcome = Literal["broken", "inconclusive", "not measurable", "not judged", "holds"]
# Relations that only support another one: where they cannot be measured, the row says why, and the
# test is passed by the others.
CLOCK = "ttft >= the server's own prompt time"
PREFILL_STOPS = "a close in prefill stops it"
LOGGED = "the log has the task's cancel line"
SLOT_IDLE = "the close stops the server: the slot goes idle"
CACHE_ROWS = tuple(
    f"second < {cold} in {what}" for cold in CACHE_COLD for what in ("prompt_n", "ttft")
)
SUPPORTING = frozenset((CLOCK, PREFILL_STOPS, LOGGED, *CACHE_ROWS[::2]))
FAILING: tuple[Outcome, ...] = ("broken", "inconclusive")


@dataclass(frozen=True)
class Verdict:
    """One relation judged. `relation` says it in words, `numbers` shows what was compared;
    `cause` is there unless it holds."""

    step: str
    relation: str
    outcome: Outcome
    numbers: str
    cause: Cause | None = None

    def lines(self, say: Callable[[str], str] = str) -> list[str]:
        """The verdict for a person, at most three lines; `say` puts it into another language."""
        lines = [
            f"{self.step}: {say(self.outcome)}: {say(self.relation)}",
            f"  {say(self.numbers)}",
        ]
        if self.cause is not None:
            lines.append(f"  {say('cause')} {self.cause.code}: {say(self.cause.sentence)}")
        return lines


def is_supporting(relation: str) -> bool:
    """Whether a relation only supports others of its step."""
    return relation in SUPPORTING or relation.split()[:2] == ["prompt_n", "grows"]


def _verdict(
    step: str, relation: str, holds: bool, numbers: str, cause: Cause | None = None
) -> Verdict:
    return Verdict(
        step, relation, "holds" if holds else "broken", numbers, None if holds else cause
    )


def _outcome(cause: Cause) -> Outcome:
    """Where this reader itself was late, or cannot tell, nothing is proven."""
    unproven = ("reader-behind", "within-jitter", "only-reasoning", "clock-off", "rate-limited")
    return "inconclusive" if cause.code in unproven else "broken"


def milliseconds(value: float | None) -> str:
    """A time for people: four significant digits are all that a timing carries."""
    if value is None:
        return "none"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def count(value: int | None) -> str:
    """A token count for people."""
    return "not reported" if value is None else f"{value:,}"


# --- relations over timelines, for the lab and for a user's own tests ---


def ttft_below_total(timeline: Timeline, step: str = "own") -> Verdict:
    """The first text came before the end of the answer, neither in one burst with it nor long after
    it was ready."""
    relation = "ttft < total"
    cause = causes.unusable(timeline)
    if cause is not None:
        return Verdict(step, relation, _outcome(cause), "no whole answer", cause)
    ttft, total = timeline.ttft_ms, timeline.total_ms
    numbers = f"ttft {milliseconds(ttft)}, total {milliseconds(total)}"
    if ttft is None or total is None:
        cause = causes.no_text(timeline)
        return Verdict(step, relation, _outcome(cause), numbers, cause)
    cause = causes.clock_off([timeline]) or causes.hold_of(timeline, 0) or causes.at_once(timeline)
    if cause is not None:
        return Verdict(step, relation, _outcome(cause), numbers, cause)
    return Verdict(step, relation, "holds", _with_holds(numbers, [timeline]))


def _with_holds(numbers: str, timelines: Sequence[Timeline]) -> str:
    """A time to first text that a hold has made is never shown without a word."""
    held = list(filter(None, map(causes.first_held_ms, timelines)))
    if not held:
        return numbers
    how_many = f"{len(held)} of {len(timelines)}"
    return f"{numbers}; first text held back in {how_many}, for {max(held):.0f} ms"


def long_above_short(short: Timeline, long: Timeline, step: str = "own") -> Verdict:
    """The longer prompt took more tokens to process; where the server counts none, it took the
    longer to its first text. One pair of times shows too little, unless they differ wildly:
    then it is inconclusive."""
    numbers = (
        f"prompt_n {count(short.prompt_n)} and {count(long.prompt_n)}, "
        f"ttft {milliseconds(short.ttft_ms)} and {milliseconds(long.ttft_ms)}"
    )
    return _pair(step, "long > short", (short, long), numbers, _not_growing(short, long))


def _not_growing(short: Timeline, long: Timeline) -> Cause | None:
    found = stalled(
        (short.prompt_n, long.prompt_n),
        (short.prompt_total, long.prompt_total),
        long.prompt_characters - short.prompt_characters,
    )
    return None if found is None else causes.prompt_not_growing(*found)


def cached_below_uncached(uncached: Timeline, cached: Timeline, step: str = "own") -> Verdict:
    """The repeated prompt was processed less than the cold one; judged as `long_above_short`
    is. A first prompt that was not cold proves nothing."""
    numbers = (
        f"prompt_n {count(cached.prompt_n)} against {count(uncached.prompt_n)}, "
        f"ttft {milliseconds(cached.ttft_ms)} against {milliseconds(uncached.ttft_ms)}"
    )
    relation = "cached < uncached"
    if uncached.cold is False:
        warm = causes.warm_leg("uncached", uncached)
        return Verdict(step, relation, "inconclusive", numbers, warm)
    missed = (
        cached.prompt_n is not None
        and uncached.prompt_n is not None
        and (cached.prompt_n >= uncached.prompt_n or cached.cold)
    )
    cause = causes.cache_miss(uncached, cached) if missed else None
    return _pair(step, relation, (cached, uncached), numbers, cause)


def _pair(
    step: str, relation: str, pair: Sequence[Timeline], numbers: str, cause: Cause | None
) -> Verdict:
    """`cause` is why the counts of the two break the relation; None: they do not."""
    for timeline in pair:
        failed = causes.unusable(timeline)
        if failed is not None:
            return Verdict(step, relation, _outcome(failed), numbers, failed)
    if cause is None and any(timeline.prompt_n is None for timeline in pair):
        return Verdict(step, relation, "inconclusive", numbers, causes.ONE_PAIR)
    return _verdict(step, relation, cause is None, numbers, cause)


# --- the eight steps ---


def server(result: ServerResult) -> list[Verdict]:
    """Step 1. A server without /health is healthy if it lists its models; one without /props
    cannot be judged by them."""
    health, props = result.health, result.props
    if (health.status, health.body) == (props.status, props.body):
        nothing = Reply(404, b"", 0.0)  # the same to every path: it knows neither
        return [_health(replace(result, health=nothing)), _props(nothing)]
    return [_health(result), _props(result.props)]


def _health(result: ServerResult) -> Verdict:
    reply, models = result.health, result.models
    if not is_offered(reply):
        relation = "no /health; /v1/models: the models are listed"
        if models is None or not (lists_models(models) or is_offered(models)):
            cause = Cause("not-offered", "this server offers neither /health nor /v1/models")
            return Verdict("server", relation, "not measurable", f"HTTP {reply.status}", cause)
        return _answered("server", relation, models, lists_models(models))
    body = reply.json()
    if isinstance(body, dict) and not isinstance(body.get("status", {}), dict | list):
        words = sse.shown_words(str(body["status"]))
        well = HEALTHY.match(words) or not UNHEALTHY.search(words)
        healthy = reply.status == 200 and bool(well)
        return _answered("server", "/health: status is ok", reply, healthy, f"status {words!r}")
    # vLLM and SGLang answer with no body at all.
    return _answered("server", "/health: HTTP 200", reply, reply.status == 200)


def _props(reply: Reply) -> Verdict:
    relation = "/props: model path, n_ctx > 0, total_slots >= 1"
    body = reply.json()
    if not is_props(reply):
        cause = Cause("not-offered", "this server offers no /props")
        return Verdict("server", relation, "not measurable", f"HTTP {reply.status}", cause)
    if reply.status != 200:
        return _answered("server", relation, reply, False)
    if not body.get("model_path"):
        cause = Cause("not-offered", "this /props names no model: it is not llama.cpp's of today")
        return Verdict("server", relation, "not measurable", "no model_path", cause)
    try:
        props = check(Props, body, "/props")
    except ArtifactError as error:
        return _answered("server", relation, reply, False, str(error))
    shown = f"n_ctx {props.default_generation_settings.n_ctx}, slots {props.total_slots}"
    return _answered("server", relation, reply, True, shown)


def _answered(step: str, relation: str, reply: Reply, holds: bool, shown: str = "") -> Verdict:
    """A verdict on an answer, with its own words where it is no good one."""
    words = reply.body[:120].decode("utf-8", "replace").strip()
    numbers = shown or f"HTTP {reply.status}"
    cause = Cause("server-facts", shown or f"HTTP {reply.status}: {words}")
    return _verdict(step, relation, holds, numbers, cause)


def sse_stream(result: SseResult) -> list[Verdict]:
    """Step 2: the stream ended well, and the pieces are the raw file's."""
    timeline = result.timeline
    ending = "[DONE]" if timeline.done else f"finish_reason {timeline.finish_reason!r}, no [DONE]"
    failed = causes.unusable(timeline)
    ended = Verdict(
        "sse",
        "the stream has its end",
        "holds" if failed is None else _outcome(failed),
        f"{len(timeline.sent)} pieces, {ending}",
        failed,
    )
    pieces = [pieces_are_raw_content(result.raw, result.chunks), times_never_fall(result.chunks)]
    if not (result.chunks or timeline.sent) and result.timed and ended.cause is not None:
        pieces = [  # there is nothing to compare, and `ended` says why
            Verdict("sse", one.relation, "not measurable", "no pieces", ended.cause)
            for one in pieces
        ]
    verdicts = [ended, *pieces]
    if not result.timed:
        return verdicts
    return [*verdicts, ttft_below_total(timeline, "sse"), comes_as_made(timeline, "sse")]


def comes_as_made(timeline: Timeline, step: str = "own") -> Verdict:
    """The pieces came as they were generated: not in one burst, nor in clumps, nor some of them
    together."""
    cause = causes.unusable(timeline) or causes.clock_off([timeline]) or causes.hold(timeline)
    numbers = f"{len(timeline.sent)} pieces in {len(timeline.arrivals)} arrivals"
    relation = "the pieces come as they are made"
    if cause is not None:
        return Verdict(step, relation, _outcome(cause), numbers, cause)
    return Verdict(step, relation, "holds", numbers)


def pieces_are_raw_content(raw: bytes, chunks: Sequence[Chunk]) -> Verdict:
    """The pieces equal the content in the raw stream, piece for piece."""
    expected = [text for text in _raw_contents(raw) if text]
    found = [chunk.text for chunk in chunks]
    differing = next(
        (i for i, (a, b) in enumerate(zip(expected, found)) if a != b),
        min(len(expected), len(found)),
    )
    return _verdict(
        "sse",
        "the pieces equal the raw content, piece for piece",
        expected == found and bool(found),
        f"{len(found)} pieces, {len(expected)} in the raw file",
        Cause("pieces-differ", _piece_words(differing, found, expected)),
    )


def _piece_words(at: int, found: Sequence[str], expected: Sequence[str]) -> str:
    """The first piece that differs, with both texts, and what it seems to be."""
    if found == expected:
        return "there is no piece at all"
    where = f"piece {at + 1}"
    if at >= len(found):
        return f"{where} is missing: expected {expected[at]!r}, the next content in sse_raw.txt"
    shown = f"{where}: found {found[at]!r}, expected "
    if at >= len(expected):
        return f"{shown}none: sse_raw.txt has {len(expected)} with content"
    shown += repr(expected[at])
    whys = {
        "an empty string is no piece": found[at] == "",
        "this is the role chunk, it is no piece": found[at] in ("assistant", "None", "null"),
        "this is the end of the stream, it is no piece": found[at] == "[DONE]",
        "white space is a part of a piece": found[at] == expected[at].strip(),
        "two pieces were put together": found[at] == "".join(expected[at : at + 2]),
        "one of them was left out": expected[at + 1 : at + 2] == [found[at]],
        "this one came before": found[at] in expected[:at] and found[at] != expected[at],
    }
    why = next((words for words, holds in whys.items() if holds), None)
    return shown if why is None else f"{shown}: {why}"


def _raw_contents(raw: bytes) -> list[str]:
    """The text of every event; deliberately not by the decoder that made the pieces, which this
    would then never find at fault."""
    found = []
    for block in raw_blocks(raw):
        event = _raw_event(block)
        if sse.is_done(event):
            break
        try:
            value = sse.chunk_of(event)
        except sse.StreamFailure:
            break
        if value is not None:
            found.append(value)
    return sse.added(list(map(sse.said, sse.renumbered(found))))


def raw_blocks(raw: bytes) -> list[str]:
    """The events of a raw stream, as lines joined by newlines; a blank line ends each."""
    text = raw.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return [block for block in re.split("\n{2,}", text.strip("\n")) if block]


def by_events(raw: bytes) -> bytes:
    """A raw stream in which a blank line ends every event: a file made by hand may lack some, and
    each of its lines that is an event's data by itself is an event."""
    events: list[str] = []
    for block in raw_blocks(raw):
        events += block.split("\n") if _is_several(_raw_event(block)) else [block]
    return "".join(event + "\n\n" for event in events).encode()


def _is_several(event: sse.Event) -> bool:
    try:
        sse.chunk_of(event)
    except sse.NoBlankLines:
        return True
    except sse.StreamFailure:
        return False
    return False


def _raw_event(block: str) -> sse.Event:
    fields: dict[str, list[str]] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.removeprefix(" "))
    data = [*fields.get("data", ()), *fields.get("error", ())]
    kind = "error" if "error" in fields else fields.get("event", [""])[-1]
    return sse.Event("\n".join(data), kind or "message")


def times_never_fall(chunks: Sequence[Chunk]) -> Verdict:
    """Arrival times are in order."""
    falls = [i for i, (a, b) in enumerate(pairwise(chunks)) if b.t_ms < a.t_ms]
    return _verdict(
        "sse",
        "t_ms never falls",
        not falls,
        f"{len(chunks)} pieces",
        Cause("time-falls", f"piece {falls[0] + 2} is earlier than the one before")
        if falls
        else None,
    )


def ttft(result: TtftResult) -> list[Verdict]:
    """Step 3."""
    runs = result.ttft.runs
    worst = max(runs, key=lambda run: run.ttft_ms / run.total_ms if run.total_ms else math.inf)
    below = all(run.ttft_ms < run.total_ms for run in runs)
    judged = [ttft_below_total(timeline, "ttft") for timeline in result.timelines]
    failed = [verdict for verdict in judged if verdict.outcome != "holds"]
    # One that is broken says more than one that is unclear.
    failed.sort(key=lambda verdict: verdict.outcome != "broken")
    if len(failed) <= len(judged) / 2:
        # Few of many say nothing; but numbers that do not keep the contract let nothing hold.
        failed = [replace(verdict, outcome="inconclusive") for verdict in failed if not below]
    medians = (
        statistics.median(run.ttft_ms for run in runs),
        statistics.median(run.total_ms for run in runs),
    )
    shown = (result.ttft.ttft_p50, result.ttft.total_p50)
    relation = "ttft < total in every run"
    numbers = f"closest: {milliseconds(worst.ttft_ms)} of {milliseconds(worst.total_ms)}"
    numbers = _with_holds(numbers, result.timelines)
    one_piece = Cause("one-piece", "the answer came in one read")
    return [
        replace(failed[0], relation=relation, numbers=numbers)
        if failed
        else _verdict("ttft", relation, below, numbers, one_piece),
        _verdict(
            "ttft",
            "the p50 are the medians",
            medians == shown,
            f"p50 of {len(runs)}: ttft {milliseconds(shown[0])}, total {milliseconds(shown[1])}",
            _not_medians(result),
        ),
    ]


def _not_medians(result: TtftResult) -> Cause:
    """What the two p50 are instead."""
    artifact = result.ttft
    found = {
        "ttft_p50": (artifact.ttft_p50, [run.ttft_ms for run in artifact.runs]),
        "total_p50": (artifact.total_p50, [run.total_ms for run in artifact.runs]),
    }
    wrong = [
        median_words(f"ttft.json: {key}", value, times)
        for key, (value, times) in found.items()
        if value != statistics.median(times)
    ]
    return Cause("not-the-median", "; ".join(wrong))


def median_words(key: str, found: float, times: Sequence[float]) -> str:
    """What a p50 that is not the median is instead."""
    named = {
        "their mean": statistics.fmean(times),
        "the smallest": min(times),
        "the largest": max(times),
        "the middle one as they stand, not sorted": times[len(times) // 2],
        "the first": times[0],
    }
    which = next((name for name, value in named.items() if abs(value - found) < 1e-6), None)
    return (
        f"{key}: found {found:.6g}, expected {statistics.median(times):.6g}, the median: the "
        f"middle one when sorted{'' if which is None else f'; this is {which}'}"
    )


def prefill(result: PrefillResult) -> list[Verdict]:
    """Step 4."""
    rows = result.rows
    docs = ", ".join(str(row.docs) for row in rows)
    legs = [leg for docs_legs in result.legs.values() for leg in docs_legs]
    by_count = f"prompt_n grows with the documents ({docs})"
    by_time = f"ttft grows with the documents ({docs})"
    for leg in legs:
        if leg.warm:
            warm = causes.warm_leg("uncached", leg)
            both = _alike("prefill", (by_count, by_time), "inconclusive", f"docs {docs}", warm)
            return [*both, *_clock("prefill", legs)]
    times = _to_first_tokens(", ".join(map(milliseconds, result.prefilled_ms())), legs)
    ratios, in_order = result.ratios(), result.in_order
    off = causes.clock_off(legs)
    if off is not None:
        ratios, in_order = [], False
    hidden = off or _hidden(legs)
    found = result.stalled
    cut_off = None if found is None else causes.prompt_not_growing(*found)
    if not result.counted:
        if not result.legs:
            grows = _verdict("prefill", by_time, result.in_order, times, causes.PREFILL_TIME)
            return [_no_count("prefill", "every row has its prompt_n"), grows]
        if found is not None:
            numbers = f"{count(found[0])} and {count(found[1])} tokens in all"
            assert cut_off is not None
            both = _alike("prefill", (by_count, by_time), "broken", numbers, cut_off)
            return [*both, *_clock("prefill", legs)]
        # Prompts that grow by the server's own count are not cut off; they are only fast.
        totals = [leg.prompt_total for leg in result.legs[max(result.legs)]]
        fast = None if all(total is None for total in totals) else causes.INVISIBLE
        decided = None if off else result.decided()
        unseen = hidden or fast
        verdict = _times_decide("prefill", by_time, times, in_order, ratios, decided, unseen)
        return [_not_counted("prefill", by_count), verdict, *_clock("prefill", legs)]
    numbers = ", ".join(count(row.prompt_n) for row in rows) + " tokens"
    verdicts = [_verdict("prefill", by_count, cut_off is None, numbers, cut_off)]
    cause = cut_off or hidden or causes.PREFILL_TIME
    if not result.legs:
        verdicts.append(_verdict("prefill", by_time, in_order, times, cause))
    else:
        verdicts.append(_times_confirm("prefill", by_time, times, in_order, ratios, cause))
    return verdicts + _clock("prefill", legs)


def _alike(
    step: str, relations: Iterable[str], outcome: Outcome, numbers: str, cause: Cause
) -> list[Verdict]:
    """Several relations of which the same is known."""
    return [Verdict(step, relation, outcome, numbers, cause) for relation in relations]


def _to_first_tokens(times: str, legs: Sequence[Timeline]) -> str:
    """The times, and that they are not those to the first text, or were made by holds, where it is
    so."""
    times = _with_holds(times, legs)
    if any(leg.prefilled_ms != leg.ttft_ms for leg in legs):
        return f"{times} (to the first token, of reasoning)"
    return times


def _hidden(legs: Iterable[Timeline]) -> Cause | None:
    """Why times to the first text say little of prefill."""
    hidden = any(leg.reasoning == "hidden" for leg in legs)
    return causes.REASONING_HIDES if hidden else None


def _no_count(step: str, relation: str) -> Verdict:
    """A count is null in a file, and no evidence says why."""
    cause = Cause("no-count", "prompt_n is null, and no evidence says why")
    return Verdict(step, relation, "not measurable", "no count", cause)


def _not_counted(step: str, relation: str) -> Verdict:
    """Times decide."""
    cause = Cause("no-count", "the server does not count the tokens that it processes now")
    return Verdict(step, relation, "not measurable", "no count", cause)


def _spread(numbers: str, ratios: Sequence[float]) -> str:
    """With the effect (the median ratio of the rounds) and the noise (the factor by which a
    typical round misses it)."""
    if len(ratios) < 2:
        return numbers
    effect = statistics.median(ratios)
    noise = statistics.median(math.exp(abs(math.log(ratio / effect))) for ratio in ratios)
    return f"{numbers}; effect x{effect:.2f}, noise x{noise:.2f} in {len(ratios)} rounds"


def _times_decide(
    step: str,
    relation: str,
    times: str,
    in_order: bool,
    ratios: Sequence[float],
    decided: Decision,
    unseen: Cause | None,
) -> Verdict:
    """The server counts no tokens: the rule judges the rounds. The medians must show it,
    too, for a verdict that holds; `unseen`: why no effect could be seen, if there is
    one. None: it would be seen."""
    numbers = _spread(times, ratios) + "; count not reported"
    if decided == "broken":
        if unseen is not None:
            return Verdict(step, relation, "inconclusive", numbers, unseen)
        return Verdict(step, relation, "broken", numbers, causes.SAME_TIME)
    if decided == "holds" and in_order:
        return Verdict(step, relation, "holds", numbers)
    cause = unseen if unseen is not None and not ratios else causes.NOISE
    return Verdict(step, relation, "inconclusive", numbers, cause)


def _times_confirm(
    step: str,
    relation: str,
    times: str,
    in_order: bool,
    ratios: Sequence[float],
    cause: Cause,
) -> Verdict:
    """The counts show the effect. Times that do not follow are noise, or time that goes
    elsewhere; a fault of the server they do not prove."""
    if in_order and confirms(ratios):
        return Verdict(step, relation, "holds", times)
    return Verdict(step, relation, "inconclusive", _spread(times, ratios), cause)


def _clock(step: str, legs: Iterable[Timeline]) -> list[Verdict]:
    """The first text comes no sooner than the server itself was done with the prompt; nothing of
    files alone."""
    legs = list(legs)
    if not legs:
        return []
    legs = [leg for leg in legs if not leg.clock_off_ms]
    timed = [leg for leg in legs if leg.prompt_ms is not None and leg.ttft_ms is not None]
    if not timed:
        cause = Cause("no-timings", "the server does not say how long it processed the prompt")
        return [Verdict(step, CLOCK, "not measurable", "no time of the server's", cause)]
    found = next(filter(None, map(causes.clock_disagreement, timed)), None)
    closest = min(timed, key=lambda leg: _above(leg.ttft_ms, leg.prompt_ms))
    numbers = (
        f"closest: {milliseconds(closest.ttft_ms)}, the server's {milliseconds(closest.prompt_ms)}"
    )
    return [_verdict(step, CLOCK, found is None, numbers, found)]


def _above(ttft_ms: float | None, prompt_ms: float | None) -> float:
    return (ttft_ms or 0.0) / max(prompt_ms or 0.0, 0.001)


def cache(result: CacheResult) -> list[Verdict]:
    """Step 5: cached < uncached, by tokens and by time, against both cold legs."""
    artifact, second = result.cache, result.cache.second
    if not result.legs and not result.counted:
        return [_no_count("cache", "cached < uncached in prompt_n")]
    missed = hit = result.why
    legs = result.legs
    all_legs = [leg for rounds in legs.values() for leg in rounds]
    if legs:
        for leg in legs["first"]:
            if leg.warm:
                warm = causes.warm_leg("first", leg)
                return [
                    *_alike("cache", CACHE_ROWS, "inconclusive", "no cold leg", warm),
                    *_clock("cache", all_legs),
                ]
        if result.counted and result.sometimes:
            shown = ", ".join(count(leg.prompt_n) for leg in legs["second"])
            numbers = f"{shown} tokens in {len(legs['second'])} rounds"
            rows = _alike("cache", CACHE_ROWS, "inconclusive", numbers, causes.CACHE_SOMETIMES)
            return [*rows, *_clock("cache", all_legs)]
        if result.counted and result.others and not all(map(result.hits, CACHE_COLD)):
            numbers = f"{count(second.prompt_n)} against {count(artifact.first.prompt_n)} tokens"
            rows = _alike("cache", CACHE_ROWS, "inconclusive", numbers, causes.OTHERS)
            return [*rows, *_clock("cache", all_legs)]
        unclear = _no_cache_of_prompts(result)
        if unclear is not None:
            numbers = _spread(
                f"{milliseconds(result.prefilled_ms('second'))} against "
                f"{milliseconds(result.prefilled_ms('first'))}",
                result.ratios("first"),
            )
            rows = _alike("cache", CACHE_ROWS, "inconclusive", numbers, unclear)
            return [*rows, *_clock("cache", all_legs)]
        missed = hit = causes.cache_miss(*result.missed)
        if missed.code == "cache-never-hits" and result.elsewhere:
            missed = hit = causes.CACHE_ELSEWHERE
        changed = next((leg for leg in legs["changed_prefix"] if leg.warm), None)
        if changed is not None:
            hit = causes.changed_prefix_hit(legs["second"][-1], changed)
            if second.prompt_n is not None and second.prompt_n < (changed.prompt_n or 0):
                numbers = f"{count(changed.cache_n)} of {count(changed.prompt_total)} tokens reused"
                rows = _alike("cache", CACHE_ROWS, "inconclusive", numbers, hit)
                return [*rows, *_clock("cache", all_legs)]
    verdicts = []
    for name, cold_leg, cause in (
        ("first", artifact.first, missed),
        ("changed_prefix", artifact.changed_prefix, hit),
    ):
        relation = f"second < {name} in ttft"
        soon_ms, late_ms = result.prefilled_ms("second"), result.prefilled_ms(name)
        times = f"{milliseconds(soon_ms)} against {milliseconds(late_ms)}"
        times = _to_first_tokens(times, all_legs)
        in_order = late_ms - soon_ms > result.jitter_ms
        ratios = result.ratios(name)
        off = causes.clock_off(all_legs)
        if off is not None:
            in_order, ratios = False, []
        if cold_leg.prompt_n is None or second.prompt_n is None:
            # No difference is a dead cache only where prefill can be seen, and no hit is told.
            told = any(leg.cold is False for leg in legs["second"])
            seen = result.is_visible() and not told
            decided = {} if off else result.decided()
            unseen = off or _hidden(all_legs) or (None if seen else causes.INVISIBLE)
            if name != "first" and decided.get("first") == "holds":
                unseen = causes.changed_prefix_hit(legs["second"][-1], legs[name][-1])
            verdicts.append(_not_counted("cache", f"second < {name} in prompt_n"))
            by_time = decided.get(name)
            verdicts.append(
                _times_decide("cache", relation, times, in_order, ratios, by_time, unseen)
            )
            continue
        less = result.hits(name)
        numbers = f"{count(second.prompt_n)} against {count(cold_leg.prompt_n)} tokens"
        verdicts.append(_verdict("cache", f"second < {name} in prompt_n", less, numbers, cause))
        if not legs:
            verdicts.append(_verdict("cache", relation, in_order, times, cause))
        else:  # where the counts show no hit, too: a hair's breadth is none
            why = off or cause
            verdicts.append(_times_confirm("cache", relation, times, in_order, ratios, why))
    return verdicts + _clock("cache", all_legs)


def _no_cache_of_prompts(result: CacheResult) -> Cause | None:
    """Why neither the counts nor the times of the second leg tell of a cache of prompts."""
    hits = all(map(result.hits, CACHE_COLD))
    if result.counted and (hits or causes.clock_disagreement(result.legs["second"][-1])):
        return None  # the counts decide, or the clock shows that they are another answer's
    if result.replayed:
        return causes.REPLAYED
    if result.counted and result.hits_by_time():
        return causes.COUNTS_AGAINST_TIMES
    return None


def sentence(result: SentenceResult) -> list[Verdict]:
    """Step 6."""
    artifact = result.sentence
    held = _sentence_hold(result)
    in_order = artifact.ttft_ms <= artifact.first_sentence_ms <= artifact.total_ms
    text, cut = artifact.text, artifact.first_sentence
    if result.timeline is None:  # by hand: white space around either is no matter
        text, cut = text.strip(), cut.strip()
    is_prefix = text.startswith(cut)
    relation = "ttft <= first sentence <= total"
    times = (artifact.ttft_ms, artifact.first_sentence_ms, artifact.total_ms)
    numbers = " <= ".join(map(milliseconds, times))
    order = Cause("order", "the times are not in order")
    return [
        Verdict("sentence", relation, _outcome(held), numbers, held)
        if held is not None
        else _verdict("sentence", relation, in_order, numbers, order),
        _verdict(
            "sentence",
            "first_sentence is a prefix of text",
            is_prefix and bool(artifact.first_sentence),
            f"{len(artifact.first_sentence)} of {len(artifact.text)} characters",
            Cause("not-a-prefix", "the sentence was not cut from this text"),
        ),
    ]


def _sentence_hold(result: SentenceResult) -> Cause | None:
    """Why the first text or the first sentence came later than it was made, if it did."""
    timeline = result.timeline
    if timeline is None or not timeline.pieces:
        return None
    off = causes.clock_off([timeline])
    if off is not None:
        return off
    lengths = accumulate(len(piece.text) for piece in timeline.pieces)
    sentence = len(result.sentence.first_sentence)
    last = next((i for i, seen in enumerate(lengths) if seen > sentence), -1)
    return causes.hold_of(timeline, 0) or causes.hold_of(timeline, last)


def cancel(result: CancelResult) -> list[Verdict]:
    """Step 7: closed in time, the slot idle, prefill stopped, too, the log agrees, the next request
    answered."""
    artifact = result.cancel
    case = result.cases[0] if result.cases else None
    numbers = (
        f"{artifact.received_tokens} < {artifact.max_tokens} pieces, closed at "
        f"{milliseconds(artifact.closed_at_ms)}"
    )
    early = "received < max_tokens"
    if case is not None and case.phase == "ended":
        ended = Cause(
            "answer-ended",
            "the answer ended even before a close right after its first piece: nothing was "
            "cancelled. Ask for a longer answer (llm_plan.cancel_question, cancel_max_tokens)",
        )
        verdicts = _alike("cancel", (early, SLOT_IDLE), "inconclusive", numbers, ended)
        verdicts.append(_prefill_stops(result))
        verdicts.append(Verdict("cancel", LOGGED, "not measurable", "nothing cancelled", ended))
    else:
        answer_ended = "the answer ended before the close, which proves nothing"
        verdicts = [
            _verdict(
                "cancel",
                early,
                artifact.received_tokens < artifact.max_tokens,
                f"{numbers} in {case.phase}" if case is not None else numbers,
                Cause("answer-ended", answer_ended),
            ),
            _slot_goes_idle(result, case),
        ]
        if case is not None:
            verdicts.append(_prefill_stops(result))
        if case is not None or result.log_source is not None:
            verdicts.append(_logged(result, case))
    if case is not None:
        verdicts.append(
            _verdict(
                "cancel",
                "the next request is answered",
                result.next_error is None,
                result.next_error or "answered in full",
                Cause("next-request-suffers", f"after the cancel: {result.next_error}"),
            )
        )
    return verdicts


def _logged(result: CancelResult, case: CancelCase | None) -> Verdict:
    if result.log_source is None:
        cause = Cause("no-log", "no log was given: --llm-log=FILE, --llm-log-command=CMD")
        return Verdict("cancel", LOGGED, "not measurable", "no log", cause)
    ran_on = _ran_on(result)
    not_logged = Cause(
        "cancel-not-logged",
        f"{result.log_source} has no 'cancel task' for this request: is it this server's log, "
        "at its default level?",
    )
    logged = _verdict(
        "cancel",
        LOGGED,
        result.log_line is not None,
        result.log_line or f"not in {result.log_source}",
        # The log of a server that was seen to work on is right.
        causes.cancel_ignored(ran_on)
        if ran_on is not None and ran_on.proof != "time"
        else not_logged,
    )
    # One that tells of no request at all is another server's, and proves nothing.
    silent = logged.cause is not None and case is not None and not case.log_talks
    return replace(logged, outcome="inconclusive") if silent else logged


def _ran_on(result: CancelResult) -> CancelCase | None:
    """A close in generation that did not stop it. By its time alone, or because it was never seen
    idle, one may seem to have been ignored where others kept the server busy."""
    in_generation = [case for case in result.cases if case.phase == "generation"]
    stopped = any(case.stop == "stopped" for case in in_generation)
    for case in in_generation:
        unsure = case.proof == "time" or case.idle_after_ms is None
        if case.stop == "ran on" and not (unsure and stopped) and not is_soon_by_time(case):
            return case
    return None


def _slot_goes_idle(result: CancelResult, case: CancelCase | None) -> Verdict:
    relation = SLOT_IDLE
    idle_ms = result.cancel.slot_idle_after_ms
    missing = result.unwatched
    if case is None and idle_ms is None:
        missing = "slot_idle_after_ms is null, and no evidence says why"
    if missing is not None:
        cause = Cause("no-slots", missing)
        return Verdict("cancel", relation, "not measurable", "nothing shows it", cause)
    if case is not None and (
        case.waited_ms is None or (idle_ms is None and case.waited_ms < WATCHED_AT_LEAST_MS)
    ):
        return Verdict("cancel", relation, "inconclusive", "no answer", causes.UNANSWERED)
    numbers = f"idle {milliseconds(idle_ms)} after the close"
    if result.watched_by not in (None, "/slots"):
        numbers += f", by {result.watched_by}"
    elif result.log_source is None:
        numbers += ", by /slots alone (no log)"
    if case is None:
        return _verdict("cancel", relation, True, numbers)
    in_generation = [one for one in result.cases if one.phase == "generation"]
    ran_on = _ran_on(result)
    if ran_on is None and idle_ms is None and result.watched_by == "/metrics":
        return Verdict("cancel", relation, "inconclusive", "never idle", causes.GAUGE_NEVER_IDLE)
    # What was never idle after the first close is seen to be at work after the next.
    watched = case if idle_ms is None and not case.others else ran_on or case
    if watched.others and (ran_on is not None or idle_ms is None):
        cause = causes.OTHERS_AT_THE_CLOSE
        return Verdict("cancel", relation, "inconclusive", numbers, cause)
    if ran_on is not None or idle_ms is None:
        ignored = causes.cancel_ignored(watched)
        shown = milliseconds(watched.waited_ms)
        return Verdict("cancel", relation, "broken", f"busy until {shown} after the close", ignored)
    numbers += f" (to within {milliseconds(case.resolution_ms)})"
    # What never showed a busy server proves nothing, where nothing else tells of this request.
    changed = any(
        one.shown_busy or one.log_line is not None or one.proof == "slots" for one in result.cases
    )
    if not changed or any(one.seen_busy is False for one in in_generation):
        return Verdict("cancel", relation, "inconclusive", numbers, causes.SLOTS_BLIND)
    late = next(filter(causes.cancel_late, in_generation), None)
    told_by = late or (case if case.proof == "slots" else None)
    if told_by is not None and told_by.others:
        cause = causes.OTHERS_AT_THE_CLOSE
        return Verdict("cancel", relation, "inconclusive", numbers, cause)
    if late is not None:
        return Verdict("cancel", relation, "broken", numbers, causes.cancel_late(late))
    slow = [one for one in in_generation if one.late]
    if len(slow) > 1 and len(slow) == len(in_generation):
        return Verdict("cancel", relation, "broken", numbers, causes.cancel_slow(slow))
    unclear = bool(slow) or any(one.stop == "ran on" for one in in_generation)
    if unclear or all(one.stop != "stopped" for one in result.cases):
        return Verdict("cancel", relation, "inconclusive", numbers, causes.CANCEL_UNPROVEN)
    return Verdict("cancel", relation, "holds", numbers)


def _prefill_stops(result: CancelResult) -> Verdict:
    """Not measurable where the prompt's tokens are not counted, or it was processed too fast for
    a close to be seen."""
    # The contract's own close may fall into prefill, too, of a prompt that nobody has counted.
    in_prefill = [one for one in result.cases if one.phase == "prefill"]
    in_prefill.sort(key=lambda one: one.prompt_tokens is None)
    asked = [one for one in result.cases if one.name == CANCEL_PREFILL]
    case = next(iter([*in_prefill, *asked]), None)
    numbers = "nothing shows it"
    if case is not None and case.idle_after_ms is not None:
        numbers = f"idle {milliseconds(case.idle_after_ms)} after the close"
    if case is not None and case.prompt_processed is not None and case.prompt_tokens is not None:
        processed = f"{count(case.prompt_processed)} of {count(case.prompt_tokens)}"
        numbers = f"{processed} tokens processed, {numbers}"
    why = causes.prefill_unseen(case)
    if case is None or why is not None:
        cause = Cause("prefill-not-seen", why or "no close in prefill could be measured")
        return Verdict("cancel", PREFILL_STOPS, "not measurable", numbers, cause)
    stopped = case.stop == "stopped"
    return _verdict("cancel", PREFILL_STOPS, stopped, numbers, causes.prefill_late(case))


def report(result: ReportResult) -> list[Verdict]:
    """Step 8: every value equals its source."""
    values: Mapping[str, Any] = vars(result.report)
    differing = [name for name, value in vars(result.expected).items() if values[name] != value]
    return [
        _verdict(
            "report",
            "every value equals its source",
            not differing,
            f"{len(values) - len(differing)} of {len(values)} values",
            Cause("copy-differs", f"{', '.join(differing)} differ from their files"),
        )
    ]


JUDGES: Mapping[str, Callable[[Any], list[Verdict]]] = {
    "sse": sse_stream,
    "ttft": ttft,
    "prefill": prefill,
    "cache": cache,
    "sentence": sentence,
    "cancel": cancel,
}


def told_apart(verdicts: Sequence[Verdict], behind: Sequence[Verdict] | str) -> list[Verdict]:
    """The verdicts on a server that stands before another, with who is to blame for what is
    broken: `behind` are the same step's verdicts on the other, or a sentence where there are
    none."""
    told = []
    for verdict in verdicts:
        if verdict.outcome == "broken" and verdict.cause is not None:
            words = behind if isinstance(behind, str) else _who(verdict, verdicts, behind)
            sentence = verdict.cause.sentence.replace(causes.ASK_BEHIND, "")
            cause = replace(verdict.cause, sentence=f"{sentence}. {words}")
            verdict = replace(verdict, cause=cause)
        told.append(verdict)
    return told


def upstream_words(error: LatencyError) -> str:
    """Why there are no verdicts on the server behind: it fails, or it could not be asked."""
    if isinstance(error, (StreamError, ServerError)) and not isinstance(error, RateLimited):
        return f"The server behind, asked directly, fails, too: {error}"
    return f"The server behind could not be measured: {error}"


def _who(verdict: Verdict, beside: Sequence[Verdict], behind: Sequence[Verdict]) -> str:
    """Who is to blame, by the same relation at the server behind; where nothing shows it there (it
    has no log), by another that is broken for the same cause."""
    code = verdict.cause and verdict.cause.code
    alike = [one.relation for one in beside if one.cause is not None and one.cause.code == code]
    for relation in (verdict.relation, *alike):
        same = next((one for one in behind if one.relation == relation), None)
        if same is not None and same.outcome == "holds":
            return (
                f"Measured directly at the server behind, it holds ({same.numbers}): what stands "
                "between is to blame"
            )
        if same is not None and same.outcome == "broken":
            return (
                f"Measured directly at the server behind, it is broken, too ({same.numbers}): "
                "what stands between is not to blame"
            )
    return "At the server behind it could not be told"


def rate_limited(step: str, error: RateLimited) -> Verdict:
    """A step whose requests a limit refused: it proves nothing."""
    cause = Cause("rate-limited", str(error))
    return Verdict(step, "the step can be measured", _outcome(cause), "refused by a limit", cause)


# --- what only files can show ---


def graded(step: str, relation: str, problem: str | None) -> Verdict:
    """A check of files: holds if there is no problem."""
    cause = Cause("evidence-differs", problem or "")
    return _verdict(step, relation, problem is None, problem or "they agree", cause)


def sse_program(program: bytes) -> Verdict:
    """sse.py defines `stream` with the contract's parameters. It is read, never executed."""
    relation = "sse.py defines stream(messages, max_tokens=64, cache_prompt=True, raw_out=None)"
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return graded("sse", relation, f"sse.py does not parse: {type(error).__name__}: {error}")
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "stream"]
    if not found:
        return graded("sse", relation, "sse.py defines no function stream (with def)")
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    arguments = found[-1].args
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    defaults = dict(zip(reversed(names), reversed(arguments.defaults)))
    wanted = {"max_tokens": 64, "cache_prompt": True, "raw_out": None}
    if names[:4] != ["messages", *wanted]:
        return graded("sse", relation, f"stream takes ({', '.join(names)})")
    missing = object()

    def value(node: ast.expr | None) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        return constants.get(node.id, missing) if isinstance(node, ast.Name) else missing

    differing = [name for name, default in wanted.items() if value(defaults.get(name)) != default]
    problem = f"stream has another default for {', '.join(differing)}" if differing else None
    return graded("sse", relation, problem)


def runs_differ(artifact: Ttft) -> Verdict:
    """No run is a copy of another: two real runs do not agree to the last digit. Runs that are
    rounded to less than a microsecond may agree by chance, but not all of them."""
    runs = [(run.ttft_ms, run.total_ms) for run in artifact.runs]
    fine = [run for run in runs if any(value != round(value, 2) for value in run)]
    copied = len(set(fine)) < len(fine) or (len(runs) > 1 and len(set(runs)) == 1)
    problem = "ttft.json: runs agree to the last digit: copied?" if copied else None
    return graded("ttft", "no run is a copy of another", problem)


def five_runs(artifact: Ttft) -> Verdict:
    """The lab asks five times."""
    problem = f"ttft.json: {len(artifact.runs)} runs" if len(artifact.runs) != 5 else None
    if problem is None and any(run.tokens == 0 for run in artifact.runs):
        problem = "ttft.json: a run with 0 tokens"
    return graded("ttft", "there are five runs", problem)


def lab_documents(rows: Sequence[PrefillRow]) -> Verdict:
    """The lab asks with 0, 4 and 12 documents."""
    docs = [row.docs for row in rows]
    problem = f"prefill.json: docs {docs}" if docs != [0, 4, 12] else None
    return graded("prefill", "docs are 0, 4, 12", problem)
