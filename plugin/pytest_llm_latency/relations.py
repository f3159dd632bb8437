"""The relations of the lab, judged: results in, verdicts with numbers and words out. Pure.

Only numbers of one run are compared with each other; no absolute time is judged.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from . import causes, sse
from .artifacts import Chunk
from .causes import Cause
from .results import (
    CacheResult,
    CancelResult,
    PrefillResult,
    ReportResult,
    SentenceResult,
    ServerResult,
    SseResult,
    TtftResult,
)
from .timeline import Timeline

Outcome = Literal["holds", "broken", "inconclusive", "not measurable"]


@dataclass(frozen=True)
class Verdict:
    """One relation judged. `relation` says it in words, `numbers` shows what was compared;
    `cause` is there unless it holds."""

    step: str
    relation: str
    outcome: Outcome
    numbers: str
    cause: Cause | None = None

    def lines(self) -> list[str]:
        """The verdict for a person, at most three lines."""
        lines = [f"{self.step}: {self.outcome}: {self.relation}", f"  {self.numbers}"]
        if self.cause is not None:
            lines.append(f"  cause {self.cause.code}: {self.cause.sentence}")
        return lines


def _verdict(
    step: str, relation: str, holds: bool, numbers: str, cause: Cause | None = None
) -> Verdict:
    return Verdict(
        step, relation, "holds" if holds else "broken", numbers, None if holds else cause
    )


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
    """The first text came before the end of the answer, and not in one burst with it."""
    relation = "ttft < total"
    cause = causes.unusable(timeline)
    if cause is not None:
        return Verdict(step, relation, "broken", "no whole answer", cause)
    ttft, total = timeline.ttft_ms, timeline.total_ms
    numbers = f"ttft {milliseconds(ttft)}, total {milliseconds(total)}"
    if ttft is None or total is None:
        cause = Cause("no-text", f"the answer has no text (finish {timeline.finish_reason!r})")
        return Verdict(step, relation, "broken", numbers, cause)
    cause = causes.burst(timeline) or Cause("one-piece", "the whole answer came in one read")
    holds = ttft < total and causes.burst(timeline) is None
    return _verdict(step, relation, holds, numbers, cause)


def long_above_short(short: Timeline, long: Timeline, step: str = "own") -> Verdict:
    """The longer prompt took more tokens to process, and the longer to its first text."""
    pairs = [(short.prompt_n, long.prompt_n), (short.ttft_ms, long.ttft_ms)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    numbers = (
        f"prompt_n {count(short.prompt_n)} and {count(long.prompt_n)}, "
        f"ttft {milliseconds(short.ttft_ms)} and {milliseconds(long.ttft_ms)}"
    )
    return _verdict(
        step,
        "long > short",
        bool(known) and long.ttft_ms is not None and all(a < b for a, b in known),
        numbers,
        causes.prefill_flat(short.prompt_n, long.prompt_n),
    )


def cached_below_uncached(uncached: Timeline, cached: Timeline, step: str = "own") -> Verdict:
    """The repeated prompt was processed less, and answered sooner, than the cold one."""
    numbers = (
        f"prompt_n {count(cached.prompt_n)} against {count(uncached.prompt_n)}, "
        f"ttft {milliseconds(cached.ttft_ms)} against {milliseconds(uncached.ttft_ms)}"
    )
    relation = "cached < uncached"
    warm = causes.warm_leg("uncached", uncached)
    if warm is not None:
        return Verdict(step, relation, "inconclusive", numbers, warm)
    pairs = [(cached.prompt_n, uncached.prompt_n), (cached.ttft_ms, uncached.ttft_ms)]
    holds = cached.ttft_ms is not None and all(
        a < b for a, b in pairs if a is not None and b is not None
    )
    cause = causes.cache_miss(cached)
    return _verdict(step, relation, holds, numbers, cause)


# --- the eight steps ---


def server(result: ServerResult) -> list[Verdict]:
    """Step 1. A server without /health or /props cannot be judged by them."""
    health, props = result.health.json(), result.props.json()
    if result.health.status != 200 or not isinstance(health, dict):
        health_verdict = _not_offered("/health", "status is ok", result.health.status)
    else:
        shown = f"status {health.get('status')!r}"
        cause = Cause("not-healthy", f"the server says {json.dumps(health)[:120]}")
        health_verdict = _verdict(
            "server", "/health: status is ok", health.get("status") == "ok", shown, cause
        )
    relation = "model path, n_ctx > 0, total_slots >= 1"
    if result.props.status != 200 or not isinstance(props, dict):
        return [health_verdict, _not_offered("/props", relation, result.props.status)]
    settings = props.get("default_generation_settings")
    n_ctx = settings.get("n_ctx") if isinstance(settings, dict) else None
    slots, path = props.get("total_slots"), props.get("model_path")
    missing = [
        name
        for name, ok in (
            ("model_path", isinstance(path, str) and path),
            ("default_generation_settings.n_ctx", isinstance(n_ctx, int) and n_ctx > 0),
            ("total_slots", isinstance(slots, int) and slots >= 1),
        )
        if not ok
    ]
    cause = Cause("props-incomplete", f"/props lacks a usable {', '.join(missing)}")
    shown = f"n_ctx {n_ctx}, slots {slots}"
    return [health_verdict, _verdict("server", f"/props: {relation}", not missing, shown, cause)]


def _not_offered(path: str, relation: str, status: int) -> Verdict:
    return Verdict(
        "server",
        f"{path}: {relation}",
        "not measurable",
        f"HTTP {status}",
        Cause("not-offered", f"this server offers no {path}"),
    )


def sse_stream(result: SseResult) -> list[Verdict]:
    """Step 2: the stream ended well, and the pieces are the raw file's."""
    timeline = result.timeline
    ending = "[DONE]" if timeline.done else f"finish_reason {timeline.finish_reason!r}, no [DONE]"
    ended = _verdict(
        "sse",
        "data: [DONE] ends the stream",
        causes.unusable(timeline) is None,
        f"{timeline.reads} reads, {len(timeline.pieces)} pieces, {ending}",
        causes.unusable(timeline),
    )
    return [
        ended,
        pieces_are_raw_content(result.raw, result.chunks),
        times_never_fall(result.chunks),
        ttft_below_total(timeline, "sse"),
    ]


