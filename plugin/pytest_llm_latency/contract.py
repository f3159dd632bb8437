"""What a directory that was made by hand proves, from its files against each other. Pure.

Each check names the key, what was found, what was expected and why. A right directory of any
machine must pass: the tolerances are wide, and docs/evidence.md has them as a table.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .artifacts import Cache, Cancel, Chunk, PrefillRow, Report, Sentence, Ttft, report_of
from .causes import Cause
from .relations import Verdict, count, milliseconds
from .timeline import COLD_SHARE, Timeline

FILES_OF: Mapping[str, tuple[str, ...]] = {
    "server": ("health.json", "props.json"),
    "sse": ("sse.py", "sse_raw.txt", "chunks.jsonl"),
    "ttft": ("ttft.json",),
    "prefill": ("prefill.json",),
    "cache": ("cache.json",),
    "sentence": ("sentence.json",),
    "cancel": ("cancel.json",),
    "report": ("report.json",),
}
# Single times of the same request were seen to differ by 20 on a busy machine.
SAME_QUESTION_FACTOR = 30.0
SECONDS = (300.0, 3000.0)  # a ratio between two times that says that one of them is in seconds
CLOCK_SHARE = 0.95  # a client's time may be so much below the server's own
CLOSE_AT_MS = (450.0, 5000.0)
FAST_ANSWER_MS = 3000.0  # one that may have ended before the close at 500 ms
LAB_TOKENS, CANCEL_TOKENS = 64, 256
PROMPT_TOKENS_AT_MOST = 1024  # of the cancel step's question, with any template
CHARACTERS_OF_SEVERAL_PIECES = 24
_STAMP = re.compile(rb"^(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) ")
_TASK = re.compile(rb'(?:task |id_task"? ?[=:] ?)(\d+)')
_HELD = re.compile(rb"n_tokens = (\d+)")


@dataclass(frozen=True)
class Given:
    """The files of a directory, parsed; None: it is not there, or is no such file. `stream` is
    what sse_raw.txt says, without times."""

    chunks: tuple[Chunk, ...] | None = None
    stream: Timeline | None = None
    ttft: Ttft | None = None
    prefill: tuple[PrefillRow, ...] | None = None
    cache: Cache | None = None
    sentence: Sentence | None = None
    cancel: Cancel | None = None
    report: Report | None = None
    log: bytes | None = None

    @property
    def longest(self) -> PrefillRow | None:
        """The prefill row that has the cache step's very prompt."""
        return self.prefill[-1] if self.prefill else None


Problem = tuple[str, str] | None  # (cause code, what was found, expected and why)


def checks(step: str, given: Given) -> list[Verdict]:
    """The verdicts that a step's files allow beside its relations."""
    return [_verdict(step, relation, find(given)) for relation, find in _CHECKS.get(step, ())]


def _verdict(step: str, relation: str, problem: Problem) -> Verdict:
    if problem is None:
        return Verdict(step, relation, "holds", "they agree")
    code, words = problem
    return Verdict(step, relation, "broken", words, Cause(code, words))


def _in_seconds(where: str, found_ms: float, about_ms: float, because: str) -> Problem:
    """Whether a time is a thousandth of what it must be."""
    if found_ms <= 0 or not SECONDS[0] <= about_ms / found_ms <= SECONDS[1]:
        return None
    return (
        "wrong-unit",
        f"{where}: found {found_ms:.6g}, expected about {about_ms:.6g}, because {because}: are "
        "these seconds? All times are milliseconds",
    )


# --- sse ---


def _stamps(given: Given) -> Problem:
    chunks = given.chunks or ()
    times = [chunk.t_ms for chunk in chunks]
    if len(times) > 3 and len(set(times)) == 1:
        return (
            "stamped-late",
            f"chunks.jsonl: all {len(times)} t_ms are {times[0]:.6g}; expected the moment of each "
            "piece, because pieces come one after the other: stamp each line when it is read",
        )
    if times and times[0] == 0:
        return (
            "wrong-start",
            "chunks.jsonl: the first t_ms is 0, expected the time from the request to the first "
            "piece: the clock starts just before the request is sent, not at the first piece",
        )
    return None


