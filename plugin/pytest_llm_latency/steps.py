"""The eight measurements of the lab: a client and a plan in, results out.

A step asks, waits and derives; whether the numbers are good is judged in `relations.py`.
Raises StreamError where an answer cannot be used, ConfigError where the prompt does not fit.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from . import asked, causes, costs, sse, thoughts
from .artifacts import Chunk
from .asked import LONGER_ANSWERS, PREFILL_CASE_CLOSE_AT_MS, Question
from .capabilities import Capabilities
from .client import Client, Exchange
from .errors import BudgetError, ConfigError, RateLimited, ServerError, StreamError
from .plan import Messages, Plan, new_salt
from .recording import Recording, Reply
from .results import (
    CACHE_COLD,
    CACHE_LEGS,
    CACHE_LOOK,
    CANCEL_CLOSE_AT,
    CANCEL_CONTROL,
    CANCEL_FIRST_PIECE,
    CANCEL_METRICS,
    CANCEL_NEXT,
    CANCEL_ONE_TOKEN,
    CANCEL_PREFILL,
    CANCEL_SLOTS,
    CANCEL_TOKENS,
    CANCEL_TWO,
    LONGER,
    MEASURABLE_MS,
    ONE_TOKEN_RUNS,
    SALTED,
    SENTENCE_AGAIN,
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
    counted_tokens,
    is_offered,
    is_soon_by_time,
    prefill_result,
    sentence_result,
    server_result,
    serves_several,
    token_count,
    too_long_words,
    ttft_result,
    usable,
    watched_by,
)
from .sentences import Rule
from .server.logs import RunLog
from .serverlog import cancel_line
from .slots import ONE_TOKEN, Poll, answer_of, dump_polls, our_task, shown_answer
from .speech import WORDS_PER_MINUTE
from .timeline import Timeline, derive

PREFILL_TOKENS = 4096
ATTEMPTS_AT_MOST = 3
# In prefill a llama.cpp server looks at the client's socket after a second without news,
# and every answer that it gives, /slots included, restarts that second.
POLL_IN_PREFILL_S = 1.3
POLL_IN_GENERATION_S = 0.005
IDLE_DEADLINE_S = 30.0
IDLE_DEADLINE_IN_PREFILL_S = 120.0
LOG_DEADLINE_S = 2.0
LOG_POLL_S = 0.05
SLOTS_REFUSALS_AT_MOST = 5
NEARLY_SAME = 1.2
LOOKS_FOR_OTHERS, LOOK_PAUSE_S = 4, 0.5
MISSES_OF_SHORT = ("cache-never-hits", "no-difference-in-time")
QUIET_DEADLINE_S = 5.0
STIR_FIRST_S, STIR_S = 0.1, 1.0
STIR_IN_PREFILL_S = 5.0
POLLED_AT_MOST = 16 * 1024 * 1024  # characters of all answers, which are kept
POLL_GAUGE_S = 0.05  # its answer may be long
# A busy machine was seen to send the short request of two 200 ms after the long one's first piece.
SENT_LATE_AT_MOST_MS = 1000.0


@dataclass(frozen=True)
class Bench:
    """What every step works with. `progress` shows what is being done, `note(step, text)`
    keeps a remark, `keep_text(label, text)` keeps evidence beside the recordings.

    Prefill, cache and sentence are measured in at least so many `rounds`.
    `client` asks, `behind` is asked about the state of the server: the same, or the one behind
    the proxy that is measured. `offers` and `behind_offers` are what these two offer."""

    client: Client
    offers: Capabilities
    behind: Client
    behind_offers: Capabilities
    plan: Plan
    documents: Sequence[str]
    progress: Callable[[str], None]
    note: Callable[[str, str], None]
    keep_text: Callable[[str, str], None]
    sentence_rule: Rule = "plain"
    words_per_minute: float = WORDS_PER_MINUTE
    rounds: int = 1

    def question(self, step: str, leg: str, salt: str | None = None, times: int = 1) -> Question:
        """What a leg asks (see `asked.question`)."""
        found = asked.question(step, leg, self.plan, self.documents, salt, times)
        assert found is not None, leg
        return found

    def record(
        self, step: str, leg: str, salt: str | None = None, times: int = 1, waits: bool = True
    ) -> Recording:
        """Stream one answer, whatever it is; `waits` for a limit of the server."""
        wanted = self.question(step, leg, salt, times)
        return self.client.record(
            wanted.messages, wanted.max_tokens, wanted.cache_prompt, label=f"{step}/{leg}",
            waits=waits,
        )  # fmt: skip

    def ask(self, step: str, leg: str, salt: str | None = None, times: int = 1) -> Recording:
        """Stream one answer that must be usable. Raises StreamError, ConfigError."""
        recording = self.record(step, leg, salt, times)
        usable(recording)
        return recording

    def context(self) -> int:
        """Tokens of context per slot by /props; 0 where it does not say."""
        path = self.behind_offers.props
        return context_size(self.behind.get(path)) if path is not None else 0

    def token_question(self, messages: Messages) -> dict[str, Any] | None:
        """What to ask /tokenize to have a chat prompt counted; None where the server offers no
        templates."""
        if not self.behind_offers.tokenize:
            return None
        prompt = self.behind.post("/apply-template", {"messages": messages}).json()
        if not isinstance(prompt, dict) or "prompt" not in prompt:
            return None
        return {"content": prompt["prompt"], "add_special": True, "parse_special": True}

    def count_tokens(self, messages: Messages) -> int | None:
        """The tokens of a chat prompt by the server's own count; None where it offers none."""
        question = self.token_question(messages)
        if question is None:
            return None
        return token_count(self.behind.post("/tokenize", question))


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
    context = bench.context()
    if not context:
        return
    plan = bench.plan
    longest = plan.with_documents(
        bench.documents, new_salt(), before=plan.changed_line, after=plan.changed_line
    )
    tokens = bench.count_tokens(longest)
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


