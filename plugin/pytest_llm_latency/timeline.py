"""What a recording says: pieces, first text, first sentence, counts, how it ended. Pure.

It interprets one recording and compares nothing; relations between recordings are judged in
`relations.py`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import limits, sse
from .recording import READING, Recording
from .sentences import Rule, first_end
from .thoughts import thought_in

# Of prose in the languages that tokenizers know best 4 to 6; no prose has so many on an average.
CHARACTERS_A_TOKEN = 4
CHARACTERS_A_TOKEN_AT_MOST = 16
COLD_SHARE = 0.9
# What a chat template puts before every prompt (Llama 3's has dates), in whole blocks of a cache.
HEADER_TOKENS_AT_MOST = 64
COUNTS_AGREE_SHARE = 0.02
_LONG_RUN = re.compile(r"(.)\1{3,}", re.DOTALL)
# Where servers say how many tokens of the prompt came from a cache: OpenAI's, vLLM's and SGLang's
# place; Moonshot's (Kimi); DeepSeek's; Anthropic's, as LiteLLM passes it on.
_CACHED_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_INPUT_NAMES = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_CACHED_NAMES = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
_DERIVED = "_derived"
_NO_REASON = ("null", "none")
_CACHED_SINCE = (*_CACHED_NAMES, "input_tokens_details")


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk's text and the moment of the read that completed its event; `size_bytes` is what the
    event takes on the wire at least, 0: not known."""

    t_ms: float
    text: str
    size_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Timeline:
    """One answer, derived. Times are milliseconds from just before the request was sent.

    `token_ms` are the moments of deltas of any channel (reasoning, tool call, answer);
    `contents` are the pieces of text as they were sent, `pieces` those of the answer: without the
    reasoning that a model writes into its text between tags (`thought_tag`, None: it does not).
    `reasoning_field` is the name under which reasoning came, None: none did. `repeats`: every
    delta held all text so far. `unended` is the start of the last event, which no blank line
    ended; `no_blank_lines`: none did. `clock_off_ms`: how far another clock of the system
    disagreed with ours over this request, 0: it did not. `limited`: what to tell of a limit
    that refused the request, None: none did.
    `timings` and `usage` are the last the server sent, empty if none. `error` is the server's
    words for a failure, or ours for bytes that are no answer. `total_ms` is the last read (the one
    with `[DONE]`, where it came); None: nothing came. `connect_ms` is what opening the connection
    took before all that. Times that are less than `jitter_ms` apart
    are the same as far as this reader can say; `cpu_wait_ms` is how long it had to wait for a
    core. `prompt` is what was asked, as text; `prompt_characters` how long its text is (an image
    is none, and of the same character many times in a row only some count).
    """

    pieces: tuple[Piece, ...] = ()
    contents: tuple[Piece, ...] = field(default=(), repr=False)
    token_ms: tuple[float, ...] = field(default=(), repr=False)
    reasoning_field: str | None = None
    total_ms: float | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    done: bool = False
    closed_at_ms: float | None = None
    connect_ms: float | None = None
    error: str | None = None
    jitter_ms: float = 0.0
    cpu_wait_ms: float | None = None
    prompt: str = field(default="", repr=False)
    prompt_characters: int = 0
    thought_tag: str | None = None
    repeats: bool = False
    clock_off_ms: float = 0.0
    unended: str | None = None
    no_blank_lines: bool = False
    limited: str | None = None

    @property
    def sent(self) -> tuple[Piece, ...]:
        """All text as it was sent, reasoning between tags included."""
        return self.contents or self.pieces

    @property
    def first_token_ms(self) -> float | None:
        """The first token of any channel; None where there is none."""
        return self.token_ms[0] if self.token_ms else None

    @property
    def reasoning(self) -> str | None:
        """The field in which reasoning came, or the tag in the text; "hidden" where only counts
        tell of it; None: none."""
        if self.reasoning_field is not None:
            return self.reasoning_field
        if self.thought_tag is not None:
            return f"{self.thought_tag} in the text"
        details = sse.mapping(self.usage, "completion_tokens_details")
        counted = any(count_in(one, "reasoning_tokens") for one in (details, self.usage))
        silent = not self.pieces and bool(self.tokens) and self.finish_reason == "length"
        return "hidden" if counted or silent else None

    @property
    def ttft_ms(self) -> float | None:
        """The moment of the first piece with text; None where there is none."""
        return self.pieces[0].t_ms if self.pieces else None

    @property
    def prefilled_ms(self) -> float | None:
        """When the prompt was done with: the first token of any channel, since reasoning is
        generated, too; None where nothing came."""
        return self.ttft_ms if self.first_token_ms is None else self.first_token_ms

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def arrivals(self) -> tuple[tuple[Piece, ...], ...]:
        """The text by what became readable together: no more than `jitter_ms` apart."""
        groups: list[list[Piece]] = []
        for piece in self.sent:
            if groups and piece.t_ms - groups[-1][-1].t_ms <= self.jitter_ms:
                groups[-1].append(piece)
            else:
                groups.append([piece])
        return tuple(map(tuple, groups))

    @property
    def _cached_tokens(self) -> int | None:
        for name in _CACHED_DETAILS:
            counted = count_in(sse.mapping(self.usage, name), "cached_tokens")
            if counted is not None:
                return counted
        told = (count_in(self.usage, name) for name in _CACHED_NAMES)
        return next((counted for counted in told if counted is not None), None)

    @property
    def _counts(self) -> tuple[int | None, int | None, int | None]:
        """(all, processed now, reused) prompt tokens as the server says them. No prompt of a
        chat has none: a 0 is a field that is filled and not counted."""
        reused = count_in(self.timings, "cache_n")
        reused = self._cached_tokens if reused is None else reused
        processed = count_in(self.timings, "prompt_n")
        if processed == 0 and not reused:
            processed = reused = None
        return self._prompt_tokens, processed, reused

    @property
    def _prompt_tokens(self) -> int | None:
        """As OpenAI's API says them, else as Anthropic's, which leaves out what was cached."""
        told = count_in(self.usage, "prompt_tokens")
        if told is None:
            counts = [count_in(self.usage, name) for name in _INPUT_NAMES]
            told = sum(filter(None, counts)) if counts[0] is not None else None
        return told or None

    @property
    def counts_conflict(self) -> str | None:
        """How the server's counts of the prompt contradict each other; None: they do not."""
        total, processed, reused = self._counts
        pairs = []
        if total is not None and processed is not None and reused is not None:
            pairs.append(("prompt_n + cache_n", processed + reused, "prompt_tokens", total))
        if self._cached_tokens is not None and reused is not None:
            pairs.append(("cached_tokens", self._cached_tokens, "cache_n", reused))
        for name, one, other_name, other in pairs:
            if abs(one - other) > COUNTS_AGREE_SHARE * max(one, other, 100):
                return f"{name} = {one}, {other_name} = {other}"
        if total is not None and reused is not None and reused > total:
            return f"{reused} of {total} prompt tokens were reused"
        return None

    @property
    def prompt_total(self) -> int | None:
        """All tokens of the prompt, reused or not; None where the server does not say, or
        contradicts itself."""
        total, processed, reused = self._counts
        if self.counts_conflict is not None:
            return None
        if total is None and processed is not None and reused is not None:
            total = processed + reused
        return total

    @property
    def cache_n(self) -> int | None:
        """Prompt tokens reused from the cache; None as in `prompt_total`."""
        return None if self.counts_conflict is not None else self._counts[2]

    @property
    def prompt_n(self) -> int | None:
        """Prompt tokens processed for this request, reused ones excluded; None as in
        `prompt_total`."""
        if self.counts_conflict is not None:
            return None
        total, processed, reused = self._counts
        if processed is None and total is not None and reused is not None:
            processed = total - reused
        return processed

    @property
    def cold(self) -> bool | None:
        """Whether at least nine tenths of the prompt were processed now; None: not said.

        Not all of it: the chat template's own header may be reused under any prompt.
        """
        if self.prompt_n is None or self.prompt_total is None:
            return None
        return self.prompt_n >= COLD_SHARE * self.prompt_total

    @property
    def warm(self) -> bool:
        """Whether it is known that more was reused than a header that all prompts share; of a
        short one that is more than a tenth."""
        if self.prompt_n is None or self.prompt_total is None or self.cold is not False:
            return False
        reused = self.prompt_total - self.prompt_n
        return reused > min(HEADER_TOKENS_AT_MOST, self.prompt_total / 2)

    @property
    def prompt_ms(self) -> float | None:
        """The server's own prompt processing time; None where it does not say."""
        return _time(self.timings, "prompt_ms")

    @property
    def tokens(self) -> int | None:
        """Generated tokens by the server's count, never by counting pieces; None: not said."""
        predicted = count_in(self.timings, "predicted_n")
        names = ("completion_tokens", "output_tokens")
        told = (predicted, *(count_in(self.usage, name) for name in names))
        return next((counted for counted in told if counted is not None), None)

    @property
    def predicted_ms(self) -> float | None:
        """The server's own generation time; None where it does not say."""
        return _time(self.timings, "predicted_ms")

    @property
    def drafted(self) -> bool:
        """Whether tokens were drafted (speculative decoding), and so made several at a time."""
        return bool(count_in(self.timings, "draft_n"))

    @property
    def cut_short(self) -> bool:
        """The stream ended, not by us, with neither `[DONE]` nor a finish reason."""
        return not self.done and self.finish_reason is None and self.closed_at_ms is None


