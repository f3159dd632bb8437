"""What a server offers, found by one look before anything is measured.

Plain questions and one short stream; what is absent is never taken for zero. It measures nothing,
and does not know what the steps need.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from .client import Client, Dialect
from .costs import LOOK_TOKENS
from .errors import ServerError
from .recording import Recording, Reply
from .refusals import FIELDS, MAX_TOKENS_NAMES, Complaint, complaint_of, knows_the_chat
from .results import CAPABILITIES, is_offered, is_props, listed_models
from .slots import Answer, answer_of
from .sse import CHAT
from .timeline import Timeline, answer_limit, derive

QUESTION = [{"role": "user", "content": "hi"}]
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
class Capabilities:
    """What a server offers, and how; None: it does not, or (of what only a stream can show) it is
    not known.

    `health`, `props`, `slots` and `metrics` are the paths to ask; `slots_field` is how `/slots`
    spells that a slot is busy, `slots_missing` says why there are none. `tokenize`: it counts
    tokens and knows its chat template. The four of the stream: whether it told timings, usage and
    reused tokens, and the field that held reasoning. `stream_error` is what went wrong with it.
    """

    dialect: Dialect
    models: tuple[str, ...] = ()
    health: str | None = None
    props: str | None = None
    slots: str | None = None
    slots_field: str | None = None
    slots_missing: str | None = None
    metrics: str | None = None
    tokenize: bool = False
    timings: bool | None = None
    usage: bool | None = None
    cached_tokens: bool | None = None
    reasoning: str | None = None
    stream_error: str | None = None

    def facts(self) -> dict[str, Any]:
        """For run.json."""
        dialect = self.dialect
        plain = {name: value for name, value in vars(self).items() if name != "dialect"}
        return {
            **plain,
            "models": list(self.models),
            "refused_fields": list(dialect.refused),
            "max_tokens_name": dialect.max_tokens_name,
            "min_tokens": dialect.min_tokens,
            "api_path": dialect.api_path,
        }

    def words(self) -> str:
        """For the terminal: what is there, then what is not."""
        streamed = {
            "timings": self.timings,
            "usage": self.usage,
            "cached tokens": self.cached_tokens,
        }
        offered: Mapping[str, Any] = {
            "health": self.health,
            "props": self.props,
            "slots": self.slots and f"{self.slots}, {self.slots_field}",
            "metrics": self.metrics,
            "tokenize": self.tokenize,
            **({} if self.stream_error is not None else streamed),
        }
        there = [
            f"{name} ({how})" if isinstance(how, str) and how.strip("/") != name else name
            for name, how in offered.items()
            if how
        ]
        if self.reasoning is not None:
            there.append(f"reasoning ({self.reasoning})")
        missing = [name for name, how in offered.items() if not how]
        words = f"offers {', '.join(there) or 'a chat alone'}"
        words += f"; not: {', '.join(missing)}" if missing else ""
        if self.dialect.refused:
            words += f"; refuses {', '.join(self.dialect.refused)}"
        if self.dialect.min_tokens > 1:
            words += f"; asked for {self.dialect.min_tokens} tokens or more"
        return words


def look(client: Client, progress: Callable[[str], None]) -> Capabilities:
    """Find out what the server of `client` offers. Its recordings are those of the step
    "capabilities"."""
    progress("what the server offers")
    models, api_path = _models(client)
    dialect = replace(client.dialect, api_path=api_path)
    if dialect.model is None and len(models) == 1:
        dialect = replace(dialect, model=models[0])
    props, health = _ask(client, "/props"), _ask(client, "/health")
    # A router has neither slots nor a context of its own: its models have.
    told = props.json() if props is not None else None
    router = isinstance(told, dict) and told.get("role") == "router"
    query = ""
    if router and dialect.model is not None:
        query = "?" + urlencode({"model": dialect.model})
        props = _ask(client, f"/props{query}")
    slots_path = f"/slots{query}"
    slots = _ask(client, slots_path)
    answer = Answer(None, "the server offers no /slots: no answer")
    if slots is not None:
        answer = answer_of(slots.status, slots.body)
    metrics = _ask(client, "/metrics")
    counts = metrics is not None and answer_of(metrics.status, metrics.body).busy is not None
    found = Capabilities(
        dialect=dialect,
        models=models,
        health=_health(health, models, client.api_paths[0] if api_path is None else api_path),
        props=f"/props{query}" if props is not None and is_props(props) else None,
        slots=slots_path if answer.missing is None else None,
        slots_field=answer.field,
        slots_missing=answer.missing,
        metrics="/metrics" if counts else None,
        tokenize=_counts_tokens(client),
    )
    return _with_stream(client, found)


def _ask(client: Client, path: str) -> Reply | None:
    try:
        return client.get(path)
    except ServerError:
        return None


def _health(health: Reply | None, models: Sequence[str], api_path: str) -> str | None:
    if health is not None and is_offered(health):
        return "/health"
    return f"{api_path}/models" if models else None


def _models(client: Client) -> tuple[tuple[str, ...], str | None]:
    """The models, and the path of the API that lists them: ((), None) where none does."""
    for path in client.api_paths:
        reply = _ask(client, f"{path}/models")
        names = listed_models(reply) if reply is not None else None
        if names is not None:
            return tuple(filter(_is_text, names)), path
    return (), None


def _is_text(name: str) -> bool:
    """Whether a JSON string can be sent back: half a surrogate pair can not."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _counts_tokens(client: Client) -> bool:
    """Whether the server has /tokenize and /apply-template."""
    try:
        template = client.post("/apply-template", {"messages": QUESTION}).json()
        tokens = client.post("/tokenize", {"content": "hi"}).json()
    except ServerError:
        return False
    return (
        isinstance(template, dict)
        and isinstance(template.get("prompt"), str)
        and isinstance(tokens, dict)
        and isinstance(tokens.get("tokens"), list)
    )


