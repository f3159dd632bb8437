"""What the prompts of a run must hold, where not the plan and the documents at hand say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from ..evidence.recording import Recording
from ..evidence.timeline import answer_limit
from ..plan import Messages, Plan, salt_of
from ..steps.cancel.legs import CANCEL_PREFILL
from ..steps.legs import LONGER
from .evidence import Evidence, Run, lab_step


def is_chat(messages: Any) -> TypeGuard[Messages]:
    """Whether these are messages as the steps send them: of role and text."""
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(
            isinstance(one, dict) and isinstance(one.get("content"), str) and "role" in one
            for one in messages
        )
    )


def documents_of(
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
            if is_chat(recording.request.body.get("messages")) and not leg.startswith(LONGER)
        ]
        found = [_behind_system(content, plan) or "" for content in contents]
        if any(found):
            return max(found, key=len)
    return None


# --- a plan that was not kept ---


def believed(step: str, legs: Mapping[str, Recording]) -> Plan:
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
    if not is_chat(messages):
        return plan
    texts = {"question": messages[-1]["content"], "system": messages[0]["content"]}
    found: dict[str, Any] = {}
    for name in names.split():
        kind = name.rpartition("_")[2]
        found[name] = answer_limit(body) if kind == "tokens" else texts[kind]
    return replace(plan, **found)
