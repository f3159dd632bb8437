"""The eight measurements of the lab: a client and a plan in, results out.

A step asks, waits and derives; whether the numbers are good is judged in `relations.py`.
Raises StreamError where an answer cannot be used, ConfigError where the prompt does not fit.
"""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from . import sse
from .artifacts import Cache, CacheLeg, Cancel, Chunk, PrefillRow, Sentence, Ttft, TtftRun
from .client import Client, Exchange
from .errors import ConfigError, ServerError, StreamError
from .plan import Messages, Plan
from .recording import Recording, Reply
from .results import (
    CacheResult,
    CancelCase,
    CancelResult,
    Phase,
    PrefillResult,
    SentenceResult,
    ServerResult,
    SseResult,
    TtftResult,
)
from .server.logs import RunLog
from .serverlog import cancel_line
from .slots import Poll, answer_of, slots_state
from .timeline import Timeline, derive, first_sentence

ROUNDS_WHERE_TIMES_CONTRADICT = 3
PREFILL_CASE_CLOSE_AT_MS = 100.0
# In prefill a llama.cpp server looks at the client's socket after a second without news,
# and every answer that it gives, /slots included, restarts that second.
POLL_IN_PREFILL_S = 1.3
POLL_IN_GENERATION_S = 0.005
IDLE_DEADLINE_S = 30.0
IDLE_DEADLINE_IN_PREFILL_S = 120.0
LOG_DEADLINE_S = 2.0
# An answer that ends before even a close after its first piece is asked for longer.
LONGER_ANSWERS = (1, 8)

T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """What every step works with. `progress` shows what is being done, `note(step, text)`
    keeps a remark, `keep_text(label, text)` keeps evidence beside the recordings."""

    client: Client
    plan: Plan
    documents: Sequence[str]
    progress: Callable[[str], None]
    note: Callable[[str, str], None]
    keep_text: Callable[[str, str], None]

    def ask(
        self, label: str, messages: Messages, max_tokens: int, *, cache_prompt: bool
    ) -> Timeline:
        """Stream one answer that must be usable. Raises StreamError, ConfigError."""
        recording = self.client.record(messages, max_tokens, cache_prompt, label=label)
        return usable(recording)


def usable(recording: Recording) -> Timeline:
    """The timeline of a whole answer with text. Raises StreamError, ConfigError otherwise."""
    timeline = derive(recording)
    if recording.status == 400:
        _raise_if_too_long(recording)
    if timeline.error is not None:
        raise StreamError(f"{recording.label}: {timeline.error}")
    if timeline.cut_short:
        raise StreamError(
            f"{recording.label}: the stream was cut short: {len(timeline.pieces)} pieces, then "
            "the end, with neither a finish_reason nor [DONE]"
        )
    if not timeline.pieces:
        raise StreamError(
            f"{recording.label}: the answer has no text (finish_reason "
            f"{timeline.finish_reason!r}, {timeline.tokens} tokens): no first text to time"
        )
    return timeline


def _raise_if_too_long(recording: Recording) -> None:
    try:
        error = json.loads(recording.body)["error"]
        tokens, context = int(error["n_prompt_tokens"]), int(error["n_ctx"])
    except (ValueError, KeyError, TypeError):
        return
    raise ConfigError(too_long_words(recording.label, tokens, context))


def too_long_words(what: str, tokens: int, context: int) -> str:
    """The message for a prompt that does not fit, the same wherever it was found."""
    return (
        f"{what}: the prompt of {tokens} tokens does not fit the server's context of {context}; "
        "start the server with a larger one (llama-server -c N), or give shorter documents "
        "(--llm-kb)"
    )


def check_context(bench: Bench) -> None:
    """Raise ConfigError if the longest prompt of the lab does not fit. Silent where the
    server offers no way to count."""
    context = context_size(bench.client.get("/props"))
    if not context:
        return
    plan = bench.plan
    longest = plan.with_documents(
        bench.documents, secrets.token_hex(8), before=plan.changed_line, after=plan.changed_line
    )
    tokens = count_tokens(bench.client, longest)
    if tokens is not None and tokens + plan.kb_max_tokens > context:
        raise ConfigError(
            too_long_words(
                f"the longest prompt (with {len(bench.documents)} documents and "
                f"{plan.kb_max_tokens} tokens to answer)",
                tokens + plan.kb_max_tokens,
                context,
            )
        )


def context_size(props: Reply) -> int:
    """Tokens of context per slot by /props; 0 where it does not say."""
    body = props.json()
    try:
        return int(body["default_generation_settings"]["n_ctx"])
    except (KeyError, TypeError, ValueError):
        return 0


