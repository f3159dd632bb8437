"""What each step of the lab gives, derived from its recordings. Pure.

The same functions make a result live and from saved evidence, so that a run's numbers can be
derived again without a server. Made here, judged by `relations.py`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Protocol

from .artifacts import (
    Cache,
    CacheLeg,
    Cancel,
    Chunk,
    PrefillRow,
    Report,
    Sentence,
    Ttft,
    TtftRun,
)
from .decision import RATIO, ROUNDS_AT_MOST, Decision, decide_pairs
from .errors import ArtifactError, ConfigError, RateLimited, StreamError
from .plan import salt_of
from .recording import Recording, Reply
from .sentences import Rule
from .serverlog import cancel_line, tells_of_requests
from .slots import (
    ONE_TOKEN,
    Idle,
    Poll,
    answer_of,
    batches_after,
    looks,
    our_task,
    shows_others,
    slots_state,
    tokens_after,
)
from .speech import WORDS_PER_MINUTE, Speech, speech
from .sse import value_of
from .timeline import COLD_SHARE, Timeline, answer_limit, derive, first_sentence, stalled

Recordings = Mapping[str, Recording]
Phase = Literal["prefill", "generation", "ended"]
Stop = Literal["stopped", "ran on", "unknown"]
Proof = Literal["log", "slots", "tokens", "time"]

PROPS_KEYS = frozenset(("model_path", "total_slots", "default_generation_settings"))
SALTED = "salted-"
LONGER = "longer-"
# The changed suffix comes while the slot still holds the prompt that it shares its front with.
CACHE_LEGS = ("first", "second", "changed_suffix", "changed_prefix")
CACHE_COLD = ("first", "changed_prefix")
CACHE_LOOK = "slots"
SENTENCE_AGAIN = "again-"
CANCEL_NEXT = "next"
CANCEL_CONTROL = "control"
CANCEL_PREFILL = "prefill"
CANCEL_TOKENS = "prefill-tokens"
CANCEL_SLOTS = "slots"
CANCEL_METRICS = "metrics"
CANCEL_ONE_TOKEN = "one-token-"
CANCEL_TWO = ("two-at-once-long", "two-at-once-short")
CANCEL_CLOSE_AT = "close-at"
CANCEL_FIRST_PIECE = "first-piece"
ONE_TOKEN_RUNS = 5
# A server that was not seen for so long after a close was not seen to work on.
WATCHED_AT_LEAST_MS = 1000.0
REPLAY_SHARE = 0.1
REPLAY_OF_AT_LEAST_MS = 50.0
# A short answer that waited for this share of the long one before it was not made beside it.
WAITED_SHARE = 0.8
MEASURABLE_MS = 100.0
# A slot that is idle in less than this share of the time that the rest of the answer needs
# did not generate it; one that is idle only after the other share did, nearly.
STOPPED_SHARE = 0.5
RAN_ON_SHARE = 0.75
RAN_ON_TOKENS_AT_LEAST = 64
# A close is noticed at the next token; on a busy machine that was seen to take some hundred
# milliseconds, with llama-cpp-python, which looks once in a while, 650 to 1,250.
NOTICED_AT_LEAST_MS = 1300.0
BEAT_TOKENS_AT_LEAST = 3
PREFILL_DONE_SHARE = 0.95
PREFILL_NOTICE_MS = 1200.0
LATE_TOKENS = 16
LATE_SHARE = 0.25


def is_offered(reply: Reply) -> bool:
    """Whether an answer is that of an endpoint that the server has, healthy or not. These are no
    part of OpenAI's API: a gateway refuses what it does not know by 404, 403 or a redirect."""
    if reply.status != 200:
        return reply.status >= 500 and reply.status != 501
    body = reply.json()
    # LM Studio answers 200 and an error to a path that it does not know, others their web page.
    is_error = isinstance(body, dict) and list(body) == ["error"]
    return not is_error and not reply.body.lstrip().startswith(b"<")


def usable(recording: Recording) -> Timeline:
    """The timeline of a whole answer with text. Raises StreamError, ConfigError otherwise."""
    timeline = derive(recording)
    if recording.status == 400:
        _raise_if_too_long(recording)
    _raise_if_limited(timeline)
    if timeline.error is not None:
        raise StreamError(f"{recording.label}: {timeline.error}")
    if timeline.cut_short:
        raise StreamError(
            f"{recording.label}: the stream was cut short: {len(timeline.sent)} pieces, then "
            "the end, with neither a finish_reason nor [DONE]"
        )
    if not timeline.pieces:
        hint = " (it reasoned: let it generate more, or turn reasoning off, --llm-body)"
        raise StreamError(
            f"{recording.label}: the answer has no text (finish_reason "
            f"{timeline.finish_reason!r}, {timeline.tokens} tokens): no first text to time"
            f"{hint if timeline.reasoning is not None else ''}"
        )
    return timeline


def _raise_if_limited(timeline: Timeline) -> None:
    if timeline.limited is not None:
        raise RateLimited(timeline.limited)


