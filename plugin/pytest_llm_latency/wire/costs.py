"""What a run asks for: how many requests and tokens it will at least cost, and when to stop.

Estimates until the server has counted: a paid API's bill must not come as a surprise. It sends
nothing, and does not know what the requests are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import BudgetError
from ..evidence.derive import derive
from ..evidence.recording import Recording
from ..evidence.timeline import answer_limit

CHARACTERS_PER_TOKEN = 4
MESSAGE_TOKENS = 5  # of the chat template around each message


def estimate(messages: Sequence[Mapping[str, Any]]) -> int:
    """The tokens of a chat prompt, by its length."""
    characters = sum(len(str(message.get("content", ""))) for message in messages)
    return characters // CHARACTERS_PER_TOKEN + MESSAGE_TOKENS * len(messages)


class Costs:
    """What this run has asked for so far, all its `targets` together. `budget_tokens` None: no
    bound; `source` names it."""

    def __init__(self, budget_tokens: int | None, source: str, targets: int = 1) -> None:
        self._targets = targets
        self.requests = 0
        self.tokens = 0
        self._budget_tokens = budget_tokens
        self._source = source

    def check(self, requests: int, tokens: int) -> None:
        """Raise BudgetError where what is planned for each target goes beyond the budget."""
        requests, tokens = requests * self._targets, tokens * self._targets
        if self._budget_tokens is not None and tokens > self._budget_tokens:
            raise BudgetError(
                f"{self._source}: {self._budget_tokens:,} tokens are too few: the selected steps "
                f"ask for at least {tokens:,} in {requests} requests; select fewer (-k), give "
                "shorter documents (--llm-kb), or a larger budget"
            )

    def spend(self, body: Mapping[str, Any]) -> None:
        """Count a request that is about to be sent. Raises BudgetError beyond the budget."""
        tokens = _cost(body)
        if self._budget_tokens is not None and self.tokens + tokens > self._budget_tokens:
            raise BudgetError(
                f"{self._source}: stopped before a request of about {tokens:,} tokens: "
                f"{self.tokens:,} of {self._budget_tokens:,} are spent in {self.requests} requests"
            )
        self.requests += 1
        self.tokens += tokens

    def settle(self, recording: Recording) -> None:
        """Put the server's own count of a request in the place of the estimate."""
        self.tokens += of(recording) - _cost(recording.request.body)


def of(recording: Recording) -> int:
    """The tokens that a request cost, by the server's own count; the estimate where it gives
    none."""
    timeline = derive(recording)
    if timeline.prompt_total is not None and timeline.tokens is not None:
        return timeline.prompt_total + timeline.tokens
    return _cost(recording.request.body)


def _cost(body: Mapping[str, Any]) -> int:
    """All that a request asks for: its prompt, and what may be answered."""
    return estimate(body.get("messages", ())) + answer_limit(body)