def _server_time_ms(stream: Timeline | None) -> float | None:
    """How long the server itself worked on the answer in sse_raw.txt."""
    if stream is None or stream.prompt_ms is None or stream.predicted_ms is None:
        return None
    return stream.prompt_ms + stream.predicted_ms


def _stream_unit(given: Given) -> Problem:
    server_ms, chunks = _server_time_ms(given.stream), given.chunks
    if server_ms is None or not chunks:
        return None
    last_ms, because = chunks[-1].t_ms, "the timings in sse_raw.txt say prompt_ms + predicted_ms"
    problem = _in_seconds("chunks.jsonl: the last t_ms", last_ms, server_ms, because)
    if problem is None and last_ms < server_ms / 2:
        return (
            "before-the-server",
            f"chunks.jsonl: the last t_ms is {last_ms:.6g}, expected at least {server_ms / 2:.6g}, "
            f"because {because} = {server_ms:.6g}: the answer cannot be complete before it is made",
        )
    return problem


# --- ttft ---


def _ttft_unit(given: Given) -> Problem:
    """The question of the sse step, asked again."""
    if given.ttft is None:
        return None
    server_ms = _server_time_ms(given.stream)
    total_ms = given.ttft.total_p50
    if server_ms is not None:
        because = "sse_raw.txt has so many of the same question (prompt_ms + predicted_ms)"
        problem = _in_seconds("ttft.json: total_p50", total_ms, server_ms, because)
        if problem is not None:
            return problem
    if not given.chunks:
        return None
    first_ms = given.chunks[0].t_ms
    if given.ttft.ttft_p50 <= first_ms < SECONDS[0] * given.ttft.ttft_p50:
        return None  # the very first request may wait, for a model that is loaded, say
    return _same_question(
        "ttft.json: ttft_p50",
        given.ttft.ttft_p50,
        "chunks.jsonl's first t_ms",
        first_ms,
    )


def _same_question(where: str, found_ms: float, other: str, about_ms: float) -> Problem:
    """Two times to first text of one question."""
    factor = max(found_ms, about_ms) / max(min(found_ms, about_ms), 1e-9)
    if factor <= SAME_QUESTION_FACTOR:
        return None
    return (
        "wrong-unit" if factor >= SECONDS[0] else "other-question",
        f"{where}: found {found_ms:.6g}, expected about {about_ms:.6g} ({other}), because both are "
        f"the time to first text of the same question, and differ {factor:,.0f} times (allowed: "
        f"{SAME_QUESTION_FACTOR:.0f}): another unit, or another moment?",
    )


def _tokens(given: Given) -> Problem:
    for number, run in enumerate(given.ttft.runs if given.ttft else ()):
        if run.tokens is not None and run.tokens > LAB_TOKENS:
            return (
                "wrong-count",
                f"ttft.json: runs[{number}].tokens: found {run.tokens}, expected at most "
                f"{LAB_TOKENS}, because max_tokens is {LAB_TOKENS}; it is timings.predicted_n",
            )
    return None


# --- prefill and cache ---


def _prefill_times(given: Given) -> Problem:
    timed = [
        (f"prefill.json[{number}]", row.ttft_ms, row.prompt_ms)
        for number, row in enumerate(given.prefill or ())
        if row.prompt_ms is not None
    ]
    because = "prompt_ms of the same row is the server's own time, a part of it"
    for units in (
        [_in_seconds(f"{at}.ttft_ms", ttft, own, because) for at, ttft, own in timed],
        [_in_seconds(f"{at}.prompt_ms", own, ttft, "ttft_ms is more") for at, ttft, own in timed],
    ):
        # (One row alone may have waited, for a model that was loaded, say.)
        if units and None not in units:
            return units[0]
    for where, ttft_ms, prompt_ms in timed:
        if ttft_ms < CLOCK_SHARE * prompt_ms:
            return (
                "before-the-prompt",
                f"{where}.ttft_ms: found {ttft_ms:.6g}, expected at least prompt_ms "
                f"{prompt_ms:.6g} (less 5 %), because the first text cannot come before the "
                "prompt is processed: is it the moment of the headers or of the role chunk?",
            )
    return None


