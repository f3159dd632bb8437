"""Judges the server step: health and facts. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from ... import sse
from ...errors import ArtifactError
from ...evidence.artifacts import Props, check
from ...evidence.endpoints import is_offered, is_props, lists_models
from ...evidence.recording import Reply
from ...verdicts.verdict import Cause, Verdict, holds_if
from .result import ServerResult

# Servers say in many words that they are well, and answer 200 then; some say with 200 that they
# are not. An unknown word is as good as its 200.
HEALTHY = re.compile(r"(ok|healthy|up|ready|alive|pass|running|serving|green|true|2\d\d)\b", re.I)
UNHEALTHY = re.compile(
    r"^(no|ko|none|null|red|[\d.]*)$|(?<![a-z])not(?![a-z])|^not|busy|critical|dead|degraded"
    r"|\bdown\b|drain|error|\bfail|false|initiali|loading|maintenance|offline|out.of.service"
    r"|pending|starting|stopp|unavailable|unhealthy|unknown|unready|warming",
    re.I,
)


def judge_server(result: ServerResult) -> list[Verdict]:
    """Step 1. A server without /health is healthy if it lists its models; one without /props
    cannot be judged by them."""
    health, props = result.health, result.props
    if (health.status, health.body) == (props.status, props.body):
        nothing = Reply(404, b"", 0.0)  # the same to every path: it knows neither
        return [_health(replace(result, health=nothing)), _props(nothing)]
    return [_health(result), _props(result.props)]


def _health(result: ServerResult) -> Verdict:
    reply, models = result.health, result.models
    if not is_offered(reply):
        relation = "no /health; /v1/models: the models are listed"
        if models is None or not (lists_models(models) or is_offered(models)):
            cause = Cause("not-offered", "this server offers neither /health nor /v1/models")
            return Verdict("server", relation, "not measurable", f"HTTP {reply.status}", cause)
        return _answered("server", relation, models, lists_models(models))
    body = reply.json()
    if isinstance(body, dict) and not isinstance(body.get("status", {}), dict | list):
        words = sse.shown_words(str(body["status"]))
        well = HEALTHY.match(words) or not UNHEALTHY.search(words)
        healthy = reply.status == 200 and bool(well)
        return _answered("server", "/health: status is ok", reply, healthy, f"status {words!r}")
    # vLLM and SGLang answer with no body at all.
    return _answered("server", "/health: HTTP 200", reply, reply.status == 200)


def _props(reply: Reply) -> Verdict:
    relation = "/props: model path, n_ctx > 0, total_slots >= 1"
    body = reply.json()
    if not is_props(reply):
        cause = Cause("not-offered", "this server offers no /props")
        return Verdict("server", relation, "not measurable", f"HTTP {reply.status}", cause)
    if reply.status != 200:
        return _answered("server", relation, reply, False)
    if not body.get("model_path"):
        cause = Cause("not-offered", "this /props names no model: it is not llama.cpp's of today")
        return Verdict("server", relation, "not measurable", "no model_path", cause)
    try:
        props = check(Props, body, "/props")
    except ArtifactError as error:
        return _answered("server", relation, reply, False, str(error))
    shown = f"n_ctx {props.default_generation_settings.n_ctx}, slots {props.total_slots}"
    return _answered("server", relation, reply, True, shown)


def _answered(step: str, relation: str, reply: Reply, holds: bool, shown: str = "") -> Verdict:
    """A verdict on an answer, with its own words where it is no good one."""
    words = reply.body[:120].decode("utf-8", "replace").strip()
    numbers = shown or f"HTTP {reply.status}"
    cause = Cause("server-facts", shown or f"HTTP {reply.status}: {words}")
    return holds_if(step, relation, holds, numbers, cause)
