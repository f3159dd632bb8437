"""The eight measurements of the lab: a client and a plan in, results out.

A step asks, waits and derives; whether the numbers are good is judged in `relations.py`.
Raises StreamError where an answer cannot be used, ConfigError where the prompt does not fit.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from . import sse
from .artifacts import Chunk
from .causes import Cause, burst, coalesced
from .client import Client, Exchange
from .decision import enough
from .errors import ConfigError, ServerError, StreamError
from .plan import Messages, Plan, new_salt
from .recording import Recording, Reply
from .results import (
    BATCH_TOKENS,
    CACHE_COLD,
    CACHE_LEGS,
    CANCEL_CLOSE_AT,
    CANCEL_FIRST_PIECE,
    CANCEL_NEXT,
    CANCEL_PREFILL,
    CANCEL_SLOTS,
    CANCEL_TOKENS,
    SALTED,
    CacheResult,
    CancelCase,
    CancelResult,
    LogSpan,
    PrefillResult,
    SentenceResult,
    ServerResult,
    SseResult,
    TtftResult,
    cache_result,
    cancel_case,
    cancel_result,
    prefill_result,
    sentence_result,
    server_result,
    tokens_counted,
    too_long_words,
    ttft_result,
    usable,
)
from .server.logs import RunLog
from .serverlog import cancel_line
from .slots import Poll, answer_of, dump_polls
from .timeline import Timeline, derive

PREFILL_CASE_CLOSE_AT_MS = 100.0
PREFILL_TOKENS = 2 * BATCH_TOKENS
# In prefill a llama.cpp server looks at the client's socket after a second without news,
# and every answer that it gives, /slots included, restarts that second.
POLL_IN_PREFILL_S = 1.3
POLL_IN_GENERATION_S = 0.005
IDLE_DEADLINE_S = 30.0
IDLE_DEADLINE_IN_PREFILL_S = 120.0
LOG_DEADLINE_S = 2.0
LOG_POLL_S = 0.05
SLOTS_REFUSALS_AT_MOST = 5
# An answer that ends before even a close after its first piece is asked for longer.
LONGER_ANSWERS = (1, 8, 24)


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
    ) -> Recording:
        """Stream one answer that must be usable. Raises StreamError, ConfigError."""
        recording = self.client.record(messages, max_tokens, cache_prompt, label=label)
        usable(recording)
        return recording


def check_plan(plan: Plan, documents: Sequence[str]) -> None:
    """Raise ConfigError where a plan cannot be carried out."""
    counts = plan.doc_counts
    if len(counts) < 2 or any(a >= b for a, b in pairwise(counts)) or counts[0] < 0:
        raise ConfigError(f"llm_plan: doc_counts {counts} must be two or more, ascending")
    if counts[-1] > len(documents):
        raise ConfigError(
            f"llm_plan: doc_counts {counts} asks for more than the {len(documents)} documents of "
            "the knowledge base"
        )
    for name, value in vars(plan).items():
        if name.endswith(("max_tokens", "_runs")) and value < 1:
            raise ConfigError(f"llm_plan: {name} is {value}; it must be at least 1")
    if not plan.cancel_close_at_ms > 0:
        raise ConfigError(
            f"llm_plan: cancel_close_at_ms is {plan.cancel_close_at_ms:g}; it must be above 0"
        )


def check_context(bench: Bench) -> None:
    """Raise ConfigError if the longest prompt of the lab does not fit. Silent where the
    server offers no way to count."""
    context = context_size(bench.client.get("/props"))
    if not context:
        return
    plan = bench.plan
    longest = plan.with_documents(
        bench.documents, new_salt(), before=plan.changed_line, after=plan.changed_line
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
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0


def token_question(client: Client, messages: Messages) -> dict[str, Any] | None:
    """What to ask /tokenize to have a chat prompt counted; None where the server offers no
    templates."""
    prompt = client.post("/apply-template", {"messages": messages}).json()
    if not isinstance(prompt, dict) or "prompt" not in prompt:
        return None
    return {"content": prompt["prompt"], "add_special": True, "parse_special": True}


def count_tokens(client: Client, messages: Messages) -> int | None:
    """The tokens of a chat prompt by the server's own count; None where it offers none."""
    question = token_question(client, messages)
    if question is None:
        return None
    tokens = client.post("/tokenize", question).json()
    found = tokens.get("tokens") if isinstance(tokens, dict) else None
    return len(found) if isinstance(found, list) else None


