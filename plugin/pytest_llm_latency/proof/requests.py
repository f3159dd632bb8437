"""Each request of a run against the one that its leg sends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .. import sse
from ..evidence.recording import Request
from ..evidence.run_index import RUN_FILE
from ..evidence.timeline import answer_limit
from ..look import CAPABILITIES
from ..plan import Messages, Plan, salt_of
from ..steps.asks import is_salted, question
from ..steps.cache.result import CACHE_LOOK
from ..steps.cancel.asks import LONGER_ANSWERS
from ..steps.cancel.legs import CANCEL_METRICS, CANCEL_SLOTS, CANCEL_TOKENS, CANCEL_TWO
from ..steps.legs import UPSTREAM
from ..wire.dialect import Asking, Dialect, told_by
from .evidence import Evidence, Run, file_of, is_masked, lab_step
from .prompts import believed, documents_of, is_chat

_STARS = re.compile(r"\*{8,}")


def problem(evidence: Evidence, step: str) -> str | None:
    """What the first request that the step does not send is."""
    run, name = evidence.run(step), lab_step(step)
    legs = evidence.recordings(step)
    plan = run.plan or believed(name, legs)
    dialect = run.dialect(behind=step != name)
    for leg, recording in sorted(legs.items()):
        found = _plain(name, leg, run, behind=step != name)
        if found is None:
            words = _chat(evidence, step, leg, recording.request, plan, run, dialect)
        else:
            words = _asked_plainly(recording.request, *found)
        if words is not None:
            return f"{file_of(step, leg)}: {words}"
    if name == CAPABILITIES:
        return _of_look(evidence, step, dialect, run)
    return _to_one_server(evidence, step)


# --- plain questions ---


def _plain(step: str, leg: str, run: Run, behind: bool) -> tuple[str, str | None] | None:
    """(method, path; None: not known) of a leg that is no chat; None: it is one."""
    offers, state = run.offers(behind), run.offers(behind=True)
    if step == "server":
        places = {"health": "/health", "props": offers.get("props") or "/props"}
        models = None if offers.get("api_path") is None else f"{offers['api_path']}/models"
        return "GET", places.get(leg, models)
    if (step == "cache" and leg.startswith(f"{CACHE_LOOK}-")) or (step, leg) == (
        "cancel",
        CANCEL_SLOTS,
    ):
        return "GET", (state.get("slots") or "/slots") if state else None
    if (step, leg) == ("cancel", CANCEL_METRICS):
        return "GET", state.get("metrics")
    return ("POST", "/tokenize") if (step, leg) == ("cancel", CANCEL_TOKENS) else None


def _asked_plainly(request: Request, method: str, path: str | None) -> str | None:
    if request.method != method:
        return f"the method is {request.method!r}, expected {method!r}, because the leg asks so"
    if path is not None and request.path != path:
        return (
            f"the path is {request.path!r}, expected {path!r}, because {RUN_FILE} says that the "
            "server offers it there"
        )
    return None


# --- chats ---


def _chat(
    evidence: Evidence,
    step: str,
    leg: str,
    request: Request,
    plan: Plan,
    run: Run,
    dialect: Dialect | None,
) -> str | None:
    name = lab_step(step)
    if request.method != "POST":
        return f"the method is {request.method!r}, expected 'POST', because a chat is posted"
    messages = request.body.get("messages")
    if not is_chat(messages):
        return "it has no messages of role and text, which every request of this step has"
    salt = salt_of(messages)
    if (salt is not None) != is_salted(name, leg):
        shown = "no salt" if salt is None else f"the salt {salt}"
        return f"its prompt has {shown}, expected the contrary, because of the leg's name"
    documents, times = documents_of(evidence, step, leg, messages, plan, run)
    if (name, leg) == ("cancel", CANCEL_TWO[0]):
        limit, least = answer_limit(request.body), 1 if dialect is None else dialect.min_tokens
        factors = LONGER_ANSWERS[:2]
        fitting = [n for n in factors if max(n * plan.cancel_max_tokens, least) == limit]
        if not fitting:
            return f"max_tokens is {limit}, which the step does not ask for"
        times = fitting[0]
    wanted = question(name, leg, plan, documents, salt, times)
    if wanted is None:
        return f"the step {name!r} has no leg of this name"
    if dialect is None:  # of before it was kept
        return _differing({"messages": messages}, {"messages": wanted.messages}, name)
    if dialect.api_path is not None and request.path != dialect.api_path + sse.CHAT:
        return (
            f"the path is {request.path!r}, expected {dialect.api_path + sse.CHAT!r}, because "
            f"{RUN_FILE} says that the server's API lies there"
        )
    if name == CAPABILITIES:
        return None  # how it is asked is found out there
    return _differing(request.body, dialect.body(wanted.body()), name, dialect.extra)


def _differing(
    found: Mapping[str, Any],
    expected: Mapping[str, Any],
    step: str,
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> str | None:
    """Where a request differs. A secret, which is starred, may stand in `extra` and in texts."""
    because = f"the step {step!r} asks so"
    for key in dict.fromkeys([*expected, *found]):
        if key not in found:
            return f"it lacks {key!r}, expected {_shown(expected[key])}, because {because}"
        if key not in expected:
            return f"it has {key!r}, expected none, because {because}, and {RUN_FILE} adds none"
        one, other = found[key], expected[key]
        if key == "messages":
            words = _differing_messages(one, other)
            if words is not None:
                return f"{words}, because {because}"
        elif key == "model" and isinstance(one, str) and sse.shown_words(one) == other:
            continue  # run.json has a long name in short
        elif key in extra and is_masked(_shown(one)):
            continue
        elif _shown(one) != _shown(other):
            return f"{key} is {_shown(one)[:60]}, expected {_shown(other)[:60]}, because {because}"
    return None


def _shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _differing_messages(found: Messages, expected: Messages) -> str | None:
    if len(found) != len(expected):
        return f"it has {len(found)} messages, expected {len(expected)}"
    for number, (one, other) in enumerate(zip(found, expected)):
        if one == other or _is_starred(one, other):
            continue
        if set(one) != set(other) or one["role"] != other["role"]:
            return f"messages[{number}] has {_shown(one)[:60]}, expected {_shown(other)[:60]}"
        text, wanted = one["content"], other["content"]
        at = next(
            (i for i, (a, b) in enumerate(zip(text, wanted)) if a != b),
            min(len(text), len(wanted)),
        )
        begin = max(at - 20, 0)
        return (
            f"messages[{number}] has ...{text[begin : at + 20]!r} at character {at}, expected "
            f"...{wanted[begin : at + 20]!r}"
        )
    return None


def _is_starred(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether two messages differ by nothing but stars in place of as many characters."""
    text = found.get("content")
    if {**found, "content": ""} != {**expected, "content": ""} or not isinstance(text, str):
        return False
    parts = _STARS.split(text)
    pattern = f".{{1,{len(text)}}}"
    wanted = str(expected["content"])
    starred = re.compile(pattern.join(map(re.escape, parts)), re.S)
    return len(parts) > 1 and starred.fullmatch(wanted) is not None


