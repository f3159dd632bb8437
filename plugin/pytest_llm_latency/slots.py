"""What answers of `/slots` say: busy, idle, or why nothing. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import sse


@dataclass(frozen=True)
class Answer:
    """`busy`: slots that are processing, None if the answer does not say; then `missing`
    says why. `finished`: the slot of the latest task has no next token, so that its answer
    came to its own end; None: not said. `tokens`: what that slot holds, prompt and answer;
    `decoded`: of them, generated while it is busy; None: not said."""

    busy: int | None
    missing: str | None = None
    finished: bool | None = None
    tokens: int | None = None
    decoded: int | None = None


def answer_of(status: int, body: bytes | str) -> Answer:
    """Read an answer of `/slots`, today's (`is_processing`) or an older one (`state`)."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if status != 200:
        words = (sse.error_words(value) if isinstance(value, dict) else None) or ""
        return Answer(None, f"the server offers no /slots: HTTP {status} {words}".rstrip())
    if not isinstance(value, list) or not value:
        return Answer(None, "the server offers no /slots: the answer is no list of slots")
    states = [_is_busy(slot) for slot in value]
    if None in states:
        return Answer(None, "the slots of /slots have neither is_processing nor state")
    latest = max(value, key=lambda slot: _number(slot.get("id_task")))
    token = _next_token(latest)
    has_next = token.get("has_next_token")
    return Answer(
        sum(map(bool, states)),
        finished=not has_next if isinstance(has_next, bool) else None,
        tokens=_count(latest.get("n_prompt_tokens")),
        decoded=_count(token.get("n_decoded")),
    )


def _is_busy(slot: Any) -> bool | None:
    if not isinstance(slot, dict):
        return None
    if isinstance(slot.get("is_processing"), bool):
        return bool(slot["is_processing"])
    return slot["state"] != 0 if isinstance(slot.get("state"), int) else None


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _next_token(slot: dict[str, Any]) -> dict[str, Any]:
    """What a slot says of its next token, in a list or not; empty where it does not."""
    token = slot.get("next_token")
    if isinstance(token, list) and token:
        token = token[0]
    return token if isinstance(token, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Poll:
    """One question to `/slots`; times in milliseconds from the close."""

    asked_ms: float
    answered_ms: float
    status: int
    body: str

    @property
    def answer(self) -> Answer:
        """What the answer says."""
        return answer_of(self.status, self.body)

    @property
    def busy(self) -> bool | None:
        """Whether a slot is processing, None if the answer does not say."""
        busy = self.answer.busy
        return None if busy is None else busy > 0


def dump_polls(polls: Sequence[Poll]) -> str:
    """The evidence file of some polls: JSON Lines."""
    return "".join(json.dumps(asdict(poll)) + "\n" for poll in polls)


def load_polls(text: str) -> list[Poll]:
    """What `dump_polls` wrote. Raises ValueError, TypeError."""
    return [Poll(**json.loads(line)) for line in text.split("\n") if line.strip()]


@dataclass(frozen=True)
class Idle:
    """When a slot was first seen idle, ms from the close, and how much earlier it may have
    become so: the time since it was last seen busy, or since the close."""

    idle_after_ms: float | None
    resolution_ms: float | None


def generated(polls: Sequence[Poll]) -> int | None:
    """Tokens that the answer had when its slot was first seen idle: what the slot then holds,
    the prompt taken off, which an answer of `/slots` in generation gives. None: not said."""
    prompt = None
    for poll in polls:
        answer = poll.answer
        if answer.tokens is None:
            continue
        if answer.busy and answer.decoded:
            prompt = answer.tokens - answer.decoded
        elif answer.busy == 0 and poll.asked_ms >= 0:
            return answer.tokens - prompt if prompt is not None else None
    return None


def slots_state(polls: Sequence[Poll]) -> Idle:
    """When the polls first saw no slot busy."""
    last_busy_ms = 0.0
    for poll in polls:
        if poll.busy is False:
            return Idle(poll.answered_ms, round(poll.answered_ms - last_busy_ms, 3))
        if poll.busy:
            last_busy_ms = poll.asked_ms
    return Idle(None, None)