Legs = dict[str, Recording]


def _cold(
    bench: Bench, step: str, cold: Sequence[str], measure: Callable[[str | None], Legs]
) -> tuple[Legs, str | None]:
    """Measure to the letter; where a leg of `cold` is not proven cold, again with a salt.

    Gives the recordings by leg, of both where there were two, and the salt.
    """
    legs = measure(None)
    warm = asked.warm(((name, derive(leg)) for name, leg in legs.items()), cold)
    if warm is None:
        return legs, None
    why = (
        f"the server's counts contradict each other ({warm.counts_conflict})"
        if warm.counts_conflict is not None
        else "the server counts no reused tokens (vLLM does with --enable-prompt-tokens-details, "
        "SGLang with --enable-cache-report)"
        if warm.cold is None
        else f"{warm.cache_n} of {warm.prompt_total} prompt tokens were in the cache already"
    )
    bench.note(step, f"measured with a salt: {why}, so the prompt to the letter proves nothing")
    salt = new_salt()
    return {**legs, **measure(salt)}, salt


def _leg_salt(salt: str | None) -> str | None:
    """A salt of its own for every leg that must be cold: one that they shared would be in the
    cache from the second on, and it is a good part of a short prompt."""
    return None if salt is None else new_salt()


def _prefix(salt: str | None) -> str:
    return SALTED if salt else ""


def _in_rounds(
    legs: Legs,
    salt: str | None,
    measure: Callable[[str | None, int], Legs],
    derive_result: Callable[[Legs], R],
    is_enough: Callable[[R], bool],
    look: Callable[[R], Legs] = lambda _: {},
) -> R:
    """The result of the first round, or of as many salted ones as are needed; `look` gives
    recordings that are no legs.

    Without a salt a further round would find what an earlier one left in the cache, on a server
    with slots or a cache of prompts: the unsalted round then counts no more.
    """
    result = derive_result(legs)
    number = 1 if salt is None else 2
    while not is_enough(result):
        legs = {**legs, **measure(new_salt(), number)}
        result = derive_result(legs)
        number += 1
    found = look(result)
    return derive_result({**legs, **found}) if found else result