def _raise_if_too_long(recording: Recording) -> None:
    try:
        error = value_of(recording.body)["error"]
        tokens, context = int(error["n_prompt_tokens"]), int(error["n_ctx"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return
    raise ConfigError(too_long_words(recording.label, tokens, context))


def too_long_words(what: str, tokens: int, context: int) -> str:
    """The message for a prompt that does not fit, the same wherever it was found."""
    return (
        f"{what}: the prompt of {tokens} tokens does not fit the server's context of {context}; "
        "start the server with a larger one (llama-server -c N), or give shorter documents "
        "(--llm-kb)"
    )


def _ms(value: float | None) -> float:
    assert value is not None  # `usable` saw a piece
    return value


def _counting(recordings: Recordings) -> tuple[Recordings, bool]:
    """(the legs that count, whether they are salted): those measured with a longer prompt (which
    has a salt, too), else with a salt, else to the letter."""
    for prefix in (LONGER, SALTED):
        found = {
            leg.removeprefix(prefix): recording
            for leg, recording in recordings.items()
            if leg.startswith(prefix)
        }
        # A longer prompt that did not fit ends its round.
        if found and (prefix != LONGER or is_usable(found.get(f"{CACHE_LEGS[-1]}-1"))):
            return found, True
    return recordings, False


def is_usable(recording: Recording | None) -> bool:
    """Whether there is a whole answer with text."""
    return recording is not None and _error(recording) is None


def _leg(recordings: Recordings, name: str) -> Recording:
    try:
        return recordings[name]
    except KeyError:
        raise ArtifactError(f"the evidence lacks the request {name!r}") from None


def _asked(recordings: Mapping[str, Recording], *, cache_prompt: bool) -> None:
    """Raise ArtifactError where a request is not the step's: a stream, with this cache_prompt
    unless the server refuses that field."""
    for leg, recording in recordings.items():
        request = recording.request
        found = {"stream": request.body.get("stream")}
        found["cache_prompt"] = request.body.get("cache_prompt", cache_prompt)
        wanted = {"stream": True, "cache_prompt": cache_prompt}
        differing = [key for key, value in wanted.items() if found[key] is not value]
        differing += ["method"] if request.method != "POST" else []
        if differing:
            raise ArtifactError(f"the request {leg!r} was not asked as the step asks: {differing}")


def _salt(recording: Recording, salted: bool) -> str | None:
    return salt_of(recording.request.body.get("messages", [])) if salted else None


@dataclass(frozen=True)
class ServerResult:
    """Step 1: the answers as received; `models` only where there is no /health."""

    health: Reply
    props: Reply
    models: Reply | None = None

    def files(self) -> list[tuple[str, Reply]]:
        """(name, answer) of those that are kept as files: a refusal, or an answer that is no JSON
        object, is in the evidence alone."""
        named = [("health.json", self.health), ("props.json", self.props)]
        return [
            (name, reply)
            for name, reply in named
            if reply.status == 200 and is_offered(reply) and isinstance(reply.json(), dict)
        ]


def server_result(recordings: Recordings) -> ServerResult:
    """From the recordings "health", "props", and "models" where it was asked for."""
    health, props = (_reply(_leg(recordings, name)) for name in ("health", "props"))
    return ServerResult(
        health, props, _reply(recordings["models"]) if "models" in recordings else None
    )


def _reply(recording: Recording) -> Reply:
    return Reply(recording.status or 0, recording.body, recording.end.t_ms)


@dataclass(frozen=True)
class SseResult:
    """Step 2: the raw bytes, the pieces, the timeline. From files alone the timeline has no
    times, and `timed` is false."""

    raw: bytes
    chunks: tuple[Chunk, ...]
    timeline: Timeline
    timed: bool = True


def sse_result(recordings: Recordings) -> SseResult:
    """From the last of the recordings "stream-1", "stream-2", …: those before it did not come
    as they were made."""
    recording = _leg(recordings, f"stream-{max(len(recordings), 1)}")
    timeline = derive(recording)
    chunks = tuple(Chunk(piece.t_ms, piece.text) for piece in timeline.sent)
    return SseResult(recording.body, chunks, timeline)


@dataclass(frozen=True)
class TtftResult:
    """Step 3. `timelines` are the runs; none where only the file is there."""

    ttft: Ttft
    timelines: tuple[Timeline, ...] = ()


def ttft_result(recordings: Recordings) -> TtftResult:
    """From the recordings "1", "2", …; "1.2" is the second attempt of the first run."""
    legs, salted = _counting(recordings)
    last = {name.partition(".")[0]: name for name in sorted(legs)}
    if not last:
        raise ArtifactError("the evidence has no request of the ttft step")
    ordered = [_leg(legs, last.get(str(n), str(n))) for n in range(1, len(last) + 1)]
    _asked(legs, cache_prompt=False)
    timelines = tuple(map(usable, ordered))
    runs = tuple(TtftRun(_ms(leg.ttft_ms), _ms(leg.total_ms), leg.tokens) for leg in timelines)
    ttft = Ttft(
        runs,
        statistics.median(run.ttft_ms for run in runs),
        statistics.median(run.total_ms for run in runs),
        _salt(ordered[0], salted),
    )
    return TtftResult(ttft, timelines)


@dataclass(frozen=True)
class PrefillResult:
    """Step 4. `legs` are the timelines by number of documents, one a round; empty where only
    the file is there."""

    rows: tuple[PrefillRow, ...]
    legs: Mapping[int, Sequence[Timeline]]

    @property
    def jitter_ms(self) -> float:
        """What two of its times can differ by for nothing."""
        return _jitter_ms(self.legs.values())

    @property
    def counted(self) -> bool:
        """Whether the server counts the tokens of every prompt."""
        return all(row.prompt_n is not None for row in self.rows)

    @property
    def stalled(self) -> tuple[int, int, int] | None:
        """The first two prompts that do not grow with their documents: the tokens of both, and
        how many characters were added (0 where only the file is there). None: they grow, or the
        server does not say how long they are."""
        for few, many in pairwise(self.rows):
            added = self._characters(many) - self._characters(few)
            found = stalled(
                (few.prompt_n, many.prompt_n), (self._tokens(few), self._tokens(many)), added
            )
            if found is not None:
                return found
        return None

    def _tokens(self, row: PrefillRow) -> int | None:
        """All of the prompt; where the server does not say, those to process: of a cold one that
        is the same."""
        totals = [leg.prompt_total for leg in self.legs.get(row.docs, ())]
        total = _median_count(totals) if totals else None
        return row.prompt_n if total is None else total

    def _characters(self, row: PrefillRow) -> int:
        return self.legs[row.docs][0].prompt_characters if self.legs else 0

    def prefilled_ms(self) -> list[float]:
        """When the prompts were done with, the medians of the rounds; of the file alone, TTFT."""
        if not self.legs:
            return [row.ttft_ms for row in self.rows]
        return [_median_prefilled_ms(self.legs[row.docs]) for row in self.rows]

    @property
    def in_order(self) -> bool:
        """Whether prefill took longer with every more documents, by more than the jitter."""
        return all(b - a > self.jitter_ms for a, b in pairwise(self.prefilled_ms()))

    def ratios(self) -> list[float]:
        """Prefill with the most documents over prefill with the fewest, by round."""
        return _ratios(self.legs[max(self.legs)], self.legs[min(self.legs)]) if self.legs else []

    def decided(self) -> Decision:
        """Whether times alone show that prefill took longer with the most documents."""
        return _decided(self.legs[max(self.legs)], self.legs[min(self.legs)])


def prefill_result(recordings: Recordings) -> PrefillResult:
    """From the recordings "0docs-1", "4docs-1", …, the number behind the dash the round."""
    legs, salted = _counting(recordings)
    rounds: dict[int, list[Timeline]] = {}
    for name, recording in legs.items():
        match = re.fullmatch(r"(\d+)docs-\d+", name)
        if match is not None:
            rounds.setdefault(int(match.group(1)), []).append(usable(recording))
    if len(rounds) < 2:
        raise ArtifactError("the evidence has fewer than two prompts of the prefill step")
    _asked(legs, cache_prompt=False)
    salt = _salt(_leg(legs, f"{min(rounds)}docs-1"), salted)
    rows = tuple(
        PrefillRow(
            docs,
            _median_count([leg.prompt_n for leg in rounds[docs]]),
            _median([leg.prompt_ms for leg in rounds[docs]]),
            statistics.median(_ms(leg.ttft_ms) for leg in rounds[docs]),
            salt,
        )
        for docs in sorted(rounds)
    )
    return PrefillResult(rows, rounds)


def _jitter_ms(legs: Iterable[Sequence[Timeline]]) -> float:
    return max((leg.jitter_ms for rounds in legs for leg in rounds), default=0.0)


def _prefilled_ms(legs: Sequence[Timeline]) -> list[float]:
    """The times that prefill took, by round: reasoning, which comes before the first text, is as
    long as it likes."""
    return [max(_ms(leg.prefilled_ms), 0.001) for leg in legs]


def _ratios(slow: Sequence[Timeline], fast: Sequence[Timeline]) -> list[float]:
    return [a / b for a, b in zip(_prefilled_ms(slow), _prefilled_ms(fast))]


def _decided(slow: Sequence[Timeline], fast: Sequence[Timeline]) -> Decision:
    return decide_pairs(_prefilled_ms(slow), _prefilled_ms(fast))


def _median_prefilled_ms(rounds: Sequence[Timeline]) -> float:
    return statistics.median(_ms(leg.prefilled_ms) for leg in rounds)


def _median_count(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return statistics.median_low(known) if len(known) == len(values) else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None


@dataclass(frozen=True)
class CacheResult:
    """Step 5. `legs` are the timelines by name, one a round, `clearing` those of the short
    requests before; empty where only the file is there. `others`: while nothing was asked here,
    the server worked on requests. `why`: of the file alone, the Cause of a miss, as its
    numbers tell it."""

    cache: Cache
    legs: Mapping[str, Sequence[Timeline]]
    clearing: Sequence[Timeline] = ()
    others: bool = False
    why: Any = None

    @property
    def sometimes(self) -> bool:
        """Whether the counts show a hit in some rounds and none in others."""
        return len({leg.cold for leg in self.legs.get("second", ())}) > 1

    @property
    def jitter_ms(self) -> float:
        """What two of its times can differ by for nothing."""
        return _jitter_ms(self.legs.values())

    def prefilled_ms(self, leg: str) -> float:
        """When the prompt of a leg was done with, the median of the rounds; of the file alone,
        TTFT."""
        if not self.legs:
            return float(getattr(self.cache, leg).ttft_ms)
        return _median_prefilled_ms(self.legs[leg])

    @property
    def missed(self) -> tuple[Timeline, Timeline]:
        """First and second leg of the round that tells most of a miss: one in which the same
        prompt had another length the second time (where it is rewritten, it may have the same by
        chance), else the last."""
        pairs = list(zip(self.legs["first"], self.legs["second"]))
        differing = (pair for pair in pairs if len({leg.prompt_total for leg in pair} - {None}) > 1)
        return next(differing, pairs[-1])

    @property
    def elsewhere(self) -> bool:
        """Whether the prompt that follows the second, with another end, was reused each time."""
        rounds = self.legs.get("changed_suffix", ())
        return bool(rounds) and all(leg.cold is False for leg in rounds)

    def hits_by_time(self) -> bool | None:
        """Whether the times alone show a cached second leg, as they never do of a dead cache;
        None: they may, after further rounds."""
        decided = set(self.decided().values())
        never = any(max(self.ratios(name)) < RATIO for name in CACHE_COLD)
        if never or "broken" in decided or len(self.legs["second"]) >= ROUNDS_AT_MOST:
            return decided == {"holds"}
        return True if decided == {"holds"} else None

    @property
    def replayed(self) -> bool:
        """Whether every second answer is the first one's text, and came in a tenth of the time
        that it takes to generate it, or less."""
        pairs = list(zip(self.legs.get("first", ()), self.legs.get("second", ())))
        return bool(pairs) and all(_is_replay(made, again) for made, again in pairs)

    def ratios(self, cold: str) -> list[float]:
        """Prefill of the leg `cold` over that of the cached one, by round."""
        return _ratios(self.legs[cold], self.legs["second"]) if self.legs else []

    def decided(self) -> dict[str, Decision]:
        """Whether times alone show that the cached leg was the faster, by cold leg. Where it took
        as long as one of them, and the noise hides whether as long as the other, it was not
        cached: both are the same prompt, processed."""
        found = {name: _decided(self.legs[name], self.legs["second"]) for name in CACHE_COLD}
        hidden = [name for name, decision in found.items() if decision is None]
        near = all(statistics.median(self.ratios(name)) < RATIO for name in hidden)
        if "broken" in found.values() and "holds" not in found.values() and near:
            return dict.fromkeys(found, "broken")
        return found

    def visible(self) -> list[float]:
        """Prefill of the cold long prompt over that of the short one before, by round."""
        return _ratios(self.legs["first"], self.clearing) if self.legs else []

    def is_visible(self) -> bool:
        """Whether times alone show prefill at all: the long prompt against the short one."""
        return _decided(self.legs["first"], self.clearing) == "holds"

    @property
    def counted(self) -> bool:
        """Whether the server counts all that is compared."""
        legs = (self.cache.first, self.cache.second, self.cache.changed_prefix)
        return all(leg.prompt_n is not None for leg in legs)

    def reused(self, leg: str) -> int | None:
        """Prompt tokens that a leg took from the cache, the median of its rounds; None where it
        is not told."""
        rounds = self.legs.get(leg, ())
        return _median_count([one.cache_n for one in rounds]) if rounds else None

    def hits(self, cold: str) -> bool:
        """Whether the counts show that the second leg was cached and the leg `cold` was not: a
        front that all prompts share, the template's, is no hit."""
        second, other = self.cache.second.prompt_n, getattr(self.cache, cold).prompt_n
        if second is None or other is None or second >= other:
            return False
        if not self.legs:  # a directory made by hand does not tell the whole of a prompt
            return bool(second < COLD_SHARE * other)
        return not any(leg.cold for leg in self.legs.get("second", ()))


def _is_replay(made: Timeline, again: Timeline) -> bool:
    spans = [leg.pieces[-1].t_ms - _ms(leg.ttft_ms) for leg in (made, again)]
    return (
        made.text == again.text
        and spans[0] > max(REPLAY_OF_AT_LEAST_MS, made.jitter_ms)
        and spans[1] < REPLAY_SHARE * spans[0]
    )


def cache_result(recordings: Recordings) -> CacheResult:
    """From the recordings "first-1", "second-1", …, the number behind the dash the round."""
    legs, salted = _counting(recordings)
    rounds = len([name for name in legs if name.startswith("first-")])
    if not rounds:
        raise ArtifactError("the evidence has no request of the cache step")
    found = {
        name: [_leg(legs, f"{name}-{number}") for number in range(1, rounds + 1)]
        for name in CACHE_LEGS
    }
    _asked(
        {f"{name}-{i}": one for name in CACHE_LEGS for i, one in enumerate(found[name], 1)},
        cache_prompt=True,
    )
    timelines = {name: list(map(usable, found[name])) for name in CACHE_LEGS}
    cache = Cache(
        **{
            name: CacheLeg(
                _median_count([leg.prompt_n for leg in timelines[name]]),
                statistics.median(_ms(leg.ttft_ms) for leg in timelines[name]),
            )
            for name in CACHE_LEGS
        },
        salt=_salt(found["first"][0], salted),
    )
    clearing = [usable(_leg(legs, f"clearing-{number}")) for number in range(1, rounds + 1)]
    return CacheResult(cache, timelines, clearing, _others(recordings))


def _others(recordings: Recordings) -> bool:
    """Whether the answers of /slots "slots-1", "slots-2", …, between which nothing was asked here,
    show a task after another."""
    looks = [r for name, r in recordings.items() if name.startswith(f"{CACHE_LOOK}-")]
    tasks = {answer_of(look.status or 0, look.body).task for look in looks} - {None}
    return len(tasks) > 1


@dataclass(frozen=True)
class SentenceResult:
    """Step 6. `timeline` and `speech` are None where only the file is there; `rounds` then has
    nothing, else `sentence` and what further answers gave."""

    sentence: Sentence
    timeline: Timeline | None = None
    speech: Speech | None = None
    rounds: tuple[Sentence, ...] = ()


def sentence_result(
    recordings: Recordings, rule: Rule = "plain", words_per_minute: float = WORDS_PER_MINUTE
) -> SentenceResult:
    """From the last of the recordings "stream-1", "stream-2", … (see `sse_result`), and the
    further rounds "again-2", "again-3", …, of which those that failed are left out."""
    again = [leg for name, leg in recordings.items() if name.startswith(SENTENCE_AGAIN)]
    timeline = usable(_leg(recordings, f"stream-{max(len(recordings) - len(again), 1)}"))
    sentence = _sentence(timeline, rule)
    return SentenceResult(
        sentence,
        timeline,
        speech(timeline.pieces, rule, words_per_minute),
        (sentence, *(_sentence(derive(leg), rule) for leg in again if is_usable(leg))),
    )


def _sentence(timeline: Timeline, rule: Rule) -> Sentence:
    sentence, sentence_ms = first_sentence(timeline.pieces, rule)
    return Sentence(
        _ms(timeline.ttft_ms), sentence_ms, _ms(timeline.total_ms), sentence, timeline.text
    )


@dataclass(frozen=True)
class LogSpan:
    """The bytes of the run's log that were written between a request and its idle slot."""

    log_from: int
    log_to: int


@dataclass(frozen=True)
class CancelCase:
    """One close. `seen_busy`: whether `/slots` showed the stream while it was under way; None:
    not asked. `phase` is what the close fell into: "ended" if the answer was complete by
    then. `stop` says whether the generation stopped, or ran on to its own end; `proof` what shows
    it: the log, what `/slots` says of the answer, the tokens of the prompt that it processed, or
    nothing but the time (None: it is unknown). `idle_after_ms`
    counts from the close, None: not seen idle, or no `/slots`; the slot was last seen busy
    `resolution_ms` before that. `log_line` names our task. `tokens_after_close` is what was
    generated after the close; in prefill `prompt_processed` of `prompt_tokens` were processed
    when the slot went idle; each None where the server does not say. `others`: meanwhile `/slots`
    showed requests of others; `log_talks`: this part of the log tells of requests at all. `late`:
    by the server's own beat it was idle long after a close that arrives. `shown_busy`: what shows
    that the server is idle has shown it busy, too, before or after the close. Of the pieces of
    text, `received_tokens`, reasoning is none; `tokens_before_close` are those of any channel."""

    name: str
    phase: Phase
    stop: Stop
    proof: Proof | None
    seen_busy: bool | None
    max_tokens: int
    received_tokens: int
    closed_at_ms: float
    idle_after_ms: float | None
    resolution_ms: float | None
    waited_ms: float | None
    tokens_after_close: int | None
    prompt_processed: int | None
    prompt_tokens: int | None
    log_line: str | None
    log_span: LogSpan | None
    others: bool = False
    log_talks: bool = False
    late: bool = False
    shown_busy: bool = False
    tokens_before_close: int = 0


@dataclass(frozen=True)
class CancelResult:
    """Step 7. `watched_by` is what showed whether the server is idle: "/slots", "/metrics", or a
    "1-token request"; None: nothing did, and `unwatched` says why.
    `log_source` is None where there is no log. `next_error` is what went wrong with the next
    request, None: it was answered. `cases[0]` is the contract's; where only the file is there
    are none, and `log_line` is any cancel line of the log."""

    cancel: Cancel
    cases: tuple[CancelCase, ...]
    watched_by: str | None
    unwatched: str | None
    log_source: str | None
    log_line: str | None
    next_error: str | None


def cancel_case(
    name: str,
    recording: Recording,
    polls: Sequence[Poll],
    log: bytes | None,
    log_span: LogSpan | None,
    prompt_tokens: int | None = None,
    beside: Recordings | None = None,
) -> CancelCase:
    """One close, from the stream's recording, the answers of `/slots` (or what stands for them),
    and the part of the log that `log_span` names. `prompt_tokens` is the server's own count of
    the prompt; `beside` are the step's recordings from before. Raises StreamError if there was
    no answer to close."""
    beside = beside or {}
    one_token_ms = _one_token_ms(beside)
    timeline = derive(recording)
    _raise_if_limited(timeline)
    if timeline.error is not None:
        raise StreamError(f"{recording.label}: {timeline.error}")
    polls = [
        replace(poll, answered_ms=max(poll.answered_ms - one_token_ms, poll.asked_ms))
        if poll.body == ONE_TOKEN
        else poll
        for poll in polls
    ]
    before = looks(polls)
    shown_busy = any(poll.busy or poll.body == ONE_TOKEN for poll in polls)
    polls = [poll for poll in polls if poll.asked_ms >= 0]
    idle = slots_state(polls)
    max_tokens = answer_limit(recording.request.body)
    line = cancel_line(log, our_task(before)) if log is not None else None
    phase = _phase(timeline)
    stop: Stop = "unknown"
    proof: Proof | None = None
    processed = None
    late = False
    if phase == "prefill" and idle.idle_after_ms is not None:
        processed = polls[-1].answer.tokens
    if phase == "prefill" and _generated_all(polls, _known_prompt(recording, beside), max_tokens):
        # Nothing had come, since it was held back: the server was long past prefill.
        phase, stop, proof = "generation", "ran on", "slots"
    elif phase == "prefill" and processed is not None and prompt_tokens is not None:
        stop, proof = _prefill_stop(polls, processed, prompt_tokens), "tokens"
    elif phase != "ended":
        beat_ms = _beat_ms(timeline, beside)
        phase, stop, proof = _stop(phase, timeline, polls, max_tokens, beat_ms)
        speed = _speed(idle, polls, max_tokens - len(timeline.token_ms), beat_ms)
        noticed = idle.idle_after_ms is not None and idle.idle_after_ms <= NOTICED_AT_LEAST_MS
        late = phase == "generation" and speed in ("late", "the rest") and not noticed
        if stop == "stopped" and proof == "time" and not _is_controlled(beside):
            stop = "unknown"  # it may have become faster since
        # (In prefill the rest of the prompt takes its time, too.)
        ran_all = phase == "generation" and speed == "the rest"
        if line is not None and stop != "ran on" and not ran_all:
            stop, proof = "stopped", "log"
    return CancelCase(
        name=name,
        phase=phase,
        stop=stop,
        proof=proof if stop != "unknown" else None,
        seen_busy=before[0].busy if before else None,
        max_tokens=max_tokens,
        received_tokens=len(timeline.sent),
        closed_at_ms=recording.end.t_ms,
        idle_after_ms=idle.idle_after_ms,
        resolution_ms=idle.resolution_ms,
        waited_ms=_last_told_ms(polls),
        tokens_after_close=tokens_after(polls) if phase == "generation" else None,
        prompt_processed=processed,
        prompt_tokens=prompt_tokens if phase == "prefill" else None,
        log_line=line,
        log_span=log_span,
        others=shows_others([*before, *polls])
        # Ours cannot have generated so many.
        or (phase == "generation" and (tokens_after(polls) or 0) > max_tokens),
        log_talks=log is not None and tells_of_requests(log),
        late=late,
        shown_busy=shown_busy,
        tokens_before_close=len(timeline.token_ms),
    )


def _known_prompt(recording: Recording, beside: Recordings) -> int | None:
    """The tokens of a request's prompt, as counted when the same was asked beside it."""
    messages = recording.request.body.get("messages")
    same = (one for one in beside.values() if one.request.body.get("messages") == messages)
    totals = (derive(one).prompt_total for one in same)
    return next((total for total in totals if total is not None), None)


def _generated_all(polls: Sequence[Poll], prompt_tokens: int | None, max_tokens: int) -> bool:
    """Whether a slot that was busy after the close held all of the prompt and of the longest
    answer when it was idle: that answer came to its own end."""
    if prompt_tokens is None or not polls or not polls[0].busy or polls[-1].busy is not False:
        return False
    held = polls[-1].answer.tokens
    # The last token is not held: nothing was to follow.
    return held is not None and held >= prompt_tokens + max_tokens - 1


def _phase(timeline: Timeline) -> Phase:
    """What a close fell into; reasoning is generation, too."""
    if timeline.done or timeline.finish_reason or timeline.closed_at_ms is None:
        return "ended"
    return "prefill" if timeline.first_token_ms is None else "generation"


def tokens_in_time(rest: int) -> float:
    """How many of the `rest` tokens may come after a close that arrived: a server notices at
    the next one, and what is on its way is not its fault."""
    return max(LATE_TOKENS, LATE_SHARE * rest)


def _stop(
    phase: Phase,
    timeline: Timeline,
    polls: Sequence[Poll],
    max_tokens: int,
    beat_ms: float | None,
) -> tuple[Phase, Stop, Proof]:
    """Whether the generation stopped, by the answers of `/slots` alone (or what stands for
    them)."""
    rest, idle = max_tokens - len(timeline.token_ms), slots_state(polls)
    idle_ms = idle.idle_after_ms
    speed = _speed(idle, polls, rest, beat_ms)
    finished = polls[-1].answer.finished if polls else None
    # (In prefill the slot still says what its task before had come to.)
    if phase == "prefill" or finished is None:
        # In prefill the time goes elsewhere.
        if speed == "the rest" and phase == "generation":
            return phase, "ran on", "time"
        return phase, "stopped" if speed == "soon" else "unknown", "time"
    if not finished and idle_ms is not None:
        return phase, "stopped", "slots"
    if not finished:  # and at work, as far as it was told
        watched = (_last_told_ms(polls) or 0.0) >= WATCHED_AT_LEAST_MS
        return phase, "ran on" if watched else "unknown", "slots"
    # It came to its own end: long after the close, or just then, which proves nothing.
    after = tokens_after(polls)
    ran_on = polls[0].busy and (
        after > tokens_in_time(rest) if after is not None else speed in ("late", "the rest")
    )
    return ("generation", "ran on", "slots") if ran_on else ("ended", "unknown", "slots")


def _last_told_ms(polls: Sequence[Poll]) -> float | None:
    """When it was last said whether a slot is busy, from the close."""
    return next((poll.answered_ms for poll in reversed(polls) if poll.busy is not None), None)


def _prefill_stop(polls: Sequence[Poll], processed: int, prompt_tokens: int) -> Stop:
    """Whether a close in prefill stopped it. One that ran through counts as "ran on" only where
    `/slots` shows two ends of a batch after the server must have looked at its client, which it
    does once in a second or so: at the first of the two it could have stopped."""
    if processed < PREFILL_DONE_SHARE * prompt_tokens:
        return "stopped"
    return "ran on" if batches_after(polls, PREFILL_NOTICE_MS) >= 2 else "unknown"


Speed = Literal["soon", "late", "the rest"]


def _speed(idle: Idle, polls: Sequence[Poll], rest: int, beat_ms: float | None) -> Speed | None:
    """How soon after the close the server was idle, by its own beat: soon, later than a close
    that arrives can be noticed, or as late as the rest of the answer takes; None: it was not seen,
    the beat is not known, or it lies between."""
    if idle.idle_after_ms is None or beat_ms is None or rest <= 0:
        return None
    # A request for one token waits for its turn: its answer is the moment itself.
    waited = any(poll.body == ONE_TOKEN for poll in polls)
    earliest_ms = idle.idle_after_ms - (0.0 if waited else idle.resolution_ms or 0.0)
    rest_ms = rest * beat_ms
    soon_ms = max(tokens_in_time(rest) * beat_ms, NOTICED_AT_LEAST_MS)
    if rest >= RAN_ON_TOKENS_AT_LEAST and earliest_ms > RAN_ON_SHARE * rest_ms:
        return "the rest"
    if earliest_ms > soon_ms:
        return "late"
    return "soon" if idle.idle_after_ms < STOPPED_SHARE * rest_ms else None


def _beat_ms(timeline: Timeline, beside: Recordings) -> float | None:
    """The time between two tokens of any channel: of this answer, and of those asked for before
    and after it, the shortest. What slowed the server before a close may have ended with it."""
    names = (CANCEL_TWO[0], CANCEL_CLOSE_AT, CANCEL_NEXT, CANCEL_CONTROL)
    others = (derive(beside[name]) for name in names if name in beside)
    beats = [beat_of(one) for one in (timeline, *others)]
    return min((ms for ms in beats if ms is not None), default=None)


def beat_of(timeline: Timeline) -> float | None:
    """The time between two tokens of an answer; None where there are too few to tell, or most came
    together: their moments are those of a reader or a buffer."""
    moments = timeline.token_ms
    if len(moments) < BEAT_TOKENS_AT_LEAST or 2 * len(set(moments)) < len(moments):
        return None
    return (moments[-1] - moments[0]) / (len(moments) - 1)


def is_soon_by_time(case: CancelCase) -> bool:
    """Whether nothing but the time says what a close did, and it took no longer than a server may
    take to notice one: where the rest of the answer is as short, that proves nothing."""
    idle_ms = case.idle_after_ms
    return case.proof == "time" and idle_ms is not None and idle_ms <= NOTICED_AT_LEAST_MS


def _is_controlled(beside: Recordings) -> bool:
    """Whether the beat was measured again after the closes."""
    controls = (beside[name] for name in (CANCEL_NEXT, CANCEL_CONTROL) if name in beside)
    return any(beat_of(derive(one)) is not None for one in controls)


def cancel_result(
    recordings: Recordings, cases: Sequence[CancelCase], log_source: str | None
) -> CancelResult:
    """From the closes in the order in which they were made, and the recordings beside them (see
    `watched_by`, and "next")."""
    by_name = {case.name: case for case in cases}
    if CANCEL_CLOSE_AT not in by_name:
        raise ArtifactError(f"the evidence lacks the request {CANCEL_CLOSE_AT!r}")
    contract = by_name[CANCEL_CLOSE_AT]
    if contract.phase == "ended":
        # An answer that had ended proves nothing; one closed in time does, in either phase.
        in_time = [case for case in cases if case.phase != "ended"]
        in_time.sort(key=lambda case: (case.stop == "unknown", case.phase == "prefill"))
        contract = in_time[0] if in_time else contract
    watched, unwatched = watched_by(recordings)
    _raise_if_limited(derive(_leg(recordings, CANCEL_NEXT)))
    return CancelResult(
        cancel=Cancel(
            contract.max_tokens,
            contract.received_tokens,
            contract.closed_at_ms,
            contract.idle_after_ms,
        ),
        cases=(contract, *(case for case in cases if case is not contract)),
        watched_by=watched,
        unwatched=unwatched,
        log_source=log_source,
        log_line=contract.log_line,
        next_error=_unanswered(_leg(recordings, CANCEL_NEXT)),
    )


def is_props(reply: Reply) -> bool:
    """Whether an answer, good or bad, is that of llama.cpp's /props."""
    if reply.status != 200:
        return is_offered(reply)
    body = reply.json()
    return isinstance(body, dict) and not PROPS_KEYS.isdisjoint(body)


def listed_models(reply: Reply) -> list[str] | None:
    """The names in a list of models: OpenAI's `data`, Ollama's `models`, Together's bare array;
    None: it is no such list."""
    body = reply.json()
    if reply.status != 200:
        return None
    if isinstance(body, dict) and isinstance(body.get("data"), list):
        return list(map(_model_name, filter(_model_name, body["data"])))
    rows = body.get("models") if isinstance(body, dict) else body
    if not isinstance(rows, list) or not rows or not all(map(_model_name, rows)):
        return None
    return list(map(_model_name, rows))


def _model_name(row: Any) -> str:
    """ "" where it has none."""
    names = [row.get(key) for key in ("id", "model", "name")] if isinstance(row, dict) else []
    return next((name for name in names if isinstance(name, str) and name), "")


def lists_models(reply: Reply) -> bool:
    """Whether an answer is a list of models."""
    return listed_models(reply) is not None


def is_close(name: str) -> bool:
    """Whether a recording of the cancel step is a close."""
    return name in (CANCEL_CLOSE_AT, CANCEL_PREFILL) or name.startswith(CANCEL_FIRST_PIECE)


def watched_by(recordings: Recordings) -> tuple[str | None, str | None]:
    """(what shows whether the server is idle, why nothing does), one of them None.

    "slots" and "metrics" are answers of these endpoints before the first close; "one-token-1", …
    are requests for one token; the two of `CANCEL_TWO` were asked for at once.
    """
    slots = _reply(_leg(recordings, CANCEL_SLOTS))
    first = answer_of(slots.status, slots.body)
    found, answer = "/slots", first
    if first.busy is None and CANCEL_METRICS in recordings:
        metrics = _reply(recordings[CANCEL_METRICS])
        found, answer = "/metrics", answer_of(metrics.status, metrics.body)
    if answer.busy is not None:
        busy = f"{found} says that the server is busy with requests of others"
        return (None, busy) if answer.busy else (found, None)
    several = serves_several(recordings)
    if several is not None:
        why = "it has no gauge of running requests in /metrics"
        return None, f"{first.missing}; {why}; {several}"
    return "1-token request", None


def serves_several(recordings: Recordings) -> str | None:
    """Why a request cannot tell whether the server is idle; None: it can, since the server works
    on one at a time. The short one was asked for when the long one had its first piece."""
    if any(name not in recordings for name in CANCEL_TWO):
        return "no two requests could be made at once"
    long, short = (derive(recordings[name]) for name in CANCEL_TWO)
    for timeline in (short, long):
        if timeline.error is not None or not timeline.pieces:
            return f"two requests at once failed: {timeline.error or 'no text'}"
    if long.finish_reason is None:
        return "a second request ends the first"
    span_ms = long.pieces[-1].t_ms - long.pieces[0].t_ms
    if span_ms < MEASURABLE_MS:
        return "its answers are over too soon to tell whether it works on two at once"
    if _ms(short.ttft_ms) < WAITED_SHARE * span_ms:
        return "it answers two requests at once"
    return None


def _one_token_ms(recordings: Recordings) -> float:
    """What a 1-token request takes while the server is idle: the median; 0 where none was made."""
    times = [
        derive(recording).ttft_ms
        for name, recording in recordings.items()
        if name.startswith(CANCEL_ONE_TOKEN)
    ]
    known = [time_ms for time_ms in times if time_ms is not None]
    return statistics.median(known) if known else 0.0


def counted_tokens(recording: Recording | None) -> int | None:
    """The tokens in a recorded answer of `/tokenize`; None where there is none."""
    return token_count(_reply(recording)) if recording is not None else None


def token_count(reply: Reply) -> int | None:
    """The tokens in an answer of `/tokenize`; None where it is none."""
    body = reply.json()
    tokens = body.get("tokens") if isinstance(body, dict) else None
    return len(tokens) if isinstance(tokens, list) else None


def _error(recording: Recording) -> str | None:
    try:
        usable(recording)
    except (StreamError, ConfigError) as error:
        return str(error)
    return None


def _unanswered(recording: Recording) -> str | None:
    """Why a request was not answered; None: it was. One whose few tokens were all spent on
    reasoning was."""
    timeline = derive(recording)
    answered = timeline.error is None and not timeline.cut_short and timeline.token_ms
    return None if answered else _error(recording)


@dataclass(frozen=True)
class ReportResult:
    """Step 8: the file as it is, and what its sources say."""

    report: Report
    expected: Report


UPSTREAM = "upstream-"
CAPABILITIES = "capabilities"  # the step of the look at the server, which is no test


class Lab(Protocol):
    """The eight steps, whether measured or graded: each gives its result; `known(step)` gives one
    that is there already, and measures nothing; None where there is none. `upstream(step)` gives
    that of the same step at the server behind, None where there is none, `run_of(step)` the run
    that measured it, None where nothing says so. The others raise LatencyError where a step could
    not be measured."""

    def server(self) -> ServerResult: ...

    def sse(self) -> SseResult: ...
    def ttft(self) -> TtftResult: ...
    def prefill(self) -> PrefillResult: ...
    def cache(self) -> CacheResult: ...
    def sentence(self) -> SentenceResult: ...
    def cancel(self) -> CancelResult: ...
    def report(self) -> ReportResult: ...
    def known(self, step: str) -> Any | None: ...
    def upstream(self, step: str) -> Any | None: ...
    def run_of(self, step: str) -> str | None: ...