def _prefill_cold(given: Given) -> Problem:
    row, cache = given.longest, given.cache
    if row is None or row.prompt_n is None or cache is None or cache.first.prompt_n is None:
        return None
    if row.prompt_n >= COLD_SHARE * cache.first.prompt_n:
        return None
    return (
        "not-cold",
        f"prefill.json: prompt_n of {row.docs} documents: found {row.prompt_n:,}, expected at "
        f"least {COLD_SHARE * cache.first.prompt_n:,.0f}, because cache.json's first leg processed "
        f"{cache.first.prompt_n:,} tokens of the same prompt: a part came from the cache; ask with "
        "cache_prompt false",
    )


def _first_cold(given: Given) -> Problem:
    row, cache = given.longest, given.cache
    if row is None or row.prompt_n is None or cache is None or cache.first.prompt_n is None:
        return None
    first = cache.first.prompt_n
    if first >= COLD_SHARE * row.prompt_n:
        return None
    second = cache.second.prompt_n
    if second is not None and second >= COLD_SHARE * row.prompt_n:
        return (
            "wrong-leg",
            f"cache.json: first.prompt_n: found {first:,}, and second.prompt_n {second:,}; "
            "expected the cold leg first: are the two swapped?",
        )
    return (
        "not-cold",
        f"cache.json: first.prompt_n: found {first:,}, expected about {row.prompt_n:,}, because "
        f"prefill.json processed so many of the same prompt: the first leg was warm already; ask "
        "the short question ('hi', cache off) before it, or restart the server",
    )


def _changed_cold(given: Given) -> Problem:
    cache = given.cache
    if cache is None or cache.first.prompt_n is None or cache.changed_prefix.prompt_n is None:
        return None
    whole = max(cache.first.prompt_n, (given.longest.prompt_n or 0) if given.longest else 0)
    changed = cache.changed_prefix.prompt_n
    if changed >= COLD_SHARE * whole:
        return None
    return (
        "not-cold",
        f"cache.json: changed_prefix.prompt_n: found {changed:,}, expected at least "
        f"{COLD_SHARE * whole:,.0f} (nine tenths of {whole:,}), because a prompt that differs from "
        "its first character on is processed anew: the changing line belongs at the very front of "
        "the system prompt; at its end it is no changed prefix",
    )


def _cache_unit(given: Given) -> Problem:
    if given.cache is None or given.longest is None:
        return None
    return _same_question(
        "cache.json: first.ttft_ms",
        given.cache.first.ttft_ms,
        "prefill.json's last ttft_ms",
        given.longest.ttft_ms,
    )


def cache_cause(cache: Cache, prefill: Sequence[PrefillRow] | None) -> Cause:
    """Why the second leg was no cheaper, as far as the numbers say."""
    given = Given(prefill=tuple(prefill) if prefill else None, cache=cache)
    found = _first_cold(given)
    if found is not None:
        return Cause(*found)
    first, second = cache.first, cache.second
    faster = first.ttft_ms / max(second.ttft_ms, 1e-9)
    shown = f"cache.json: second.prompt_n: found {count(second.prompt_n)}"
    if first.prompt_n is None or second.prompt_n is None:
        return Cause("cache-never-hits", "the same prompt was not cheaper the second time")
    if second.prompt_n == first.prompt_n and faster > 3.0:
        return Cause(
            "wrong-count",
            f"{shown}, as in first, although ttft fell {faster:,.0f} times: these look like all "
            "tokens of the prompt (usage.prompt_tokens); expected timings.prompt_n, those that "
            "were processed now",
        )
    if second.prompt_n > first.prompt_n and first.prompt_n < second.prompt_n / 3:
        return Cause(
            "wrong-leg",
            f"{shown}, and first {count(first.prompt_n)}; expected the cold leg first: are the two "
            "swapped?",
        )
    if second.prompt_n < COLD_SHARE * first.prompt_n:
        return Cause(
            "cache-time",
            f"{shown}, and first {count(first.prompt_n)}: the prompt was reused, and still the "
            f"first text came no sooner (ttft_ms {second.ttft_ms:.6g}, and first "
            f"{first.ttft_ms:.6g}); expected a small part of it: was the server busy?",
        )
    if second.prompt_n != first.prompt_n:
        return Cause(
            "prompts-differ",
            f"{shown}, and first {count(first.prompt_n)}, expected a few of the same prompt: was "
            "it the same, character for character?",
        )
    return Cause(
        "cache-never-hits",
        f"{shown}, as in first, and ttft is about the same ({milliseconds(second.ttft_ms)} against "
        f"{milliseconds(first.ttft_ms)}): the prompt was processed again; ask with cache_prompt "
        "true, on one slot",
    )