def measure_server(bench: Bench) -> ServerResult:
    """Step 1."""
    bench.progress("server")
    fetch = bench.client.fetch
    recordings = {
        "health": fetch("/health", "server/health"),
        "props": fetch(bench.offers.props or "/props", "server/props"),
    }
    if not is_offered(server_result(recordings).health):
        recordings["models"] = fetch(f"{bench.client.api_path}/models", "server/models")
    return server_result(recordings)


R = TypeVar("R")


def _as_made(
    bench: Bench, step: str, ask: Callable[[int], R], timeline_of: Callable[[R], Timeline]
) -> R:
    """An answer that came as it was made, or the last of three: one that did not says little on
    a busy machine."""
    held_back: list[str] = []
    for attempt in range(1, ATTEMPTS_AT_MOST + 1):
        answer = ask(attempt)
        cause = causes.held_back(timeline_of(answer))
        if cause is None:
            if held_back:
                bench.note(step, f"asked again: {', '.join(held_back)}")
            break
        held_back.append(cause.code)
    return answer


def measure_sse(bench: Bench) -> SseResult:
    """Step 2, with the very `stream()` that the run directory gets a copy of."""

    def ask(attempt: int) -> SseResult:
        return _stream(bench, f"stream-{attempt}")

    result = _as_made(bench, "sse", ask, lambda result: result.timeline)
    timeline = result.timeline
    for text in stream_notes(timeline):
        bench.note("sse", text)
    return result


def stream_notes(timeline: Timeline) -> list[str]:
    """Remarks on a stream that holds all the same."""
    notes = []
    if timeline.unended is not None:
        notes.append(
            f"the last event ({timeline.unended!r}) was not ended by a blank line: clients that "
            "follow the standard do not see it"
        )
    elif not timeline.done and timeline.finish_reason is not None:
        notes.append("the stream ended without data: [DONE], with a finish_reason before")
    if timeline.repeats:
        notes.append(
            "every delta repeats all text so far: the pieces are what each adds. A client that "
            "puts deltas together, as OpenAI's do, shows the text many times"
        )
    if timeline.thought_tag is not None:
        notes.append(thoughts.words(timeline.thought_tag))
    return notes


def _stream(bench: Bench, leg: str) -> SseResult:
    bench.progress(f"sse {leg}")
    exchange = Exchange(bench.client, f"sse/{leg}")
    wanted = bench.question("sse", leg)
    question = (wanted.messages, wanted.max_tokens, wanted.cache_prompt)
    # What is read is given to sse.py as it is kept: a secret in it is starred.
    recording = exchange.run(sse.request_body(*question))
    raw = io.BytesIO()
    pieces: list[dict[str, Any]] = []
    # Where the stream fails, the timeline has the words, and the relation judges them.
    with contextlib.suppress(sse.StreamFailure):
        pieces, _, _ = sse.stream(*question, raw_out=raw, send=lambda _: recording.reads)
    timeline = derive(recording)
    if timeline.error is None:
        chunks = tuple(Chunk(piece["t_ms"], piece["text"]) for piece in pieces)
    else:  # stream() raised and gave nothing; what had come is kept
        chunks = tuple(Chunk(piece.t_ms, piece.text) for piece in timeline.sent)
    return SseResult(raw.getvalue(), chunks, timeline)


def measure_ttft(bench: Bench) -> TtftResult:
    """Step 3: the question of step 2, uncached, several times."""
    plan = bench.plan
    numbers = asked.numbers(plan)

    def measure(salt: str | None) -> Legs:
        legs = {}
        for number in numbers:

            def ask(attempt: int, number: str = number) -> Recording:
                bench.progress(f"ttft {number}/{plan.ttft_runs}")
                leg = _prefix(salt) + (number if attempt == 1 else f"{number}.{attempt}")
                legs[leg] = bench.ask("ttft", leg, _leg_salt(salt))
                return legs[leg]

            _as_made(bench, "ttft", ask, derive)
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
            leg = f"{_prefix(salt)}{docs}docs-{number}"
            legs[leg] = bench.ask("prefill", leg, _leg_salt(salt))
        return legs

    legs, salt = _cold(bench, "prefill", asked.cold_legs("prefill", plan), measure)
    is_enough = asked.enough_of_prefill(bench.rounds)
    return _in_rounds(legs, salt, measure, prefill_result, is_enough)