Legs = dict[str, Recording]


def _cold(
    bench: Bench, step: str, cold: Sequence[str], measure: Callable[[str | None], Legs]
) -> tuple[Legs, str | None]:
    """Measure to the letter; where a leg of `cold` is not proven cold, again with a salt.

    Gives the recordings by leg, of both where there were two, and the salt.
    """
    legs = measure(None)
    proofs = {name: derive(legs[name]) for name in cold}
    warm = next((proof for proof in proofs.values() if not proof.cold), None)
    if warm is None:
        return legs, None
    why = (
        f"the server's counts contradict each other ({warm.counts_conflict})"
        if warm.counts_conflict is not None
        else "the server counts no reused tokens"
        if warm.cold is None
        else f"{warm.cache_n} of {warm.prompt_total} prompt tokens were in the cache already"
    )
    bench.note(step, f"measured with a salt: {why}, so the prompt to the letter proves nothing")
    salt = new_salt()
    return {**legs, **measure(salt)}, salt


def _prefix(salt: str | None) -> str:
    return SALTED if salt else ""


R = TypeVar("R", PrefillResult, CacheResult)


def _in_rounds(
    legs: Legs,
    salt: str | None,
    measure: Callable[[str | None, int], Legs],
    derive_result: Callable[[Legs], R],
    is_enough: Callable[[R], bool],
) -> R:
    """The result of the first round, or of as many salted ones as are needed.

    Without a salt a further round would find what an earlier one left in the cache, on a server
    with slots or a cache of prompts: the unsalted round then counts no more.
    """
    result = derive_result(legs)
    number = 1 if salt is None else 2
    while not is_enough(result):
        legs = {**legs, **measure(new_salt(), number)}
        result = derive_result(legs)
        number += 1
    return result


def measure_server(bench: Bench) -> ServerResult:
    """Step 1."""
    bench.progress("server")
    return server_result(
        {name: bench.client.fetch(f"/{name}", f"server/{name}") for name in ("health", "props")}
    )


def measure_sse(bench: Bench) -> SseResult:
    """Step 2, with the very `stream()` that the run directory gets a copy of. A stream that did
    not come as it was made is asked for once more: one says little on a busy machine."""
    result = _stream(bench, "stream")
    held_back = _held_back(result.timeline)
    if held_back is not None:
        result = _stream(bench, "stream-2")
        if _held_back(result.timeline) is None:
            bench.note("sse", f"a first stream did not come as it was made ({held_back.code})")
    timeline = result.timeline
    if not timeline.done and timeline.finish_reason is not None:
        bench.note("sse", "the stream ended without data: [DONE], with a finish_reason before")
    return result


def _held_back(timeline: Timeline) -> Cause | None:
    return burst(timeline) or coalesced(timeline)


def _stream(bench: Bench, leg: str) -> SseResult:
    bench.progress(f"sse {leg}")
    exchange = Exchange(bench.client, f"sse/{leg}")
    raw = io.BytesIO()
    pieces: list[dict[str, Any]] = []
    # Where the stream fails, the timeline has the words, and the relation judges them.
    with contextlib.suppress(sse.StreamFailure):
        pieces, _, _ = sse.stream(
            bench.plan.short(), bench.plan.max_tokens, raw_out=raw, send=exchange.send
        )
    assert exchange.recording is not None
    timeline = derive(exchange.recording)
    if timeline.error is None:
        chunks = tuple(Chunk(piece["t_ms"], piece["text"]) for piece in pieces)
    else:  # stream() raised and gave nothing; what had come is kept
        chunks = tuple(Chunk(piece.t_ms, piece.text) for piece in timeline.pieces)
    return SseResult(raw.getvalue(), chunks, timeline)