def count_tokens(client: Client, messages: Messages) -> int | None:
    """The tokens of a chat prompt by the server's own count; None where it offers none."""
    prompt = client.post("/apply-template", {"messages": messages}).json()
    if not isinstance(prompt, dict) or "prompt" not in prompt:
        return None
    question = {"content": prompt["prompt"], "add_special": True, "parse_special": True}
    tokens = client.post("/tokenize", question).json()
    return len(tokens["tokens"]) if isinstance(tokens, dict) and "tokens" in tokens else None


def _cold(
    bench: Bench,
    step: str,
    measure: Callable[[str | None], T],
    cold_legs: Callable[[T], Sequence[Timeline]],
) -> tuple[T, str | None]:
    """Measure to the letter; where a cold leg is not proven cold, again with a salt."""
    result = measure(None)
    legs = cold_legs(result)
    if all(leg.cold for leg in legs):
        return result, None
    warm = next(leg for leg in legs if not leg.cold)
    why = (
        "the server counts no reused tokens"
        if warm.cold is None
        else f"{warm.cache_n} of {warm.prompt_total} prompt tokens were in the cache already"
    )
    bench.note(step, f"measured with a salt: {why}, so the prompt to the letter proves nothing")
    salt = secrets.token_hex(8)
    return measure(salt), salt


def measure_server(bench: Bench) -> ServerResult:
    """Step 1."""
    bench.progress("server")
    return ServerResult(bench.client.get("/health"), bench.client.get("/props"))


def measure_sse(bench: Bench) -> SseResult:
    """Step 2, with the very `stream()` that the run directory gets a copy of."""
    bench.progress("sse")
    exchange = Exchange(bench.client, "sse/stream")
    raw = io.BytesIO()
    pieces: list[dict[str, Any]] = []
    # Where the stream fails, the timeline has the words, and the relation judges them.
    with contextlib.suppress(sse.StreamFailure):
        pieces, _, _ = sse.stream(
            bench.plan.short(), bench.plan.max_tokens, raw_out=raw, send=exchange.send
        )
    assert exchange.recording is not None
    chunks = tuple(Chunk(piece["t_ms"], piece["text"]) for piece in pieces)
    return SseResult(raw.getvalue(), chunks, derive(exchange.recording))


def measure_ttft(bench: Bench) -> TtftResult:
    """Step 3: the question of step 2, uncached, several times."""
    plan = bench.plan

    def measure(salt: str | None) -> tuple[Timeline, ...]:
        timelines = []
        for number in range(1, plan.ttft_runs + 1):
            bench.progress(f"ttft {number}/{plan.ttft_runs}")
            messages = plan.short(salt and f"{salt}-{number}")
            label = f"ttft/{'salted-' if salt else ''}{number}"
            timelines.append(bench.ask(label, messages, plan.max_tokens, cache_prompt=False))
        return tuple(timelines)

    timelines, salt = _cold(bench, "ttft", measure, lambda legs: legs)
    runs = tuple(TtftRun(_ms(leg.ttft_ms), _ms(leg.total_ms), leg.tokens) for leg in timelines)
    later_ms = statistics.median(run.ttft_ms for run in runs[1:]) if len(runs) > 1 else 0.0
    bench.note("ttft", f"the first run took {runs[0].ttft_ms:.0f} ms, the later {later_ms:.0f} ms")
    return TtftResult(
        Ttft(
            runs,
            statistics.median(run.ttft_ms for run in runs),
            statistics.median(run.total_ms for run in runs),
            salt,
        ),
        timelines,
    )


def _ms(value: float | None) -> float:
    assert value is not None  # `usable` saw a piece
    return value


def measure_prefill(bench: Bench) -> PrefillResult:
    """Step 4: more and more documents, uncached; again where times contradict the counts."""
    plan = bench.plan

    def measure(salt: str | None, number: int = 1) -> tuple[Timeline, ...]:
        legs = []
        for docs in plan.doc_counts:
            bench.progress(f"prefill {docs} documents, round {number}")
            messages = plan.with_documents(bench.documents[:docs], salt and f"{salt}-{docs}")
            label = f"prefill/{'salted-' if salt else ''}{docs}docs-{number}"
            legs.append(bench.ask(label, messages, plan.kb_max_tokens, cache_prompt=False))
        return tuple(legs)

    first, salt = _cold(bench, "prefill", measure, lambda legs: legs)
    rounds = _rounds(
        first,
        lambda number: measure(salt and secrets.token_hex(8), number),
        lambda legs: all(_ms(a.ttft_ms) < _ms(b.ttft_ms) for a, b in pairwise(legs)),
    )
    rows = tuple(
        PrefillRow(
            docs,
            _median_count([leg.prompt_n for leg in legs]),
            _median_ms([leg.prompt_ms for leg in legs]),
            statistics.median(_ms(leg.ttft_ms) for leg in legs),
            salt,
        )
        for docs, legs in zip(plan.doc_counts, zip(*rounds))
    )
    return PrefillResult(rows, tuple(leg for legs in rounds for leg in legs))