def pieces_are_raw_content(raw: bytes, chunks: Sequence[Chunk]) -> Verdict:
    """The pieces equal the content in the raw stream, piece for piece."""
    contents: list[str] = []
    for event in sse.Decoder().feed(raw):
        if event.data == sse.DONE:
            break
        try:
            contents.append(sse.content(sse.payload(event)))
        except sse.StreamFailure:
            break
    expected = [text for text in contents if text]
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
        Cause("pieces-differ", f"first difference at piece {differing + 1}"),
    )


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
    broken = [
        verdict
        for timeline in result.timelines
        if (verdict := ttft_below_total(timeline, "ttft")).outcome != "holds"
    ]
    worst = max(runs, key=lambda run: run.ttft_ms / run.total_ms if run.total_ms else math.inf)
    below = all(run.ttft_ms < run.total_ms for run in runs) and not broken
    medians = (
        statistics.median(run.ttft_ms for run in runs),
        statistics.median(run.total_ms for run in runs),
    )
    shown = (result.ttft.ttft_p50, result.ttft.total_p50)
    return [
        _verdict(
            "ttft",
            "ttft < total in every run",
            below,
            f"closest: {milliseconds(worst.ttft_ms)} of {milliseconds(worst.total_ms)}",
            broken[0].cause if broken else Cause("one-piece", "the answer came in one read"),
        ),
        _verdict(
            "ttft",
            "the p50 are the medians",
            medians == shown,
            f"p50 of {len(runs)}: ttft {milliseconds(shown[0])}, total {milliseconds(shown[1])}",
            Cause("not-the-median", f"the medians are {medians[0]} and {medians[1]}"),
        ),
    ]


def prefill(result: PrefillResult) -> list[Verdict]:
    """Step 4."""
    rows = result.rows
    docs = ", ".join(str(row.docs) for row in rows)
    prompt_n = [row.prompt_n for row in rows]
    verdicts = []
    for leg in result.timelines:
        warm = causes.warm_leg("uncached", leg)
        if warm is not None:
            return [Verdict("prefill", "long > short", "inconclusive", f"docs {docs}", warm)]
    pairs = list(pairwise(rows))
    known = [n for n in prompt_n if n is not None]
    if len(known) == len(rows):
        steps_n = list(pairwise(known))
        flat = next((pair for pair in steps_n if pair[0] >= pair[1]), steps_n[0])
        verdicts.append(
            _verdict(
                "prefill",
                f"prompt_n grows with the documents ({docs})",
                all(a < b for a, b in steps_n),
                ", ".join(map(count, prompt_n)) + " tokens",
                causes.prefill_flat(*flat),
            )
        )
    falling = next((p for p in pairs if p[0].ttft_ms >= p[1].ttft_ms), pairs[0])
    verdicts.append(
        _verdict(
            "prefill",
            f"ttft grows with the documents ({docs})",
            all(a.ttft_ms < b.ttft_ms for a, b in pairs),
            ", ".join(milliseconds(row.ttft_ms) for row in rows),
            causes.prefill_flat(falling[0].prompt_n, falling[1].prompt_n),
        )
    )
    return verdicts


