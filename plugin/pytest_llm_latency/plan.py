"""What the lab asks: prompts, token limits, the moment of the close. Overridable by users."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from . import sse

Messages = list[dict[str, str]]
REASONING_TOKENS = 1024

_SALT = re.compile(r"Call ([0-9a-f]{16})")


@dataclass(frozen=True)
class Plan:
    """The questions of the eight steps; the defaults are the lab's, to the letter.

    Override the fixture `llm_plan` with `dataclasses.replace(Plan(), question=...)` to ask
    your own. `doc_counts` are the numbers of documents of the prefill step, ascending.
    """

    system: str = sse.MESSAGES[0]["content"]
    question: str = sse.MESSAGES[1]["content"]
    max_tokens: int = 64
    ttft_runs: int = 5
    kb_question: str = "When is the clinic open on Saturday?"
    kb_max_tokens: int = 32
    doc_counts: tuple[int, ...] = (0, 4, 12)
    clearing_question: str = "hi"
    clearing_max_tokens: int = 8
    changed_line: str = "Current time: 14:05. "
    sentence_system: str = (
        "You are a clinic phone assistant. Answer in exactly three short sentences."
    )
    sentence_question: str = "How do I prepare for a fasting blood test?"
    sentence_max_tokens: int = 120
    cancel_question: str = "List the numbers from 1 to 300, separated by commas."
    cancel_max_tokens: int = 256
    cancel_close_at_ms: float = 500.0

    def with_room_for_reasoning(self) -> Plan:
        """The plan for a model that reasons before it answers: what it may generate in every
        request that needs an answer is enlarged."""
        more = {
            name: value + REASONING_TOKENS
            for name, value in vars(self).items()
            if name.endswith("max_tokens") and name != "cancel_max_tokens"
        }
        return replace(self, **more)

    def short(self, salt: str | None = None) -> Messages:
        """The question of steps 2 and 3."""
        return _chat(_salted(self.system, salt), self.question)

    def with_documents(
        self,
        documents: Sequence[str],
        salt: str | None = None,
        *,
        before: str = "",
        after: str = "",
    ) -> Messages:
        """The question of steps 4 and 5: `before`, salt, system prompt, documents, `after`."""
        system = "\n\n".join([_salted(self.system, salt), *documents])
        return _chat(before + system + after, self.kb_question)

    def clearing(self) -> Messages:
        """The short other request that takes the slot from a long prompt."""
        return _chat(self.system, self.clearing_question)

    def sentence(self) -> Messages:
        """The question of step 6."""
        return _chat(self.sentence_system, self.sentence_question)

    def cancel(self) -> Messages:
        """The question of step 7: an answer that surely takes long."""
        return [{"role": "user", "content": self.cancel_question}]


def new_salt() -> str:
    """Sixteen characters that no earlier prompt had."""
    return secrets.token_hex(8)


def salt_of(messages: Sequence[Mapping[str, str]]) -> str | None:
    """The salt that a prompt of ours carries; None: none."""
    match = _SALT.search(messages[0].get("content", "")) if messages else None
    return match.group(1) if match is not None else None


def _salted(system: str, salt: str | None) -> str:
    return system if salt is None else f"Call {salt}.\n{system}"


def _chat(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]