def _rounds(first: T, measure: Callable[[int], T], times_agree: Callable[[T], bool]) -> list[T]:
    """One round where the times say what they should, else an odd number for medians."""
    rounds = [first]
    if not times_agree(first):
        rounds += [measure(number) for number in range(2, ROUNDS_WHERE_TIMES_CONTRADICT + 1)]
    return rounds


def _median_count(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return statistics.median_low(known) if len(known) == len(values) else None


def _median_ms(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None


# The changed suffix comes while the slot still holds the prompt that it shares its front with.
CACHE_LEGS = ("first", "second", "changed_suffix", "changed_prefix")


def measure_cache(bench: Bench) -> CacheResult:
    """Step 5: cold, again, changed at the end, changed at the front."""
    plan = bench.plan

    def prompts(salt: str | None) -> dict[str, Messages]:
        same = plan.with_documents(bench.documents, salt)
        return {
            "first": same,
            "second": same,
            "changed_suffix": plan.with_documents(
                bench.documents, salt, after="\n\n" + plan.changed_line.strip()
            ),
            "changed_prefix": plan.with_documents(bench.documents, salt, before=plan.changed_line),
        }

    def measure(salt: str | None, number: int = 1) -> dict[str, Timeline]:
        prefix = f"cache/{'salted-' if salt else ''}"
        bench.progress(f"cache, clearing the slot, round {number}")
        bench.client.record(
            plan.clearing(),
            plan.clearing_max_tokens,
            False,
            label=f"{prefix}clearing-{number}",
        )
        legs = {}
        for name, messages in prompts(salt).items():
            bench.progress(f"cache {name}, round {number}")
            label = f"{prefix}{name}-{number}"
            legs[name] = bench.ask(label, messages, plan.kb_max_tokens, cache_prompt=True)
        return legs

    first, salt = _cold(
        bench, "cache", measure, lambda legs: (legs["first"], legs["changed_prefix"])
    )
    rounds = _rounds(
        first,
        lambda number: measure(salt and secrets.token_hex(8), number),
        lambda legs: (
            _ms(legs["second"].ttft_ms)
            < min(_ms(legs["first"].ttft_ms), _ms(legs["changed_prefix"].ttft_ms))
        ),
    )
    _note_suffix(bench, rounds[-1])
    legs = {
        name: CacheLeg(
            _median_count([legs[name].prompt_n for legs in rounds]),
            statistics.median(_ms(legs[name].ttft_ms) for legs in rounds),
        )
        for name in CACHE_LEGS
    }
    return CacheResult(
        Cache(**legs, salt=salt),
        rounds[-1],
        {name: messages[0]["content"] for name, messages in prompts(salt).items()},
    )


def _note_suffix(bench: Bench, legs: Mapping[str, Timeline]) -> None:
    front, end = legs["changed_prefix"], legs["changed_suffix"]
    bench.note(
        "cache",
        f"the changing line at the front: {front.prompt_n} tokens processed, "
        f"{_ms(front.ttft_ms):.0f} ms to the first text; at the end: {end.prompt_n} tokens, "
        f"{_ms(end.ttft_ms):.0f} ms",
    )


def measure_sentence(bench: Bench) -> SentenceResult:
    """Step 6: when could a voice begin to speak?"""
    bench.progress("sentence")
    plan = bench.plan
    timeline = bench.ask(
        "sentence/stream", plan.sentence(), plan.sentence_max_tokens, cache_prompt=True
    )
    sentence, sentence_ms = first_sentence(timeline.pieces)
    return SentenceResult(
        Sentence(
            _ms(timeline.ttft_ms), sentence_ms, _ms(timeline.total_ms), sentence, timeline.text
        ),
        timeline,
    )


def measure_cancel(bench: Bench, log: RunLog | None) -> CancelResult:
    """Step 7: close at the contract's moment, and in both phases; then ask once more."""
    plan = bench.plan
    slots_missing = _why_no_slots(bench.client)
    watcher = _Watcher(bench, log, slots_missing is None)
    bench.progress(f"cancel, closing at {plan.cancel_close_at_ms / 1000:g} s")
    contract = watcher.close(
        "close-at", plan.cancel(), plan.cancel_max_tokens, close_at_ms=plan.cancel_close_at_ms
    )
    cases = [contract]
    for attempt, factor in enumerate(LONGER_ANSWERS, 1):
        if cases[-1].phase == "generation":
            break
        bench.progress("cancel, closing after the first piece")
        cases.append(
            watcher.close(
                f"first-piece-{attempt}",
                plan.cancel(),
                factor * plan.cancel_max_tokens,
                close_on_piece=True,
            )
        )
    if contract.phase == "ended":
        contract = cases[-1]
        bench.note(
            "cancel",
            f"the answer had ended before the close at {plan.cancel_close_at_ms:g} ms, which "
            "proves nothing: measured again with a close right after the first piece "
            f"(max_tokens {contract.max_tokens})",
        )
    bench.progress("cancel, closing during a long prefill")
    cases.append(
        watcher.close(
            "prefill",
            plan.with_documents(bench.documents, secrets.token_hex(8)),
            plan.kb_max_tokens,
            close_at_ms=PREFILL_CASE_CLOSE_AT_MS,
        )
    )
    bench.progress("cancel, the next request")
    cancel = Cancel(
        contract.max_tokens,
        contract.received_tokens,
        contract.closed_at_ms,
        contract.idle_after_ms,
    )
    return CancelResult(
        cancel,
        (contract, *(case for case in cases if case is not contract)),
        slots_missing,
        log.source if log is not None else None,
        _next_error(bench),
    )


def _why_no_slots(client: Client) -> str | None:
    try:
        reply = client.get("/slots")
    except ServerError as error:
        return str(error)
    return answer_of(reply.status, reply.body).missing


def _next_error(bench: Bench) -> str | None:
    try:
        bench.ask(
            "cancel/next",
            bench.plan.short(),
            bench.plan.clearing_max_tokens,
            cache_prompt=False,
        )
    except StreamError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class _Watcher:
    """Closes a stream and watches the slot and the log."""

    bench: Bench
    log: RunLog | None
    has_slots: bool

    def close(
        self,
        name: str,
        messages: Messages,
        max_tokens: int,
        *,
        close_at_ms: float | None = None,
        close_on_piece: bool = False,
    ) -> CancelCase:
        """One close, watched until the slot is idle or the deadline has passed."""
        log_before = self.log.read() if self.log is not None else b""
        exchange = Exchange(self.bench.client, f"cancel/{name}", close_at_ms, close_on_piece)
        recording = exchange.run(sse.request_body(messages, max_tokens, True))
        closed = exchange.closed_at
        timeline = derive(recording)
        if timeline.error is not None:
            usable(recording)
        ended = bool(timeline.done or timeline.finish_reason or timeline.closed_at_ms is None)
        phase: Phase = "generation" if timeline.pieces else "prefill"
        polls = self._poll(closed, phase) if self.has_slots else []
        self.bench.keep_text(
            f"cancel/{name}.polls.jsonl",
            "".join(json.dumps(poll.plain()) + "\n" for poll in polls),
        )
        # The whole answer may have been under way when the connection was closed.
        ended = ended or bool(polls and polls[-1].finished)
        log_line = None if ended else self._log_line(log_before)
        idle = slots_state(polls)
        return CancelCase(
            name=name,
            phase="ended" if ended else phase,
            max_tokens=max_tokens,
            received_tokens=len(timeline.pieces),
            closed_at_ms=recording.end.t_ms,
            idle_after_ms=idle.idle_after_ms,
            resolution_ms=idle.resolution_ms,
            waited_ms=polls[-1].answered_ms if polls else None,
            log_line=log_line,
        )

    def _poll(self, closed: float, phase: Phase) -> list[Poll]:
        """Ask /slots until no slot is busy. Times count from `closed` (perf_counter)."""
        in_prefill = phase == "prefill"
        pause_s = POLL_IN_PREFILL_S if in_prefill else POLL_IN_GENERATION_S
        deadline_s = IDLE_DEADLINE_IN_PREFILL_S if in_prefill else IDLE_DEADLINE_S
        polls: list[Poll] = []
        while time.perf_counter() - closed < deadline_s:
            if in_prefill or polls:
                time.sleep(pause_s)
            asked = time.perf_counter()
            try:
                reply = self.bench.client.get("/slots", timeout_s=deadline_s)
            except ServerError:
                continue
            answered = time.perf_counter()
            poll = Poll(
                round((asked - closed) * 1000.0, 3),
                round((answered - closed) * 1000.0, 3),
                reply.status,
                reply.body.decode("utf-8", "replace"),
            )
            polls.append(poll)
            if poll.busy is False:
                break
        return polls

    def _log_line(self, before: bytes) -> str | None:
        """The log's cancel line of our task; waits for it a little: logs come late."""
        if self.log is None:
            return None
        deadline = time.monotonic() + LOG_DEADLINE_S
        while True:
            now = self.log.read()
            line = cancel_line(now[len(before) :] if now.startswith(before) else now)
            if line is not None or time.monotonic() > deadline:
                return line
            time.sleep(0.05)