def cache(result: CacheResult) -> list[Verdict]:
    """Step 5: cached < uncached, by tokens and by time, against both cold legs."""
    warm = causes.warm_leg("first", result.legs["first"])
    if warm is not None:
        return [Verdict("cache", "cached < uncached", "inconclusive", "no cold leg", warm)]
    artifact, legs, prompts = result.cache, result.legs, result.prompts
    second = artifact.second
    missed = causes.cache_miss(legs["second"])
    changed = legs["changed_prefix"]
    hit = (
        causes.changed_prefix_hit(changed, prompts["second"], prompts["changed_prefix"])
        if changed.cold is False
        else missed
    )
    verdicts = []
    for name, cold_leg, cause in (
        ("first", artifact.first, missed),
        ("changed_prefix", artifact.changed_prefix, hit),
    ):
        if cold_leg.prompt_n is not None and second.prompt_n is not None:
            verdicts.append(
                _verdict(
                    "cache",
                    f"second < {name} in prompt_n",
                    second.prompt_n < cold_leg.prompt_n,
                    f"{count(second.prompt_n)} against {count(cold_leg.prompt_n)} tokens",
                    cause,
                )
            )
        verdicts.append(
            _verdict(
                "cache",
                f"second < {name} in ttft",
                second.ttft_ms < cold_leg.ttft_ms,
                f"{milliseconds(second.ttft_ms)} against {milliseconds(cold_leg.ttft_ms)}",
                cause,
            )
        )
    return verdicts


def sentence(result: SentenceResult) -> list[Verdict]:
    """Step 6."""
    artifact = result.sentence
    return [
        _verdict(
            "sentence",
            "ttft <= first sentence <= total",
            artifact.ttft_ms <= artifact.first_sentence_ms <= artifact.total_ms,
            f"{milliseconds(artifact.ttft_ms)} <= {milliseconds(artifact.first_sentence_ms)} <= "
            f"{milliseconds(artifact.total_ms)}",
            causes.burst(result.timeline) or Cause("order", "the times are not in order"),
        ),
        _verdict(
            "sentence",
            "first_sentence is a prefix of text",
            artifact.text.startswith(artifact.first_sentence) and bool(artifact.first_sentence),
            f"{len(artifact.first_sentence)} of {len(artifact.text)} characters",
            Cause("not-a-prefix", "the sentence was not cut from this text"),
        ),
    ]


def cancel(result: CancelResult) -> list[Verdict]:
    """Step 7: closed in time, the slot idle, the log agrees, the next request answered."""
    case, artifact = result.cases[0], result.cancel
    fewer = _verdict(
        "cancel",
        "received < max_tokens",
        artifact.received_tokens < artifact.max_tokens,
        f"{artifact.received_tokens} < {artifact.max_tokens} pieces, closed at "
        f"{milliseconds(artifact.closed_at_ms)} in {case.phase}",
        Cause("answer-ended", "the answer ended before the close, which proves nothing"),
    )
    if case.phase == "ended":
        ended = Cause(
            "answer-ended",
            "the answer ended even before a close right after its first piece: nothing was "
            "cancelled. Ask for a longer answer (llm_plan.cancel_question, cancel_max_tokens)",
        )
        return [
            Verdict("cancel", "the close stops the server", "inconclusive", fewer.numbers, ended)
        ]
    verdicts = [fewer]
    if result.slots_missing is not None:
        verdicts.append(
            Verdict(
                "cancel",
                "the slot goes idle after the close",
                "not measurable",
                "no /slots",
                Cause("no-slots", result.slots_missing),
            )
        )
    else:
        verdicts.append(
            _verdict(
                "cancel",
                "the slot goes idle after the close",
                case.idle_after_ms is not None,
                f"idle {milliseconds(case.idle_after_ms)} after the close "
                f"(to within {milliseconds(case.resolution_ms)})",
                causes.cancel_ignored(case.waited_ms, case.log_line),
            )
        )
    if result.log_source is not None:
        verdicts.append(
            _verdict(
                "cancel",
                "the log has the task's cancel line",
                case.log_line is not None,
                case.log_line or f"not in {result.log_source}",
                Cause(
                    "cancel-not-logged",
                    f"{result.log_source} has no 'cancel task' for this request: is it this "
                    "server's log, at its default level?",
                ),
            )
        )
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