def measure_ttft(bench: Bench) -> TtftResult:
    """Step 3: the question of step 2, uncached, several times."""
    plan = bench.plan
    numbers = [str(number) for number in range(1, plan.ttft_runs + 1)]

    def measure(salt: str | None) -> Legs:
        legs = {}
        for number in numbers:
            bench.progress(f"ttft {number}/{plan.ttft_runs}")
            messages = plan.short(salt and f"{salt}-{number}")
            leg = _prefix(salt) + number
            legs[leg] = bench.ask(f"ttft/{leg}", messages, plan.max_tokens, cache_prompt=False)
        return legs

    result = ttft_result(_cold(bench, "ttft", numbers, measure)[0])
    first, *later = (run.ttft_ms for run in result.ttft.runs)
    if later:
        later_ms = statistics.median(later)
        bench.note(
            "ttft", f"first text of run 1 after {first:.0f} ms, of the later {later_ms:.0f} ms"
        )
    return result


def measure_prefill(bench: Bench) -> PrefillResult:
    """Step 4: more and more documents, uncached; again until times and counts agree."""
    plan = bench.plan

    def measure(salt: str | None, number: int = 1) -> Legs:
        legs = {}
        # Up, down, up: what slows the first or the last of a round hits either end in turn.
        for docs in plan.doc_counts if number % 2 else plan.doc_counts[::-1]:
            bench.progress(f"prefill {docs} documents, round {number}")
            messages = plan.with_documents(bench.documents[:docs], salt and f"{salt}-{docs}")
            leg = f"{_prefix(salt)}{docs}docs-{number}"
            legs[leg] = bench.ask(
                f"prefill/{leg}", messages, plan.kb_max_tokens, cache_prompt=False
            )
        return legs

    legs, salt = _cold(bench, "prefill", [f"{docs}docs-1" for docs in plan.doc_counts], measure)

    def is_enough(result: PrefillResult) -> bool:
        known = [row.prompt_n for row in result.rows if row.prompt_n is not None]
        counted = len(known) == len(result.rows)
        if counted and not all(a < b for a, b in pairwise(known)):
            return True  # the counts decide
        ratios = result.ratios()
        if len(ratios) == 1 and not _in_order(result):
            return False
        return enough(ratios, counted)

    return _in_rounds(legs, salt, measure, prefill_result, is_enough)


def _in_order(result: PrefillResult) -> bool:
    return all(b.ttft_ms - a.ttft_ms > result.jitter_ms for a, b in pairwise(result.rows))


def measure_cache(bench: Bench) -> CacheResult:
    """Step 5: cold, again, changed at the end, changed at the front."""
    plan = bench.plan
    documents = bench.documents

    def measure(salt: str | None, number: int = 1) -> Legs:
        same = plan.with_documents(documents, salt)
        prompts = {
            "first": same,
            "second": same,
            "changed_suffix": plan.with_documents(
                documents, salt, after="\n\n" + plan.changed_line.strip()
            ),
            "changed_prefix": plan.with_documents(documents, salt, before=plan.changed_line),
        }
        bench.progress(f"cache, clearing the slot, round {number}")
        bench.ask(
            f"cache/{_prefix(salt)}clearing-{number}",
            plan.clearing(),
            plan.clearing_max_tokens,
            cache_prompt=False,
        )
        legs = {}
        for name in CACHE_LEGS:
            bench.progress(f"cache {name}, round {number}")
            leg = f"{_prefix(salt)}{name}-{number}"
            legs[leg] = bench.ask(
                f"cache/{leg}", prompts[name], plan.kb_max_tokens, cache_prompt=True
            )
        return legs

    legs, salt = _cold(bench, "cache", [f"{name}-1" for name in CACHE_COLD], measure)

    def is_enough(result: CacheResult) -> bool:
        second = result.cache.second.prompt_n
        cold = [result.cache.first.prompt_n, result.cache.changed_prefix.prompt_n]
        known = [n for n in cold if n is not None]
        counted = second is not None and len(known) == len(cold)
        if second is not None and counted and second >= min(known):
            return True  # the counts decide
        return all(enough(result.ratios(name), counted) for name in CACHE_COLD)

    result = _in_rounds(legs, salt, measure, cache_result, is_enough)
    front, end = result.legs["changed_prefix"][-1], result.legs["changed_suffix"][-1]
    bench.note(
        "cache",
        f"the changing line at the front: {_tokens(front)}{front.ttft_ms:.0f} ms to the first "
        f"text; at the end: {_tokens(end)}{end.ttft_ms:.0f} ms",
    )
    return result


