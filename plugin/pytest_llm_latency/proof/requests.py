"""Each request of a run against the one that its leg sends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from .. import asked, sse
from ..dialect import Dialect, after, guesses, told_by
from ..plan import Messages, Plan, salt_of
from ..recording import Recording, Request
from ..results import (
    CACHE_LOOK,
    CANCEL_METRICS,
    CANCEL_PREFILL,
    CANCEL_SLOTS,
    CANCEL_TOKENS,
    CANCEL_TWO,
    CAPABILITIES,
    LONGER,
    UPSTREAM,
)
from ..rundir import RUN_FILE
from ..timeline import answer_limit
from .evidence import Evidence, Run, file_of, lab_step

# What stands in a recording where a secret was: it cannot be compared.
MASKS = ("<secret>", "********")


def problem(evidence: Evidence, step: str) -> str | None:
    """What the first request that the step does not send is."""
    run, name = evidence.run(step), lab_step(step)
    legs = evidence.recordings(step)
    plan = run.plan or _believed(name, legs)
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
    if not _is_chat(messages):
        return "it has no messages of role and text, which every request of this step has"
    salt = salt_of(messages)
    if (salt is not None) != asked.is_salted(name, leg):
        shown = "no salt" if salt is None else f"the salt {salt}"
        return f"its prompt has {shown}, expected the contrary, because of the leg's name"
    documents, times = _documents(evidence, step, leg, messages, plan, run)
    if (name, leg) == ("cancel", CANCEL_TWO[0]):
        times = answer_limit(request.body) // max(plan.cancel_max_tokens, 1)
        if times not in asked.LONGER_ANSWERS[:2]:
            return f"max_tokens is {answer_limit(request.body)}, which the step does not ask for"
    wanted = asked.question(name, leg, plan, documents, salt, times)
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
    return _differing(request.body, dialect.body(wanted.body()), name)


def _is_chat(messages: Any) -> TypeGuard[Messages]:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(
            isinstance(one, dict) and isinstance(one.get("content"), str) and "role" in one
            for one in messages
        )
    )


def _differing(found: Mapping[str, Any], expected: Mapping[str, Any], step: str) -> str | None:
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
        elif _shown(one) != _shown(other) and not any(mask in _shown(one) for mask in MASKS):
            return f"{key} is {_shown(one)[:60]}, expected {_shown(other)[:60]}, because {because}"
    return None


def _shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _differing_messages(found: Messages, expected: Messages) -> str | None:
    if len(found) != len(expected):
        return f"it has {len(found)} messages, expected {len(expected)}"
    for number, (one, other) in enumerate(zip(found, expected)):
        if one == other:
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


# --- documents ---


def _documents(
    evidence: Evidence, step: str, leg: str, messages: Messages, plan: Plan, run: Run
) -> tuple[Sequence[str], int]:
    """(the documents that the leg's prompt must have, how often). Those of one's own are not at
    hand: then they are what the longest prompt of the step has, and the shorter ones must be its
    beginning."""
    name, documents = lab_step(step), run.documents
    if name not in ("prefill", "cache", "cancel"):
        return (), 1
    content = messages[0]["content"]
    repeated = name == "cancel" or leg.startswith(LONGER)
    if documents is not None:
        times = content.count("\n\n".join(documents)) if repeated else 1
        return documents, max(times, 1)
    own = _behind_system(content, plan)
    if own is None:
        return (), 1
    longest = _longest(evidence, step, plan)
    if longest is None or (name == "prefill" and longest.startswith(own + "\n\n")):
        return (own,), 1
    return (longest,), max(content.count(longest), 1) if repeated else 1


def _behind_system(content: str, plan: Plan) -> str | None:
    """The documents in a system prompt, as one."""
    content = content.removeprefix(plan.changed_line)
    salt = salt_of([{"content": content}])
    system = plan.short(salt)[0]["content"]
    rest = content.removeprefix(system).removesuffix("\n\n" + plan.changed_line.strip())
    return rest[2:] if content.startswith(system) and rest.startswith("\n\n") else None


def _longest(evidence: Evidence, step: str, plan: Plan) -> str | None:
    """All documents, as the cache step has them, or (of its own prompts) the prefill step; None:
    neither was measured."""
    of_cache = step.replace(lab_step(step), "cache")
    for name in dict.fromkeys((of_cache, step)):
        if lab_step(name) == "cancel" or not evidence.has(name, step):
            continue
        contents = [
            recording.request.body["messages"][0]["content"]
            for leg, recording in evidence.known(name).items()
            if "messages" in recording.request.body and not leg.startswith(LONGER)
        ]
        found = [_behind_system(content, plan) or "" for content in contents]
        if any(found):
            return max(found, key=len)
    return None


# --- a plan that was not kept ---


def _believed(step: str, legs: Mapping[str, Recording]) -> Plan:
    """The plan by which the first request of each kind was made. Where it makes none, the lab's
    own, which it then does not fit."""
    plan = Plan()
    places = {
        "sse": ("stream-1", "system question max_tokens"),
        "ttft": ("1", "system question max_tokens"),
        "prefill": ("0docs-1", "system kb_question kb_max_tokens"),
        "sentence": ("stream-1", "sentence_system sentence_question sentence_max_tokens"),
        "cancel": ("close-at", "cancel_question cancel_max_tokens"),
    }
    if step == "cache":
        plan = _taken(plan, legs, "clearing-1", "system clearing_question clearing_max_tokens")
        return _taken(plan, legs, "first-1", "kb_question kb_max_tokens")
    if step == "cancel":
        plan = _taken(plan, legs, "next", "system question")
        plan = _taken(plan, legs, CANCEL_PREFILL, "kb_question kb_max_tokens")
    return _taken(plan, legs, *places[step]) if step in places else plan


def _taken(plan: Plan, legs: Mapping[str, Recording], leg: str, names: str) -> Plan:
    """The plan with what a leg asks in the fields of these names."""
    body = legs[leg].request.body if leg in legs else {}
    messages = body.get("messages")
    if not _is_chat(messages):
        return plan
    texts = {"question": messages[-1]["content"], "system": messages[0]["content"]}
    found: dict[str, Any] = {}
    for name in names.split():
        kind = name.rpartition("_")[2]
        found[name] = answer_limit(body) if kind == "tokens" else texts[kind]
    return replace(plan, **found)


# --- the look at the server ---


def _of_look(evidence: Evidence, step: str, dialect: Dialect | None, run: Run) -> str | None:
    """The look asked again as refusals taught it, and what it then saw is what run.json says."""
    legs = evidence.recordings(step)
    if dialect is None or run.plan is None or not run.is_ours:
        return None
    offers = run.offers(behind=step.startswith(UPSTREAM))
    speaking: Dialect | None = Dialect(dialect.model, dialect.extra, api_path=dialect.api_path)
    left, number = guesses(), 0
    while speaking is not None:
        number += 1
        where = file_of(step, f"stream-{number}")
        if f"stream-{number}" not in legs:
            return f"{where}: is missing, because the answer before it was a refusal"
        recording, last = legs[f"stream-{number}"], speaking
        wanted = asked.question(CAPABILITIES, f"stream-{number}", run.plan)
        assert wanted is not None
        words = _differing(recording.request.body, last.body(wanted.body()), CAPABILITIES)
        if words is not None:
            return f"{where}: {words}"
        speaking = after(last, recording, left)
    if len(legs) > number:
        return f"evidence/{step}: has {len(legs)} answers, expected {number}"
    told = {
        "refused_fields": list(last.refused),
        "max_tokens_name": last.max_tokens_name,
        "stream_error": None,
        **told_by(recording),
    }
    for key, value in told.items():
        if offers.get(key) != value:
            return (
                f"{RUN_FILE}: offers.{key} is {offers.get(key)!r}, expected {value!r}, because "
                f"{where} shows it"
            )
    return None
