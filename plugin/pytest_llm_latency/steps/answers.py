"""Whether a recorded answer can be used, and the words where it cannot. Pure."""

from __future__ import annotations

from ..errors import ConfigError, RateLimited, StreamError
from ..evidence.derive import derive
from ..evidence.endpoints import token_count
from ..evidence.recording import Recording, Reply
from ..evidence.timeline import Timeline
from ..sse import value_of


def usable(recording: Recording) -> Timeline:
    """The timeline of a whole answer with text. Raises StreamError, ConfigError otherwise."""
    timeline = derive(recording)
    if recording.status == 400:
        _raise_if_too_long(recording)
    raise_if_limited(timeline)
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


def raise_if_limited(timeline: Timeline) -> None:
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


def known_ms(value: float | None) -> float:
    assert value is not None  # `usable` saw a piece
    return value


def is_usable(recording: Recording | None) -> bool:
    """Whether there is a whole answer with text."""
    return recording is not None and _error(recording) is None


def reply_of(recording: Recording) -> Reply:
    return Reply(recording.status or 0, recording.body, recording.end.t_ms)


def counted_tokens(recording: Recording | None) -> int | None:
    """The tokens in a recorded answer of `/tokenize`; None where there is none."""
    return token_count(reply_of(recording)) if recording is not None else None


def _error(recording: Recording) -> str | None:
    try:
        usable(recording)
    except (StreamError, ConfigError) as error:
        return str(error)
    return None


def unanswered(recording: Recording) -> str | None:
    """Why a request was not answered; None: it was. One whose few tokens were all spent on
    reasoning was."""
    timeline = derive(recording)
    answered = timeline.error is None and not timeline.cut_short and timeline.token_ms
    return None if answered else _error(recording)