def measure_cache(bench: Bench) -> CacheResult:
    """Step 5: cold, again, changed at the end, changed at the front."""

    def measure(salt: str | None, number: int = 1) -> Legs:
        return _cache_round(bench, 1, salt, number, _prefix(salt))

    def measure_longer(salt: str | None, number: int = 1) -> Legs:
        return _cache_round(bench, times, salt, number, LONGER)

    legs, salt = _cold(bench, "cache", asked.cold_legs("cache", bench.plan), measure)
    times = _longer(bench, cache_result(legs))
    measure_more = measure
    if times > 1:
        try:
            legs = {**legs, **measure_longer(new_salt())}
        except (BudgetError, RateLimited):
            raise  # nothing is proven about the server
        except (StreamError, ConfigError) as error:
            bench.note("cache", f"a longer prompt could not be measured: {error}")
        else:
            salt, measure_more = new_salt(), measure_longer

    is_enough = asked.enough_of_cache(bench.rounds)
    result = _in_rounds(legs, salt, measure_more, cache_result, is_enough, _look_for_others(bench))
    front, end = result.legs["changed_prefix"][-1], result.legs["changed_suffix"][-1]
    bench.note(
        "cache",
        f"the changing line at the front: {_tokens(front)}{front.ttft_ms:.0f} ms to the first "
        f"text; at the end: {_tokens(end)}{end.ttft_ms:.0f} ms",
    )
    first, second = result.legs["first"][-1], result.legs["second"][-1]
    if second.cold is False:
        for name, known, again in (("second", first, second), ("changed_suffix", second, end)):
            lost = causes.partial_hit_lost(known, again)
            if lost is not None:
                bench.note("cache", f"{name}: {lost.sentence}")
    return result


def _look_for_others(bench: Bench) -> Callable[[CacheResult], Legs]:
    """Where the cache never hit: some answers of /slots while nothing is asked here."""

    def look(result: CacheResult) -> Legs:
        path = bench.behind_offers.slots
        if path is None or not result.counted or all(map(result.hits, CACHE_COLD)):
            return {}
        found: Legs = {}
        for number in range(1, LOOKS_FOR_OTHERS + 1):
            found[f"{CACHE_LOOK}-{number}"] = bench.behind.fetch(
                path, f"cache/{CACHE_LOOK}-{number}"
            )
            sse.pause(LOOK_PAUSE_S)
        return found

    return look


def _cache_round(bench: Bench, times: int, salt: str | None, number: int, prefix: str) -> Legs:
    """One round; the prompt has the documents so many `times`."""
    bench.progress(f"cache, clearing the slot, round {number}")
    clearing = f"{prefix}{asked.CLEARING}-{number}"
    legs = {clearing: bench.ask("cache", clearing)}
    for name in CACHE_LEGS:
        bench.progress(f"cache {name}, round {number}")
        leg = f"{prefix}{name}-{number}"
        legs[leg] = bench.ask("cache", leg, salt, times)
    return legs