def _tokens(leg: Timeline) -> str:
    return "" if leg.prompt_n is None else f"{leg.prompt_n} tokens processed, "


def measure_sentence(bench: Bench) -> SentenceResult:
    """Step 6: when could a voice begin to speak?"""
    bench.progress("sentence")
    plan = bench.plan
    recording = bench.ask(
        "sentence/stream", plan.sentence(), plan.sentence_max_tokens, cache_prompt=True
    )
    return sentence_result({"stream": recording})


def measure_cancel(bench: Bench, log: RunLog | None) -> CancelResult:
    """Step 7: close at the contract's moment, and in both phases; then ask once more."""
    plan = bench.plan
    slots = bench.client.fetch("/slots", f"cancel/{CANCEL_SLOTS}")
    recordings = {CANCEL_SLOTS: slots}
    watcher = _Watcher(bench, log, answer_of(slots.status or 0, slots.body).busy is not None)
    bench.progress(f"cancel, closing at {plan.cancel_close_at_ms / 1000:g} s")
    cases = [
        watcher.close(
            CANCEL_CLOSE_AT,
            plan.cancel(),
            plan.cancel_max_tokens,
            close_at_ms=plan.cancel_close_at_ms,
            looks=True,
        )
    ]
    for attempt, factor in enumerate(LONGER_ANSWERS, 1):
        bench.progress("cancel, closing after the first piece")
        cases += watcher.extra_close(
            f"{CANCEL_FIRST_PIECE}-{attempt}",
            plan.cancel(),
            factor * plan.cancel_max_tokens,
            close_on_piece=True,
        )
        # One that lasted, and still could not be closed in time, is held back on its way: a
        # longer one would be, too.
        lasted = cases[-1].closed_at_ms > 2 * plan.cancel_close_at_ms
        if cases[-1].phase == "generation" or lasted:
            break
    if cases[0].phase == "ended":
        bench.note(
            "cancel",
            f"the answer had ended before the close at {plan.cancel_close_at_ms:g} ms, which "
            "proves nothing: measured again with a close right after the first piece "
            f"(max_tokens {cases[-1].max_tokens})",
        )
    bench.progress("cancel, closing during a long prefill")
    long_prompt = _long_prompt(bench)
    question = token_question(bench.client, long_prompt)
    tokens = None
    if question is not None:
        tokens = bench.client.fetch("/tokenize", f"cancel/{CANCEL_TOKENS}", question)
    cases += watcher.extra_close(
        CANCEL_PREFILL,
        long_prompt,
        plan.kb_max_tokens,
        close_at_ms=PREFILL_CASE_CLOSE_AT_MS,
        prompt_tokens=tokens_counted(tokens),
    )
    bench.progress("cancel, the next request")
    recordings[CANCEL_NEXT] = bench.client.record(
        plan.short(), plan.clearing_max_tokens, False, label=f"cancel/{CANCEL_NEXT}"
    )
    return cancel_result(recordings, cases, log.source if log is not None else None)


