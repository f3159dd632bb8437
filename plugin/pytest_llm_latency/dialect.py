"""How one server wants a chat request, and what its refusals teach. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .recording import Recording
from .timeline import derive

MAX_TOKENS_NAMES = ("max_tokens", "max_completion_tokens")
_REFUSED = (400, 422)
# What a server may refuse, tried one after another; a strict one refuses all that OpenAI's own
# API does not know.
_WITHOUT: Sequence[tuple[str, ...]] = (
    (),
    ("cache_prompt",),
    ("stream_options",),
    ("cache_prompt", "stream_options"),
)


@dataclass(frozen=True)
class Dialect:
    """How a server wants a chat request: `model` is named in it, `extra` fields are added,
    `refused` ones left out, `max_tokens` goes by the name `max_tokens_name`; `api_path` is where
    the API lies below the server's root ("/v1"; None: where its URL says)."""

    model: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    max_tokens_name: str = "max_tokens"
    api_path: str | None = None

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request's body in this server's words."""
        named = {} if self.model is None else {"model": self.model}
        return {
            self.max_tokens_name if name == "max_tokens" else name: value
            for name, value in {**body, **self.extra, **named}.items()
            if name not in self.refused
        }


def guesses() -> Iterator[tuple[str, ...]]:
    """What to leave out where a refusal names nothing."""
    return iter(_WITHOUT[1:])


def after(
    dialect: Dialect, recording: Recording, left: Iterator[tuple[str, ...]]
) -> Dialect | None:
    """How to ask again after this answer, `left` being the guesses that were not tried; None: it
    is no refusal of the request's form, or there is no other form."""
    if not _is_refusal(recording):
        return None
    named = _refused_in(recording)
    more = [name for name in _WITHOUT[-1] if name in named and name not in dialect.refused]
    if MAX_TOKENS_NAMES[0] in named and dialect.max_tokens_name == MAX_TOKENS_NAMES[0]:
        return replace(dialect, max_tokens_name=MAX_TOKENS_NAMES[1])
    if more:  # one by one, as it complains of them
        return replace(dialect, refused=(*dialect.refused, *more))
    if _wants_model(named) and dialect.model is None:
        return None
    guess = next(left, None)  # it names none
    return None if guess is None else replace(dialect, refused=guess)


def told_by(recording: Recording) -> dict[str, Any]:
    """What one short stream shows of a server: the words by which `Capabilities` has it."""
    timeline = derive(recording)
    if timeline.error is not None:
        return {"stream_error": timeline.error}
    return {
        "timings": bool(timeline.timings),
        "usage": bool(timeline.usage),
        "cached_tokens": timeline.cache_n is not None,
        "reasoning": timeline.reasoning,
    }


def _is_refusal(recording: Recording) -> bool:
    """Whether a server refuses the form of a request: by the usual status, or by words that name
    one of the fields."""
    if recording.status in _REFUSED:
        return True
    fields = (*_WITHOUT[-1], *MAX_TOKENS_NAMES)
    named = any(name.encode() in recording.body for name in fields)
    return named and derive(recording).error is not None


def _refused_in(recording: Recording) -> str:
    """The words of a refusal. FastAPI's repeat the whole request behind what they complain of."""
    text = recording.body.decode("utf-8", "replace")
    try:
        details = json.loads(text)["detail"]
        return " ".join(f"{one['loc'][-1]}: {one['msg']}" for one in details)
    except (ValueError, LookupError, TypeError, RecursionError):
        return text


def _wants_model(words: str) -> bool:
    return "model" in words and re.search("required|missing|must", words, re.I) is not None
