"""What a server offers, found by one look before anything is measured.

Plain questions and one short stream; what is absent is never taken for zero. It measures nothing,
and does not know what the steps need.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from ..errors import ServerError
from ..evidence.activity import Answer, answer_of
from ..evidence.endpoints import is_offered, is_props, listed_models
from ..evidence.recording import Reply
from ..look import CAPABILITIES, HI, LOOK_TOKENS
from ..sse import CHAT, shown_words
from ..wire.client import Client
from ..wire.dialect import Asking, Dialect, told_by
from ..wire.refusals import knows_the_chat

MODELS_KEPT = 100  # in run.json, which is written again after every step


@dataclass(frozen=True)
class Capabilities:
    """What a server offers, and how; None: it does not, or (of what only a stream can show) it is
    not known.

    `health`, `props`, `slots` and `metrics` are the paths to ask; `slots_field` is how `/slots`
    spells that a slot is busy, `slots_missing` says why there are none. `tokenize`: it counts
    tokens and knows its chat template. The four of the stream: whether it told timings, usage and
    reused tokens, and the field that held reasoning. `stream_error` is what went wrong with it;
    `rate_limited`: that was a limit of how often it is asked.
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
    rate_limited: bool = False

    def facts(self) -> dict[str, Any]:
        """For run.json: what a server calls its models may be of any length."""
        dialect = self.dialect
        plain = {name: value for name, value in vars(self).items() if name != "dialect"}
        models = list(map(shown_words, self.models[:MODELS_KEPT]))
        if len(self.models) > MODELS_KEPT:
            models.append(f"... ({len(self.models) - MODELS_KEPT:,} more)")
        return {
            **{name: shown_words(v) if isinstance(v, str) else v for name, v in plain.items()},
            "models": models,
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
        template = client.post("/apply-template", {"messages": HI}).json()
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


def _with_stream(client: Client, found: Capabilities) -> Capabilities:
    """What one short stream shows."""
    dialect = found.dialect
    if dialect.api_path is None:
        dialect = replace(dialect, api_path=_path_of_the_chat(client))
    asking = Asking(dialect)
    while True:
        recording = client.speaking(asking.dialect).record(
            HI, LOOK_TOKENS, False, label=f"{CAPABILITIES}/stream-{asking.number}"
        )
        if not asking.goes_on_after(recording):
            return replace(found, dialect=asking.dialect, **told_by(recording))