def _path_of_the_chat(client: Client) -> str:
    """Of a server that lists no models: the path that knows the chat the most surely; of several
    alike the likeliest. A gateway may answer anything to a path that it does not know."""
    best, found = 0, client.api_paths[0]
    for path in client.api_paths:
        with contextlib.suppress(ServerError):
            reply = client.post(path + CHAT, client.dialect.body({"messages": [], "max_tokens": 1}))
            if knows_the_chat(reply) > best:
                best, found = knows_the_chat(reply), path
    return found


def _is_refusal(recording: Recording, timeline: Timeline) -> bool:
    """Whether a server refuses the form of a request: by the usual status, or by words that name
    one of the fields."""
    if recording.status in _REFUSED:
        return True
    if timeline.limited is not None:
        return False
    return timeline.error is not None and any(name.encode() in recording.body for name in FIELDS)


def _without_what(complaint: Complaint, dialect: Dialect) -> Iterator[Dialect]:
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


def _asked(client: Client, dialect: Dialect) -> tuple[Timeline, Dialect]:
    """One short answer, and the dialect in which it was given. Where one is refused, what the
    server complains of is left out; a change after which it complains of the same, or of the new
    name, is undone. Where nothing helps, the dialect is the one before the guesses."""
    origin = dialect  # what is changed
    last: Complaint | None = None  # what is said of it
    tried: list[Dialect] = []
    while True:
        tried.append(dialect)
        recording = client.speaking(dialect).record(
            QUESTION, LOOK_TOKENS, False, label=f"{CAPABILITIES}/stream-{len(tried)}"
        )
        timeline = derive(recording)
        if not _is_refusal(recording, timeline):
            return timeline, dialect
        complaint = complaint_of(recording.body, answer_limit(recording.request.body))
        if complaint.model and dialect.model is None:
            return timeline, origin
        if complaint.field == MAX_TOKENS_NAMES[1]:
            origin = replace(origin, max_tokens_name=MAX_TOKENS_NAMES[0])
        elif complaint != last:
            origin, last = dialect, complaint
        others = (one for one in _without_what(complaint, origin) if one not in tried)
        following = next(others, None)
        if following is None or len(tried) == _LOOKS_AT_MOST:
            return timeline, origin
        dialect = following


def _with_stream(client: Client, found: Capabilities) -> Capabilities:
    """What one short stream shows."""
    dialect = found.dialect
    if dialect.api_path is None:
        dialect = replace(dialect, api_path=_path_of_the_chat(client))
    timeline, dialect = _asked(client, dialect)
    if timeline.error is not None:
        return replace(found, dialect=dialect, stream_error=timeline.error)
    return replace(
        found,
        dialect=dialect,
        timings=bool(timeline.timings),
        usage=bool(timeline.usage),
        cached_tokens=timeline.cache_n is not None,
        reasoning=timeline.reasoning,
    )