LARGEST = 2**53  # a number beyond is no count and no time, and no float holds it exactly


def count_in(mapping: Mapping[str, Any], key: str) -> int | None:
    """The count of that name in a server's answer; None where there is none."""
    value = mapping.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < LARGEST else None


def answer_limit(body: Mapping[str, Any]) -> int:
    """How many tokens a chat request lets be generated; 0 where it does not say."""
    return count_in(body, "max_tokens") or count_in(body, "max_completion_tokens") or 0


def _time(mapping: Mapping[str, Any], key: str) -> float | None:
    value = mapping.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < LARGEST else None


def derive(recording: Recording) -> Timeline:
    """Everything a recording says, by the same rules live and from a file; worked out once."""
    kept: dict[str, Any] = vars(recording)  # beside its fields, as functools.cached_property does
    if _DERIVED not in kept:
        kept[_DERIVED] = _derive(recording)
    found: Timeline = kept[_DERIVED]
    return found


def _derive(recording: Recording) -> Timeline:
    moments: list[tuple[float, int]] = []
    values: list[dict[str, Any]] = []
    unended: str | None = None
    done = no_blank_lines = False
    error = _transport_error(recording)
    is_of_before = recording.reading < READING
    try:
        for t_ms, event, is_ended in _events(recording):
            unended = None if is_ended else event.data
            if sse.is_done(event):
                done = True
                break
            value = sse.chunk_of(event)
            if value is not None:
                moments.append((t_ms, len(event.data.encode()) + len("data: \n\n")))
                values.append(value)
    except sse.StreamFailure as failure:
        error = str(failure)
        no_blank_lines = isinstance(failure, sse.NoBlankLines)
    found: list[tuple[float, int, sse.Said]] = []
    token_ms: list[float] = []
    reasoning_field: str | None = None
    before_reasoning = 0  # pieces of text that came before its latest token
    timings: Mapping[str, Any] = {}
    usage: Mapping[str, Any] = {}
    finish_reason: str | None = None
    chunks = values if is_of_before else sse.renumbered(values)
    for (t_ms, size_bytes), value in zip(moments, chunks):
        said, field_name = sse.said(value), sse.reasoning_field(value)
        if field_name is not None:
            reasoning_field = reasoning_field or field_name
            before_reasoning = len(found)
        if sse.is_token(value):
            token_ms.append(t_ms)
        if said.text:
            found.append((t_ms, size_bytes, said))
        timings = sse.mapping(value, "timings") or timings
        usage = _merged(usage, _plain_usage(value) if is_of_before else sse.usage_of(value))
        finish_reason = _finish_reason(value) or finish_reason
    closed_at_ms = recording.end.t_ms if recording.end.kind == "closed" else None
    if error is None and not done and finish_reason is None and closed_at_ms is None:
        unframed = sse.unframed_failure(recording.body)
        error = None if unframed is None else str(unframed)
    texts = [said.text for _, _, said in found]
    added = texts if is_of_before else sse.added([said for _, _, said in found])
    contents = tuple(Piece(t_ms, text, size) for (t_ms, size, _), text in zip(found, added) if text)
    whole = "".join(piece.text for piece in contents)
    thought = None if is_of_before else thought_in(whole)
    blank = 0 if is_of_before else _blank_before(contents, before_reasoning)
    prompts = _contents(recording.request.body.get("messages"))
    return Timeline(
        pieces=contents[blank:] if thought is None else _from(contents, thought.answer_at),
        contents=contents,
        token_ms=tuple(token_ms),
        reasoning_field=reasoning_field,
        total_ms=recording.reads[-1].t_ms if recording.reads else None,
        timings=timings,
        usage=usage,
        finish_reason=finish_reason,
        done=done,
        closed_at_ms=closed_at_ms,
        connect_ms=recording.connect_ms,
        error=error,
        jitter_ms=recording.jitter_ms,
        cpu_wait_ms=recording.cpu_wait_ms,
        clock_off_ms=recording.clock_off_ms,
        prompt="\n".join(map(str, prompts)),
        prompt_characters=sum(map(_characters, prompts)),
        thought_tag=None if thought is None else thought.tag,
        repeats=sse.repeats(texts),
        unended=None if unended is None else unended[:80],
        no_blank_lines=no_blank_lines,
        limited=limits.words(recording),
    )