# --- sentence ---


def _first_sentence(given: Given) -> Problem:
    if given.sentence is None:
        return None
    text, cut = given.sentence.text, given.sentence.first_sentence.strip()
    # A space alone counts as white space, too: the lab's own words leave that open.
    ends = [re.search(pattern, text) for pattern in (r"[.!?](?=\s)", r"[.!?](?= )")]
    expected = {(text[: end.end()] if end else text).strip() for end in ends}
    if cut in expected:
        return None
    right = min(expected, key=len)
    why = "the first place where one of . ! ? is followed by white space"
    if cut == text.strip():
        why += "; this is the whole text"
    elif cut.startswith(right):
        why += "; this goes on behind it"
    elif right.startswith(cut):
        why += "; this ends before it (a dot inside a number or a word is no end)"
    return (
        "wrong-sentence",
        f"sentence.json: first_sentence: found ...{cut[-30:]!r}, expected ...{right[-30:]!r}, "
        f"because it ends at {why}",
    )


def _sentence_moment(given: Given) -> Problem:
    one = given.sentence
    if one is None:
        return None
    rest = one.text.strip().removeprefix(one.first_sentence.strip()).strip()
    if len(rest) > CHARACTERS_OF_SEVERAL_PIECES and one.first_sentence_ms == one.total_ms:
        return (
            "wrong-moment",
            f"sentence.json: first_sentence_ms: found {one.first_sentence_ms:.6g}, which is "
            f"total_ms; expected less, because {len(rest)} characters come behind the sentence",
        )
    long = len(one.first_sentence) > CHARACTERS_OF_SEVERAL_PIECES
    if long and one.first_sentence_ms == one.ttft_ms < one.total_ms:
        return (
            "wrong-moment",
            f"sentence.json: first_sentence_ms: found {one.first_sentence_ms:.6g}, which is "
            f"ttft_ms; expected more, because a sentence of {len(one.first_sentence)} characters "
            "is many pieces: it is the moment of the piece with the white space behind it",
        )
    return None


def _sentence_unit(given: Given) -> Problem:
    if given.sentence is None or given.ttft is None:
        return None
    because = "ttft.json's question is about as long"
    return _in_seconds(
        "sentence.json: ttft_ms", given.sentence.ttft_ms, given.ttft.ttft_p50, because
    )


# --- cancel ---


def _limit(given: Given) -> Problem:
    if given.cancel is None or given.cancel.max_tokens == CANCEL_TOKENS:
        return None
    return (
        "wrong-limit",
        f"cancel.json: max_tokens: found {given.cancel.max_tokens}, expected {CANCEL_TOKENS}, "
        "because the lab asks for so many",
    )


def _close_moment(given: Given) -> Problem:
    if given.cancel is None:
        return None
    found = given.cancel.closed_at_ms
    expected = "expected about 500, because the close comes half a second after the request"
    if found < 5.0 and not _is_fast(given):
        return (
            "wrong-unit",
            f"cancel.json: closed_at_ms: found {found:.6g}, {expected}: are these seconds?",
        )
    low, high = CLOSE_AT_MS
    if found < low and not _is_fast(given):
        return (
            "wrong-moment",
            f"cancel.json: closed_at_ms: found {found:.6g}, {expected}; sooner ({low:.0f}) only "
            "where the whole answer is over before that",
        )
    slow_ms = 3 * given.ttft.ttft_p50 if given.ttft else 0.0
    if found > max(high, slow_ms):
        return (
            "wrong-moment",
            f"cancel.json: closed_at_ms: found {found:.6g}, {expected} (allowed: {high:.0f}, or "
            "three times the time to first text)",
        )
    return None