def _longer(bench: Bench, result: CacheResult) -> int:
    """How many times the documents make a longer prompt, where this one never hit: some servers
    cache only in blocks of hundreds of tokens. 1: not needed, long enough already, or too long to
    fit."""
    first, second = result.legs["first"][-1], result.legs["second"][-1]
    hits = result.hits("first") if result.counted else result.ratios("first")[0] > NEARLY_SAME
    if hits or causes.cache_miss(first, second).code not in MISSES_OF_SHORT:
        return 1
    tokens = (
        first.prompt_total
        or bench.count_tokens(bench.plan.with_documents(bench.documents))
        or len(first.prompt) // costs.CHARACTERS_PER_TOKEN
    )
    context = bench.context()
    room = context - bench.plan.kb_max_tokens if context else 2 * causes.LONG_TOKENS
    times = min(-(-causes.LONG_TOKENS // tokens), room // tokens) if tokens else 0
    if times < 2:
        return 1
    bench.note(
        "cache",
        f"the prompt of about {tokens} tokens never hit; measured again with its documents "
        f"{times} times, since some servers cache only in large blocks",
    )
    return times


def _tokens(leg: Timeline) -> str:
    return "" if leg.prompt_n is None else f"{leg.prompt_n} tokens processed, "


def measure_sentence(bench: Bench) -> SentenceResult:
    """Step 6: when could a voice begin to speak?"""
    bench.progress("sentence")
    legs: Legs = {}

    def ask(leg: str) -> Recording:
        legs[leg] = bench.ask("sentence", leg)
        return legs[leg]

    _as_made(bench, "sentence", lambda attempt: ask(f"stream-{attempt}"), derive)
    for number in range(2, bench.rounds + 1):
        bench.progress(f"sentence, round {number}")
        try:
            ask(f"{SENTENCE_AGAIN}{number}")
        except StreamError as error:  # the first one was good
            bench.note("sentence", f"a further round is left out: {error}")
    result = sentence_result(legs, bench.sentence_rule, bench.words_per_minute)
    if result.speech is not None:
        bench.note("sentence", result.speech.words())
    return result


def measure_cancel(bench: Bench, log: RunLog | None) -> CancelResult:
    """Step 7: close at the contract's moment, and in both phases; then ask once more."""
    plan = bench.plan
    recordings = _watching(bench)
    watcher = _Watcher(bench, log, recordings)
    bench.progress(f"cancel, closing at {plan.cancel_close_at_ms / 1000:g} s")
    closes = [
        watcher.close(
            CANCEL_CLOSE_AT,
            bench.question("cancel", CANCEL_CLOSE_AT),
            close_at_ms=plan.cancel_close_at_ms,
            looks=True,
        )
    ]
    first = closes[0].case(recordings)
    if watcher.way is not None and first.proof not in ("log", "slots"):
        # Times decide: is the server as fast as before the close?
        recordings[CANCEL_CONTROL] = bench.record("cancel", CANCEL_CONTROL)
        first = closes[0].case(recordings)
    ran_on_before = first.stop == "ran on"
    for attempt in range(1, len(LONGER_ANSWERS) + 1):
        bench.progress("cancel, closing after the first piece")
        name = f"{CANCEL_FIRST_PIECE}-{attempt}"
        closes += watcher.extra_close(name, bench.question("cancel", name), close_on_token=True)
        last = closes[-1].case(recordings)
        # One that lasted, and still could not be closed in time, is held back on its way: a
        # longer one would be, too.
        lasted = last.phase == "ended" and last.closed_at_ms > 2 * plan.cancel_close_at_ms
        # By times alone a longer one tells more, unless two agree; a slot that was not seen idle
        # will not be.
        by_time = last.stop == "ran on" and last.proof == "time"
        agreed = ran_on_before and not is_soon_by_time(last)
        told = last.stop != "unknown" and (agreed or not by_time)
        ran_on_before |= last.stop == "ran on"
        told = told or watcher.way is None or last.idle_after_ms is None
        if lasted or (last.phase == "generation" and told):
            break
    if first.phase == "ended":
        bench.note(
            "cancel",
            f"the answer had ended before the close at {plan.cancel_close_at_ms:g} ms, which "
            "proves nothing: measured again with a close right after the first piece "
            f"(max_tokens {last.max_tokens})",
        )
    closes += _closed_in_prefill(bench, watcher, recordings)
    bench.progress("cancel, the next request")
    recordings[CANCEL_NEXT] = bench.record("cancel", CANCEL_NEXT)
    cases = [close.case(recordings) for close in closes]
    _note_prefill(bench, cases[-1])
    return cancel_result(recordings, cases, log.source if log is not None else None)


def _closed_in_prefill(bench: Bench, watcher: _Watcher, recordings: Legs) -> list[_Close]:
    """A close during a long prefill. One that did not stop it is made again, and the second counts:
    llama.cpp's own server was seen to look at its client no more than once in six seconds."""
    while True:
        bench.progress("cancel, closing during a long prefill")
        long_prompt = _long_prompt(bench)
        question = bench.token_question(long_prompt.messages)
        tokens = None
        if question is not None:
            tokens = bench.behind.fetch("/tokenize", f"cancel/{CANCEL_TOKENS}", question)
        is_first = CANCEL_PREFILL not in recordings
        closes = watcher.extra_close(
            CANCEL_PREFILL,
            long_prompt,
            close_at_ms=PREFILL_CASE_CLOSE_AT_MS,
            prompt_tokens=counted_tokens(tokens),
        )
        case = closes[0].case(recordings) if closes else None
        if case is None or case.stop != "ran on" or not is_first:
            return closes
        bench.note(
            "cancel",
            f"a close in prefill did not stop it ({case.prompt_processed} of {case.prompt_tokens} "
            f"tokens processed, idle {case.idle_after_ms or 0:.0f} ms later): made once more, and "
            "that counts",
        )


def _note_prefill(bench: Bench, case: CancelCase) -> None:
    """What became of a close in prefill where it is not judged."""
    if case.phase != "prefill" or case.stop != "unknown" or case.idle_after_ms is None:
        return
    bench.note(
        "cancel",
        f"closed in prefill {case.closed_at_ms:.0f} ms after the request, the server was idle "
        f"{case.idle_after_ms:.0f} ms later (to within {case.resolution_ms or 0:.0f} ms); whether "
        "the close did that cannot be told here",
    )


def _watching(bench: Bench) -> Legs:
    """Find out, in this order, what shows whether the server is idle: /slots, a gauge in
    /metrics, or a request for one token. The recordings say it (see `results.watched_by`)."""
    found: Legs = {}
    client, offered = bench.behind, bench.behind_offers
    ways = [(CANCEL_SLOTS, offered.slots or "/slots")]
    if offered.slots is None and offered.metrics is not None:
        ways.append((CANCEL_METRICS, offered.metrics))
    for name, path in ways:
        # What the step before left running is waited for; others' requests are not.
        deadline = sse.now() + QUIET_DEADLINE_S
        while True:
            found[name] = client.fetch(path, f"cancel/{name}")
            busy = answer_of(found[name].status or 0, found[name].body).busy
            if not busy or sse.now() > deadline:
                break
            sse.pause(POLL_IN_GENERATION_S)
    if watched_by(found)[0] is None and busy is None:
        bench.progress("cancel, one request at a time?")
        found |= _two_at_once(bench)
    return found


def _two_at_once(bench: Bench) -> Legs:
    """A long answer, and a short one asked for when the long one has begun; then how long a
    1-token request takes after another that has ended."""
    long_name, short_name = CANCEL_TWO
    found: Legs = {}
    spent: list[BudgetError] = []

    def ask_short() -> None:
        try:
            found[short_name] = _ask_one_token(bench, short_name)
        except BudgetError as error:
            spent.append(error)

    # Of the fastest an answer may be over too soon to tell, or before the short one is sent.
    for factor in LONGER_ANSWERS[:2]:
        beside = threading.Thread(target=ask_short, daemon=True)
        exchange = Exchange(bench.client, f"cancel/{long_name}", on_token=beside.start)
        question = bench.question("cancel", long_name, times=factor)
        limit = question.max_tokens
        found[long_name] = exchange.run(question.body())
        if beside.ident is None:  # no text came
            return found
        beside.join()
        if spent:
            raise spent[0]
        moments = derive(found[long_name]).token_ms
        waited = serves_several(found) is None
        long_enough_ms = MEASURABLE_MS if waited else SENT_LATE_AT_MOST_MS
        if len(moments) < limit or moments[-1] - moments[0] >= long_enough_ms:
            break
    if serves_several(found) is None:
        for number in range(1, ONE_TOKEN_RUNS + 1):
            # As after a close: what the server holds is another prompt.
            bench.ask("cancel", f"{asked.BEFORE_ONE_TOKEN}{number}")
            name = f"{CANCEL_ONE_TOKEN}{number}"
            found[name] = _ask_one_token(bench, name)
    return found


def _ask_one_token(bench: Bench, name: str) -> Recording:
    # Its moment is what tells: one that a limit puts off would tell of another.
    return bench.record("cancel", name, waits=False)


def _long_prompt(bench: Bench) -> Question:
    """A prompt of several batches, so that one batch can be told from all: the documents again
    and again, as far as the context goes. Where nobody counts, the documents once."""
    plan, salt = bench.plan, new_salt()
    once = bench.question("cancel", CANCEL_PREFILL, salt)
    none, some = (bench.count_tokens(m) for m in (plan.with_documents((), salt), once.messages))
    context = bench.context()
    if none is None or some is None or some <= none or not context:
        return once
    wanted = min(PREFILL_TOKENS, context - plan.kb_max_tokens - 1) - none
    return bench.question("cancel", CANCEL_PREFILL, salt, max(1, wanted // (some - none)))


@dataclass(frozen=True)
class _Close:
    """A close as it was watched; see `cancel_case`."""

    name: str
    recording: Recording
    polls: Sequence[Poll]
    log: bytes | None
    log_span: LogSpan | None
    prompt_tokens: int | None

    def case(self, beside: Legs) -> CancelCase:
        """What it gave, by the recordings of the step so far. Raises StreamError."""
        return cancel_case(
            self.name, self.recording, self.polls, self.log, self.log_span, self.prompt_tokens,
            beside,
        )  # fmt: skip


@dataclass(frozen=True)
class _Watcher:
    """Closes a stream and watches the slot and the log."""

    bench: Bench
    log: RunLog | None
    found: Legs

    @property
    def way(self) -> str | None:
        """What shows whether the server is idle."""
        return watched_by(self.found)[0]

    @property
    def path(self) -> str | None:
        """The endpoint that shows it."""
        offered = self.bench.behind_offers
        return {"/slots": offered.slots or "/slots", "/metrics": offered.metrics}.get(
            self.way or ""
        )

    def close(
        self,
        name: str,
        question: Question,
        *,
        close_at_ms: float | None = None,
        close_on_token: bool = False,
        looks: bool = False,
        prompt_tokens: int | None = None,
    ) -> _Close:
        """One close, watched until the slot is idle or the deadline has passed. `looks`: ask
        /slots once while the answer streams, to know that it shows this server's."""
        log_from = self.log.size() if self.log is not None else 0
        before: list[tuple[float, float, Reply]] = []

        def look() -> None:
            with contextlib.suppress(ServerError):
                before.append(self._ask())

        # Beside the reading, which must not wait for the answer.
        looker = threading.Thread(target=look, daemon=True)
        exchange = Exchange(
            self.bench.client,
            f"cancel/{name}",
            close_at_ms,
            close_on_token,
            looker.start if looks and self.path is not None else None,
        )
        recording = exchange.run(question.body())
        if looker.ident is not None:
            looker.join()
        timeline = derive(recording)
        in_prefill = timeline.first_token_ms is None
        polls = [_poll_of(exchange.closed_at, *seen) for seen in before]
        if self.path is not None:
            polls += self._poll(name, exchange.closed_at, in_prefill)
        elif self.way is not None and not timeline.done:
            polls += self._one_token(name, exchange.closed_at)
        self.bench.keep_text(f"cancel/{name}.polls.jsonl", dump_polls(polls))
        self.found[name] = recording
        part, span = None, None
        if self.log is not None:
            # An answer that came to its own end has no such line to wait for.
            ended = timeline.done or timeline.finish_reason is not None
            if not in_prefill and polls:
                ended = ended or polls[-1].answer.finished is True
            patience_s = 0.0 if ended else LOG_DEADLINE_S
            part, span = self._wait_for_line(self.log, log_from, patience_s, our_task(polls))
        close = _Close(name, recording, polls, part, span, prompt_tokens)
        close.case(self.found)  # raises where there was no answer to close
        return close

    def extra_close(self, name: str, *args: Any, **kwargs: Any) -> list[_Close]:
        """A close beside the contract's; where it fails, that is only noted."""
        try:
            return [self.close(name, *args, **kwargs)]
        except StreamError as error:
            self.bench.note("cancel", f"a close could not be measured: {error}")
            return []

    def _poll(self, name: str, closed: float, in_prefill: bool) -> list[Poll]:
        """Ask /slots until no slot is busy. Times count from `closed` (`sse.now()`).

        A gauge of /metrics stands still when its last request was taken away, until there is a
        next one (vLLM's does): so there is one, of a token, before it is believed, and then again,
        after 0.1 s, 0.2 s and so on up to every second. In prefill more seldom: it restarts the
        second after which llama.cpp looks.
        """
        pause_s = POLL_IN_PREFILL_S if in_prefill else POLL_IN_GENERATION_S
        deadline_s = IDLE_DEADLINE_IN_PREFILL_S if in_prefill else IDLE_DEADLINE_S
        polls: list[Poll] = []
        refusals = 0
        is_gauge = self.way == "/metrics"
        stir_s = STIR_IN_PREFILL_S if in_prefill else STIR_FIRST_S
        stirred = closed if in_prefill else 0.0
        if is_gauge and not in_prefill:
            pause_s = POLL_GAUGE_S
        if in_prefill:
            sse.pause(pause_s)
        size = 0
        while (
            sse.now() - closed < deadline_s
            and refusals < SLOTS_REFUSALS_AT_MOST
            and size < POLLED_AT_MOST
        ):
            if is_gauge and sse.now() - stirred > stir_s:
                _ask_one_token(self.bench, f"{asked.STIR}{name}")
                stirred = sse.now()
                stir_s = max(stir_s, min(2 * stir_s, STIR_S))
            try:
                poll = _poll_of(closed, *self._ask())
            except ServerError:
                refusals += 1
                sse.pause(pause_s)
                continue
            polls.append(poll)
            size += len(poll.body)
            if poll.busy is False:
                break
            sse.pause(pause_s)
        return polls

    def _one_token(self, name: str, closed: float) -> list[Poll]:
        """Ask for one token; its first text says when the server was free to make it."""
        begun = sse.now()
        timeline = derive(_ask_one_token(self.bench, f"{asked.AFTER_CLOSE}{name}"))
        if timeline.first_token_ms is None or timeline.error is not None:
            return []
        asked_ms = (begun - closed) * 1000.0
        return [
            Poll(round(asked_ms, 3), round(asked_ms + timeline.first_token_ms, 3), 200, ONE_TOKEN)
        ]

    def _ask(self) -> tuple[float, float, Reply]:
        """(asked, answered, answer) of /slots or /metrics, by `sse.now()`."""
        begun = sse.now()
        assert self.path is not None
        reply = self.bench.behind.get(self.path, timeout_s=IDLE_DEADLINE_S)
        return begun, sse.now(), reply

    def _wait_for_line(
        self, log: RunLog, log_from: int, patience_s: float, task: int | None
    ) -> tuple[bytes, LogSpan]:
        """The part of the log in which our task's cancel line should be; waits for the line
        a little, since logs come late."""
        deadline = sse.now() + patience_s
        while True:
            part = log.read(log_from)
            if cancel_line(part, task) is not None or sse.now() > deadline:
                return part, LogSpan(log_from, log_from + len(part))
            sse.pause(LOG_POLL_S)


def _poll_of(closed: float, asked: float, answered: float, reply: Reply) -> Poll:
    """With times in milliseconds from the close."""
    return Poll(
        round((asked - closed) * 1000.0, 3),
        round((answered - closed) * 1000.0, 3),
        reply.status,
        shown_answer(reply.status, reply.body),
    )