def _events(recording: Recording) -> Iterator[tuple[float, sse.Event, bool]]:
    """(t_ms, event, whether a blank line has ended it) of all events of an answer."""
    if not is_answered(recording):
        return
    decoder = sse.Decoder()
    for t_ms, event in sse.timed_events(recording.reads, decoder):
        yield t_ms, event, True
    last = decoder.end() if recording.end.kind == "eof" else None
    if last is not None and sse.is_whole(last):
        yield recording.reads[-1].t_ms, last, False


def is_success(status: int | None) -> bool:
    """Whether a status is one of success: some frameworks answer a POST with 201."""
    return status is not None and 200 <= status < 300


def is_answered(recording: Recording) -> bool:
    """Whether an answer came that is no refusal."""
    return is_success(recording.status)


class TokenWatch:
    """Says when the first token has arrived, of any channel."""

    def __init__(self) -> None:
        self.seen = False
        self._decoder: sse.Decoder | None = sse.Decoder()

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; say whether a token has come."""
        if self._decoder is None:
            return False
        try:
            events = self._decoder.feed(data)
        except sse.TooLong:
            self._decoder = None
            return False
        for event in events:
            with contextlib.suppress(sse.StreamFailure):
                value = None if sse.is_done(event) else sse.chunk_of(event)
                # Of each chunk alone: whatever answer it belongs to, something is generated.
                self.seen = self.seen or (
                    value is not None and any(map(sse.is_token, sse.renumbered([value])))
                )
        return self.seen


def _merged(usage: Mapping[str, Any], further: Mapping[str, Any]) -> Mapping[str, Any]:
    """The counts so far with those of a further chunk: what that leaves empty stays."""
    return {**usage, **{n: v for n, v in further.items() if v or not usage.get(n)}}


def _blank_before(contents: Sequence[Piece], reasoning: int) -> int:
    """How many pieces of white space stand before the answer of a model that reasons in a channel
    of its own: before the end of its reasoning (`reasoning` pieces came till then), or all."""
    if not reasoning:
        return 0
    words = next((i for i, piece in enumerate(contents) if piece.text.strip()), len(contents))
    return words if words >= reasoning else 0


def _plain_usage(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The counts of a chunk where recordings of before were looked through for them."""
    counts = sse.mapping(value, "usage")
    return {name: counts[name] for name in counts if name not in _CACHED_SINCE}