def _is_fast(given: Given) -> bool:
    """Whether an answer of 256 tokens may be over before half a second."""
    if given.ttft is None:
        return True
    return given.ttft.total_p50 * CANCEL_TOKENS / LAB_TOKENS < FAST_ANSWER_MS


def _log_is_there(given: Given) -> Problem:
    if given.log is not None:
        return None
    return (
        "no-log",
        "server.log: found none, expected the server's log, because its 'cancel task' line proves "
        "that the close arrived: voice-llm log > server.log (in this directory), or "
        "--llm-log=FILE, --llm-log-command=CMD",
    )


def _cancelled_task(given: Given) -> Problem:
    """The cancelled task is the one that was closed: it held what was received, and ran as long."""
    if given.log is None or given.cancel is None:
        return None
    launched: dict[bytes, float | None] = {}
    ours: list[_Cancelled] = []
    for line in given.log.splitlines():
        task = _TASK.search(line)
        if task is None:
            continue
        number = task.group(1)
        if b"processing task" in line and b"stop processing" not in line:
            launched[number] = _moment_ms(line)
        elif b"cancel task" in line and number in launched:
            # (A log may be of several runs of a server, each with a task of this number.)
            ours.append(_Cancelled(number, launched.pop(number), _moment_ms(line)))
        elif b"stop processing" in line and (size := _HELD.search(line)) is not None:
            same = [at for at, one in enumerate(ours) if one.number == number]
            if same and ours[same[-1]].size is None and number not in launched:
                ours[same[-1]] = replace(ours[same[-1]], size=int(size.group(1)))
    if not ours or any(_is_ours(given.cancel, one) for one in ours):
        return None
    last = ours[-1]
    shown = f", which held {last.size} tokens" if last.size is not None else ""
    return (
        "other-task",
        f"server.log: the cancelled task is {last.number.decode()}{shown}; expected that of "
        f"cancel.json ({given.cancel.received_tokens} pieces received, closed "
        f"{given.cancel.closed_at_ms:.0f} ms after the request), because the line must be that of "
        "this close, not of an earlier request",
    )


@dataclass(frozen=True)
class _Cancelled:
    """A cancelled task of the log: when it began and was cancelled, by the log's own clock, and
    how many tokens it held; None: not said."""

    number: bytes
    begun_ms: float | None
    ended_ms: float | None
    size: int | None = None


def _is_ours(cancel: Cancel, task: _Cancelled) -> bool:
    begun_ms, ended_ms, size = task.begun_ms, task.ended_ms, task.size
    received = cancel.received_tokens
    if size is not None and not received <= size <= received + PROMPT_TOKENS_AT_MOST:
        return False
    if begun_ms is None or ended_ms is None:
        return True
    ran_ms = ended_ms - begun_ms
    # It begins a little after the request, and the server may notice late.
    return ran_ms > 0.5 * cancel.closed_at_ms - 100.0 and (
        cancel.slot_idle_after_ms is None
        or ran_ms < 1.5 * (cancel.closed_at_ms + cancel.slot_idle_after_ms) + 300.0
    )


def _moment_ms(line: bytes) -> float | None:
    """The moment of a line of today's llama.cpp; None: it has none, or in another form."""
    match = _STAMP.match(line)
    if match is None:
        return None
    minutes, seconds, milli, micro = map(int, match.groups())
    return (minutes * 60 + seconds) * 1000.0 + milli + micro / 1000.0


# --- report ---


