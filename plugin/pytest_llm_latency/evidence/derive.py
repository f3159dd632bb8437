"""Makes the timeline of a recording, by the same rules live and from a file. Pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import sse
from ..evidence import limits
from .recording import READING, Recording
from .thoughts import thought_in
from .timeline import CACHED_NAMES, Piece, Timeline

_LONG_RUN = re.compile(r"(.)\1{3,}", re.DOTALL)
_DERIVED = "_derived"
_NO_REASON = ("null", "none")
_CACHED_SINCE = (*CACHED_NAMES, "input_tokens_details")


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
