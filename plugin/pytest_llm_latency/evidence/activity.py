"""What answers of `/slots`, or of `/metrics`, say: busy, idle, or why nothing. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import sse
from .artifacts import check
from .strictjson import load_json
from .timeline import LARGEST, count_in


@dataclass(frozen=True)
class Answer:
    """`busy`: slots that are processing, None if the answer does not say; then `missing`
    says why. `finished`: the slot of the latest task has no next token, so that its answer
    came to its own end; None: not said. `tokens`: what that slot holds, prompt and answer;
    None: not said. `field`: how the slots spell that they are processing. `task`: the number of
    the latest task that a slot worked on; None: not said. `working`: those of the busy slots, where
    the answer says them."""

    busy: int | None
    missing: str | None = None
    field: str | None = None
    finished: bool | None = None
    tokens: int | None = None
    task: int | None = None
    working: tuple[int, ...] = ()


# How many requests are being worked on, by llama.cpp's, vLLM's and SGLang's own names.
GAUGES = ("llamacpp:requests_processing", "vllm:num_requests_running", "sglang:num_running_reqs")
_GAUGE = re.compile(
    rf"^(?:{'|'.join(GAUGES)})(?:\{{[^\n]*\}})? +([0-9]+(?:\.[0-9]+)?)(?: [0-9]+)?\r?$",
    re.MULTILINE,
)
# What stands in place of an answer where one token was asked for instead: an answer to it means
# that a server which works on one request at a time is idle.
ONE_TOKEN = '"one token"'


def answer_of(status: int, body: bytes | str) -> Answer:
    """Read an answer of `/slots`, today's (`is_processing`) or an older one (`state`), or one of
    `/metrics` that has a gauge of running requests."""
    if status == 200:
        text = body if isinstance(body, str) else body.decode("utf-8", "replace")
        gauges = [float(match) for match in _GAUGE.findall(text)]
        if gauges:
            return Answer(round(min(sum(gauges), LARGEST)))
        if text == ONE_TOKEN:
            return Answer(0)
    value = sse.value_of(body)
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
        field="is_processing" if "is_processing" in latest else "state",
        finished=not has_next if isinstance(has_next, bool) else None,
        tokens=count_in(latest, "n_prompt_tokens"),
        task=count_in(latest, "id_task"),
        working=tuple(
            _number(slot["id_task"])
            for slot, is_busy in zip(value, states)
            if is_busy and "id_task" in slot
        ),
    )


def shown_answer(status: int, body: bytes) -> str:
    """An answer as evidence: of `/metrics`, which is long, only the gauges that count here."""
    text = body.decode("utf-8", "replace")
    gauges = [match.group() for match in _GAUGE.finditer(text)] if status == 200 else []
    return "\n".join(gauges) or text


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


@dataclass(frozen=True)
class Poll:
    """One question to `/slots` (or what stands for it); times in milliseconds from the close."""

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


def load_polls(text: str, where: str = "an answer of /slots") -> list[Poll]:
    """What `dump_polls` wrote. Raises ArtifactError, which names `where` and the line."""
    lines = enumerate(text.split("\n"), 1)
    places = [(f"{where}:{number}", line) for number, line in lines if line.strip()]
    return [check(Poll, load_json(line, place), place) for place, line in places]


def looks(polls: Sequence[Poll]) -> list[Poll]:
    """Those answered while the answer streamed: one under way at the close tells of neither."""
    return [poll for poll in polls if poll.answered_ms < 0]


def our_task(polls: Sequence[Poll]) -> int | None:
    """The number of our task, by the looks; None: not said, or others were at work, too."""
    working = {task for poll in looks(polls) for task in poll.answer.working}
    return working.pop() if len(working) == 1 else None


def shows_others(polls: Sequence[Poll]) -> bool:
    """Whether `/slots` shows more than one task at work, at once or one after another: of ours
    there is one."""
    return len({task for poll in polls for task in poll.answer.working}) > 1


@dataclass(frozen=True)
class Idle:
    """When a slot was first seen idle, ms from the close, and how much earlier it may have
    become so: the time since it was last seen busy, or since the close."""

    idle_after_ms: float | None
    resolution_ms: float | None


def tokens_after(polls: Sequence[Poll]) -> int | None:
    """Tokens that the slot took on between the first answer of `/slots` after the close and the
    first that shows it idle (the last of all where none does); what was on its way at the close
    is so left out. None: not said."""
    asked = [poll for poll in polls if poll.asked_ms >= 0]
    idle = next((poll for poll in asked if poll.busy is False), None)
    if idle is None and len(asked) < 2:
        return None
    first, last = asked[0].answer, (idle or asked[-1]).answer
    if last.tokens is None or first.tokens is None:
        return None
    return max(last.tokens - first.tokens, 0)


def batches_after(polls: Sequence[Poll], moment_ms: float) -> int:
    """How many ends of a batch the answers after `moment_ms` show: what the busy slot holds
    grows from one batch to the next."""
    held = {
        poll.answer.tokens
        for poll in polls
        if poll.asked_ms >= moment_ms and poll.busy and poll.answer.tokens is not None
    }
    return max(len(held) - 1, 0)


def slots_state(polls: Sequence[Poll]) -> Idle:
    """When the polls first saw no slot busy."""
    last_busy_ms = 0.0
    for poll in polls:
        if poll.busy is False:
            return Idle(poll.answered_ms, round(poll.answered_ms - last_busy_ms, 3))
        if poll.busy:
            last_busy_ms = poll.asked_ms
    return Idle(None, None)
