"""How one server wants a chat request, and what its refusals teach. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..evidence.derive import derive
from ..evidence.recording import Recording
from ..evidence.timeline import answer_limit
from .refusals import FIELDS, MAX_TOKENS_NAMES, Complaint, complaint_of

_REFUSED = (400, 422)
_LOOKS_AT_MOST = 12
# What a server may refuse without naming it, tried one after another; a strict one refuses all
# that OpenAI's own API does not know.
_WITHOUT: Sequence[tuple[str, ...]] = (
    ("cache_prompt",),
    ("stream_options",),
    ("cache_prompt", "stream_options"),
)


@dataclass(frozen=True)
class Dialect:
    """How a server wants a chat request: `model` is named in it, `extra` fields are added,
    `refused` ones left out, `max_tokens` goes by the name `max_tokens_name` and is `min_tokens` at
    least; `api_path` is where the API lies below the server's root ("/v1"; None: where its URL
    says)."""

    model: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    max_tokens_name: str = "max_tokens"
    min_tokens: int = 1
    api_path: str | None = None

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request's body in this server's words."""
        wanted = {**body, **self.extra}
        if self.model is not None:
            wanted["model"] = self.model
        if "max_tokens" in wanted:
            max_tokens = max(wanted.pop("max_tokens"), self.min_tokens)
            wanted[self.max_tokens_name] = max_tokens
        return {name: value for name, value in wanted.items() if name not in self.refused}


class Asking:
    """Finds the dialect of a server, answer by answer: where it refuses one, what it complains of
    is left out; a change after which it complains of the same, or of the new name, is undone.
    Where nothing helps, the dialect is the one before the guesses."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect  # to ask in next; after the last answer, to go on in
        self._origin = dialect  # what is changed
        self._last: Complaint | None = None  # what is said of it
        self._tried = [dialect]

    @property
    def number(self) -> int:
        """Of the request that comes next, from 1 on."""
        return len(self._tried)

    def goes_on_after(self, recording: Recording) -> bool:
        """Take an answer; say whether to ask again, in another dialect."""
        if not _is_refusal(recording):
            return False
        complaint = complaint_of(recording.body, answer_limit(recording.request.body))
        if complaint.model and self.dialect.model is None:
            self.dialect = self._origin
            return False
        if complaint.field == MAX_TOKENS_NAMES[1]:
            self._origin = replace(self._origin, max_tokens_name=MAX_TOKENS_NAMES[0])
        elif complaint != self._last:
            self._origin, self._last = self.dialect, complaint
        others = (one for one in _others(complaint, self._origin) if one not in self._tried)
        following = next(others, None)
        if following is None or len(self._tried) == _LOOKS_AT_MOST:
            self.dialect = self._origin
            return False
        self.dialect = following
        self._tried.append(following)
        return True


def _others(complaint: Complaint, dialect: Dialect) -> Iterator[Dialect]:
    """Dialects that may please a server which complains of this one: what it names, or guesses."""
    renamed = dialect.max_tokens_name != MAX_TOKENS_NAMES[0]
    if complaint.minimum is not None:
        yield replace(dialect, min_tokens=complaint.minimum)
    elif complaint.field in MAX_TOKENS_NAMES:
        if not renamed:
            yield replace(dialect, max_tokens_name=MAX_TOKENS_NAMES[1])
    elif complaint.field is not None and complaint.field not in dialect.refused:
        yield replace(dialect, refused=(*dialect.refused, complaint.field))
    for refused in _WITHOUT:
        more = [name for name in refused if name not in dialect.refused]
        yield replace(dialect, refused=(*dialect.refused, *more))


def told_by(recording: Recording) -> dict[str, Any]:
    """What one short stream shows of a server: the words by which `Capabilities` has it."""
    timeline = derive(recording)
    if timeline.error is not None:
        return {"stream_error": timeline.error, "rate_limited": timeline.limited is not None}
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
    timeline = derive(recording)
    if timeline.limited is not None:
        return False
    return timeline.error is not None and any(name.encode() in recording.body for name in FIELDS)