def _from(pieces: Sequence[Piece], start: int | None) -> tuple[Piece, ...]:
    """The pieces from the character `start` on, that with it cut; None: none of them."""
    if start is None:
        return ()
    found = []
    seen = 0
    for piece in pieces:
        text = piece.text[max(0, start - seen) :]
        seen += len(piece.text)
        if text:
            found.append(replace(piece, text=text))
    return tuple(found)


Counts = tuple[int | None, int | None]


def stalled(processed: Counts, whole: Counts, added_characters: int) -> tuple[int, int, int] | None:
    """Where the counts of a short and a long prompt do not grow: the two, and how much more text
    they had to hold. None: they grow, or are not said.

    All tokens together must grow by what so much more text is at least, since two texts of the
    same length (two salts) differ by some tokens for nothing; those processed may have been in
    the cache.
    """
    for (few, many), characters in ((processed, 0), (whole, added_characters)):
        at_least = max(1, characters // CHARACTERS_A_TOKEN_AT_MOST)
        if few is not None and many is not None and many - few < at_least:
            return few, many, characters
    return None


def _contents(messages: Any) -> list[Any]:
    """The contents of chat messages: texts, or lists of parts."""
    parts = messages if isinstance(messages, list) else []
    return [part.get("content", "") for part in parts if isinstance(part, Mapping)]


def _characters(content: Any) -> int:
    if isinstance(content, str):
        # A ruler or an indentation is few tokens.
        return len(_LONG_RUN.sub(r"\1\1\1", content))
    parts = content if isinstance(content, list) else []
    return sum(_characters(str(p.get("text", ""))) for p in parts if isinstance(p, Mapping))


def _transport_error(recording: Recording) -> str | None:
    if recording.status is not None and 300 <= recording.status < 400:
        headers = {name.lower(): value for name, value in recording.response_headers}
        asked, place = recording.request.path, headers.get("location", "")
        return sse.redirect_words(recording.status, asked, place)
    if recording.status is not None and not is_answered(recording):
        return f"HTTP {recording.status}: {_body_words(recording.body)}"
    if recording.end.kind in ("broken", "deadline"):
        return recording.end.detail
    if (
        is_answered(recording)
        and recording.end.kind != "closed"
        and not sse.has_events(recording.body)
    ):
        return f"the answer is no event stream: {_body_words(recording.body)}"
    return None


def _body_words(body: bytes) -> str:
    text = body[: sse.JSON_BYTES_AT_MOST].decode("utf-8", "replace").strip()
    value = sse.value_of(text)
    words = sse.error_words(value) if isinstance(value, dict) else None
    return words or text[:200] or "(empty body)"


def _finish_reason(value: Mapping[str, Any]) -> str | None:
    reason = sse.answer_choice(value).get("finish_reason")
    if isinstance(reason, Mapping):  # SGLang's own form
        reason = reason.get("type")
    # KoboldCpp wrote "null" as a text.
    return reason if isinstance(reason, str) and reason.lower() not in _NO_REASON else None


def first_sentence(pieces: Sequence[Piece], rule: Rule = "plain") -> tuple[str, float]:
    """The first sentence of the joined text and the moment (ms) it was known to be complete.

    That is the moment of the piece with the character by which `rule` knows the end (see
    `sentences.py`). Without an end the whole text is the sentence, complete with the last
    piece. `pieces` must not be empty.
    """
    text = "".join(piece.text for piece in pieces)
    end = first_end(text, rule)
    if end is None:
        return text, pieces[-1].t_ms
    length, known = end
    seen = 0
    for piece in pieces:
        seen += len(piece.text)
        if seen > known:
            return text[:length], piece.t_ms
    raise AssertionError("the end of the sentence lies in no piece")