def _to_one_server(evidence: Evidence, step: str) -> str | None:
    """All chats of a step go to one place, and to one model."""
    first: tuple[str, Any] | None = None
    for leg, recording in sorted(evidence.recordings(step).items()):
        request = recording.request
        if "messages" not in request.body:
            continue
        found = (request.path, request.body.get("model"))
        if first is not None and found != first:
            return (
                f"{file_of(step, leg)}: asks {found}, expected {first}, because the legs before it "
                "do"
            )
        first = found
    return None


# --- the look at the server ---


def _of_look(evidence: Evidence, step: str, dialect: Dialect | None, run: Run) -> str | None:
    """The look asked again as refusals taught it, and what it then saw is what run.json says."""
    legs = evidence.recordings(step)
    if dialect is None or run.plan is None or not run.is_ours:
        return None
    offers = run.offers(behind=step.startswith(UPSTREAM))
    asking = Asking(Dialect(dialect.model, dialect.extra, api_path=dialect.api_path))
    goes_on = True
    while goes_on:
        number = asking.number
        where = file_of(step, f"stream-{number}")
        if f"stream-{number}" not in legs:
            return f"{where}: is missing, because the answer before it was a refusal"
        recording = legs[f"stream-{number}"]
        wanted = question(CAPABILITIES, f"stream-{number}", run.plan)
        assert wanted is not None
        body = asking.dialect.body(wanted.body())
        words = _differing(recording.request.body, body, CAPABILITIES, dialect.extra)
        if words is not None:
            return f"{where}: {words}"
        goes_on = asking.goes_on_after(recording)
    if len(legs) > number:
        return f"evidence/{step}: has {len(legs)} answers, expected {number}"
    told = {
        "refused_fields": list(asking.dialect.refused),
        "max_tokens_name": asking.dialect.max_tokens_name,
        "min_tokens": asking.dialect.min_tokens,
        "stream_error": None,
        "rate_limited": False,
        **told_by(recording),
    }
    before = {"min_tokens": 1, "rate_limited": False}  # what a run of before does not have
    for key, value in told.items():
        value = sse.shown_words(value) if isinstance(value, str) else value
        if offers.get(key, before.get(key)) != value:
            return (
                f"{RUN_FILE}: offers.{key} is {offers.get(key)!r}, expected {value!r}, because "
                f"{where} shows it"
            )
    return None
