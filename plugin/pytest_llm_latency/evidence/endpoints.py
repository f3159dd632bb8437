"""Which endpoint has answered: /props, a list of models, /tokenize, or none of them. Pure."""

from __future__ import annotations

from typing import Any

from .. import sse
from .recording import Reply
from .timeline import count_in

PROPS_KEYS = frozenset(("model_path", "total_slots", "default_generation_settings"))


def is_offered(reply: Reply) -> bool:
    """Whether an answer is that of an endpoint that the server has, healthy or not. These are no
    part of OpenAI's API: a gateway refuses what it does not know by 404, 403 or a redirect."""
    if reply.status != 200:
        return reply.status >= 500 and reply.status != 501
    body = reply.json()
    # LM Studio answers 200 and an error to a path that it does not know, others their web page.
    is_error = isinstance(body, dict) and list(body) == ["error"]
    return not is_error and not reply.body.lstrip().startswith(b"<")


def is_props(reply: Reply) -> bool:
    """Whether an answer, good or bad, is that of llama.cpp's /props."""
    if reply.status != 200:
        return is_offered(reply)
    body = reply.json()
    return isinstance(body, dict) and not PROPS_KEYS.isdisjoint(body)


def server_facts(props: Any) -> dict[str, str | int | None]:
    """What /props says of a server: "model", "build", "n_ctx" and "slots", None where it says
    nothing; empty where `props` is none."""
    if not isinstance(props, dict):
        return {}
    settings = props.get("default_generation_settings")
    return {
        "model": _shown(props.get("model_path")),
        "n_ctx": count_in(settings, "n_ctx") if isinstance(settings, dict) else None,
        "slots": count_in(props, "total_slots"),
        "build": _shown(props.get("build_info")),
    }


def _shown(value: Any) -> str | None:
    return sse.shown_words(str(value)) if value else None


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


def token_count(reply: Reply) -> int | None:
    """The tokens in an answer of `/tokenize`; None where it is none."""
    body = reply.json()
    tokens = body.get("tokens") if isinstance(body, dict) else None
    return len(tokens) if isinstance(tokens, list) else None