def _long_prompt(bench: Bench) -> Messages:
    """A prompt of several batches, so that one batch can be told from all: the documents again
    and again, as far as the context goes. Where nobody counts, the documents once."""
    plan, salt = bench.plan, new_salt()
    once = plan.with_documents(bench.documents, salt)
    tokens, context = count_tokens(bench.client, once), context_size(bench.client.get("/props"))
    if not tokens or not context:
        return once
    room = (context - plan.kb_max_tokens) // tokens
    times = max(1, min(-(-PREFILL_TOKENS // tokens), room))
    return plan.with_documents([*bench.documents] * times, salt)


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
        looks: bool = False,
        prompt_tokens: int | None = None,
    ) -> CancelCase:
        """One close, watched until the slot is idle or the deadline has passed. `looks`: ask
        /slots once while the answer streams, to know that it shows this server's."""
        log_from = self.log.size() if self.log is not None else 0
        before: list[tuple[float, float, Reply]] = []

        def look() -> None:
            with contextlib.suppress(ServerError):
                before.append(self._ask())

        exchange = Exchange(
            self.bench.client,
            f"cancel/{name}",
            close_at_ms,
            close_on_piece,
            look if looks and self.has_slots else None,
        )
        recording = exchange.run(sse.request_body(messages, max_tokens, True))
        timeline = derive(recording)
        in_prefill = not timeline.pieces
        polls = [_poll_of(exchange.closed_at, *seen) for seen in before]
        if self.has_slots:
            polls += self._poll(exchange.closed_at, in_prefill)
        self.bench.keep_text(f"cancel/{name}.polls.jsonl", dump_polls(polls))
        if self.log is None:
            return cancel_case(name, recording, polls, None, None, prompt_tokens)
        # An answer that came to its own end has no such line to wait for.
        ended = timeline.done or timeline.finish_reason is not None
        if not in_prefill and polls:
            ended = ended or polls[-1].answer.finished is True
        part, span = self._wait_for_line(self.log, log_from, 0.0 if ended else LOG_DEADLINE_S)
        return cancel_case(name, recording, polls, part, span, prompt_tokens)

    def extra_close(self, name: str, *args: Any, **kwargs: Any) -> list[CancelCase]:
        """A close beside the contract's; where it fails, that is only noted."""
        try:
            return [self.close(name, *args, **kwargs)]
        except StreamError as error:
            self.bench.note("cancel", f"a close could not be measured: {error}")
            return []

    def _poll(self, closed: float, in_prefill: bool) -> list[Poll]:
        """Ask /slots until no slot is busy. Times count from `closed` (perf_counter)."""
        pause_s = POLL_IN_PREFILL_S if in_prefill else POLL_IN_GENERATION_S
        deadline_s = IDLE_DEADLINE_IN_PREFILL_S if in_prefill else IDLE_DEADLINE_S
        polls: list[Poll] = []
        refusals = 0
        if in_prefill:
            time.sleep(pause_s)
        while time.perf_counter() - closed < deadline_s and refusals < SLOTS_REFUSALS_AT_MOST:
            try:
                poll = _poll_of(closed, *self._ask())
            except ServerError:
                refusals += 1
                time.sleep(pause_s)
                continue
            polls.append(poll)
            if poll.busy is False:
                break
            time.sleep(pause_s)
        return polls

    def _ask(self) -> tuple[float, float, Reply]:
        """(asked, answered, answer) of /slots, by `time.perf_counter()`."""
        asked = time.perf_counter()
        reply = self.bench.client.get("/slots", timeout_s=IDLE_DEADLINE_S)
        return asked, time.perf_counter(), reply

    def _wait_for_line(
        self, log: RunLog, log_from: int, patience_s: float
    ) -> tuple[bytes, LogSpan]:
        """The part of the log in which our task's cancel line should be; waits for the line
        a little, since logs come late."""
        deadline = time.monotonic() + patience_s
        while True:
            part = log.read(log_from)
            if cancel_line(part) is not None or time.monotonic() > deadline:
                return part, LogSpan(log_from, log_from + len(part))
            time.sleep(LOG_POLL_S)


def _poll_of(closed: float, asked: float, answered: float, reply: Reply) -> Poll:
    """With times in milliseconds from the close."""
    return Poll(
        round((asked - closed) * 1000.0, 3),
        round((answered - closed) * 1000.0, 3),
        reply.status,
        reply.body.decode("utf-8", "replace"),
    )