def _report(given: Given) -> Problem:
    sources = (given.ttft, given.prefill, given.cache, given.sentence, given.cancel)
    if given.report is None or any(source is None for source in sources):
        return None
    expected: Mapping[str, Any] = vars(report_of(*sources))  # type: ignore[arg-type]
    for key, value in vars(given.report).items():
        if value == expected[key]:
            continue
        which = _source_of(value, given)
        also = "" if which is None else f": {value:.6g} is {which}"
        if which is None and isinstance(value, float) and round(value) == round(expected[key] or 0):
            also = ": it is rounded; copy it as it is"
        return (
            "copy-differs",
            f"report.json: {key}: found {value}, expected {expected[key]}, because it is "
            f"{_PLACES[key]}{also}",
        )
    return None


_PLACES = {
    "ttft_p50_ms": "ttft.json's ttft_p50",
    "total_p50_ms": "ttft.json's total_p50",
    "ttft_12docs_ms": "the last ttft_ms of prefill.json",
    "prompt_n_12docs": "the last prompt_n of prefill.json",
    "cache_ttft_ms": "cache.json's second.ttft_ms, the cached leg's",
    "first_sentence_ms": "sentence.json's first_sentence_ms",
    "cancel_idle_ms": "cancel.json's slot_idle_after_ms",
}


def _source_of(value: Any, given: Given) -> str | None:
    """Which other number of the directory a value is."""
    assert given.ttft is not None
    assert given.cache is not None
    assert given.sentence is not None
    assert given.cancel is not None
    rows = given.prefill or ()
    named: list[tuple[str, Any]] = [
        ("cache.json's first.ttft_ms, the cold leg's", given.cache.first.ttft_ms),
        ("cache.json's second.ttft_ms, the cached leg's", given.cache.second.ttft_ms),
        ("cache.json's changed_prefix.ttft_ms", given.cache.changed_prefix.ttft_ms),
        *((f"the prompt_n of {row.docs} documents", row.prompt_n) for row in rows),
        *((f"the ttft_ms of {row.docs} documents", row.ttft_ms) for row in rows),
        *((f"the prompt_ms of {row.docs} documents", row.prompt_ms) for row in rows),
        ("ttft.json's ttft_p50", given.ttft.ttft_p50),
        ("ttft.json's total_p50", given.ttft.total_p50),
        ("the mean of ttft_ms", statistics.fmean(run.ttft_ms for run in given.ttft.runs)),
        ("sentence.json's ttft_ms", given.sentence.ttft_ms),
        ("sentence.json's first_sentence_ms", given.sentence.first_sentence_ms),
        ("sentence.json's total_ms", given.sentence.total_ms),
        ("cancel.json's closed_at_ms", given.cancel.closed_at_ms),
        ("cancel.json's slot_idle_after_ms", given.cancel.slot_idle_after_ms),
    ]
    if value is None:
        return None
    for unit, factor in (("", 1.0), (" in seconds", 1000.0)):
        for name, other in named:
            if other is not None and abs(value * factor - other) <= 1e-9 * abs(other):
                return name + unit
    return None


_CHECKS: Mapping[str, Sequence[tuple[str, Callable[[Given], Problem]]]] = {
    "sse": (
        ("each piece has its own moment, from the request on", _stamps),
        ("t_ms are milliseconds, and agree with the server's timings", _stream_unit),
    ),
    "ttft": (
        ("its times agree with those of the sse step (30 times at most)", _ttft_unit),
        ("at most 64 tokens", _tokens),
    ),
    "prefill": (
        ("ttft_ms >= prompt_ms in every row (less 5 %)", _prefill_times),
        ("the longest prompt was processed whole (nine tenths)", _prefill_cold),
    ),
    "cache": (
        ("the first leg was cold (nine tenths)", _first_cold),
        ("the changed prefix was cold (nine tenths)", _changed_cold),
        ("its times agree with those of the prefill step (30 times at most)", _cache_unit),
    ),
    "sentence": (
        ("it ends at the first .!? before white space", _first_sentence),
        ("first_sentence_ms is the sentence's own moment", _sentence_moment),
        ("its times are milliseconds", _sentence_unit),
    ),
    "cancel": (
        ("max_tokens is 256", _limit),
        ("closed half a second after the request", _close_moment),
        ("server.log is there", _log_is_there),
        ("the cancelled task is the one that was closed", _cancelled_task),
    ),
    "report": (("each value is that of its source", _report),),
}
