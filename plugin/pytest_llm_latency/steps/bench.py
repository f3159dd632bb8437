"""What every step measures with, and whether the plan can be carried out at all.

A step asks, waits and derives; whether the numbers are good is judged by its `judge.py`. Raises
StreamError where an answer cannot be used, ConfigError where the prompt does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import ConfigError
from ..evidence.endpoints import token_count
from ..evidence.recording import Recording, Reply
from ..plan import Messages, Plan, new_salt
from ..servers.capabilities import Capabilities
from ..wire.client import Client
from .answers import too_long_words, usable
from .asks import question
from .legs import Question
from .sentence.sentences import Rule
from .sentence.speech import WORDS_PER_MINUTE


@dataclass(frozen=True)
class Bench:
    """What every step works with. `progress` shows what is being done, `note(step, text)`
    keeps a remark, `keep_text(label, text)` keeps evidence beside the recordings.

    Prefill, cache and sentence are measured in at least so many `rounds`.
    `client` asks, `behind` is asked about the state of the server: the same, or the one behind
    the proxy that is measured. `offers` and `behind_offers` are what these two offer."""

    client: Client
    offers: Capabilities
    behind: Client
    behind_offers: Capabilities
    plan: Plan
    documents: Sequence[str]
    progress: Callable[[str], None]
    note: Callable[[str, str], None]
    keep_text: Callable[[str, str], None]
    sentence_rule: Rule = "plain"
    words_per_minute: float = WORDS_PER_MINUTE
    rounds: int = 1

    def question(self, step: str, leg: str, salt: str | None = None, times: int = 1) -> Question:
        """What a leg asks (see `asks.question`)."""
        found = question(step, leg, self.plan, self.documents, salt, times)
        assert found is not None, leg
        return found

    def record(
        self, step: str, leg: str, salt: str | None = None, times: int = 1, waits: bool = True
    ) -> Recording:
        """Stream one answer, whatever it is; `waits` for a limit of the server."""
        wanted = self.question(step, leg, salt, times)
        return self.client.record(
            wanted.messages, wanted.max_tokens, wanted.cache_prompt, label=f"{step}/{leg}",
            waits=waits,
        )  # fmt: skip

    def ask(self, step: str, leg: str, salt: str | None = None, times: int = 1) -> Recording:
        """Stream one answer that must be usable. Raises StreamError, ConfigError."""
        recording = self.record(step, leg, salt, times)
        usable(recording)
        return recording

    def context(self) -> int:
        """Tokens of context per slot by /props; 0 where it does not say."""
        path = self.behind_offers.props
        return context_size(self.behind.get(path)) if path is not None else 0

    def token_question(self, messages: Messages) -> dict[str, Any] | None:
        """What to ask /tokenize to have a chat prompt counted; None where the server offers no
        templates."""
        if not self.behind_offers.tokenize:
            return None
        prompt = self.behind.post("/apply-template", {"messages": messages}).json()
        if not isinstance(prompt, dict) or "prompt" not in prompt:
            return None
        return {"content": prompt["prompt"], "add_special": True, "parse_special": True}

    def count_tokens(self, messages: Messages) -> int | None:
        """The tokens of a chat prompt by the server's own count; None where it offers none."""
        question = self.token_question(messages)
        if question is None:
            return None
        return token_count(self.behind.post("/tokenize", question))


def check_plan(plan: Plan, documents: Sequence[str]) -> None:
    """Raise ConfigError where a plan cannot be carried out."""
    counts = plan.doc_counts
    if len(counts) < 2 or any(a >= b for a, b in pairwise(counts)) or counts[0] < 0:
        raise ConfigError(f"llm_plan: doc_counts {counts} must be two or more, ascending")
    if counts[-1] > len(documents):
        raise ConfigError(
            f"llm_plan: doc_counts {counts} asks for more than the {len(documents)} documents of "
            "the knowledge base"
        )
    for name, value in vars(plan).items():
        if name.endswith(("max_tokens", "_runs")) and value < 1:
            raise ConfigError(f"llm_plan: {name} is {value}; it must be at least 1")
    if not plan.cancel_close_at_ms > 0:
        raise ConfigError(
            f"llm_plan: cancel_close_at_ms is {plan.cancel_close_at_ms:g}; it must be above 0"
        )


def check_context(bench: Bench) -> None:
    """Raise ConfigError if the longest prompt of the lab does not fit. Silent where the
    server offers no way to count."""
    context = bench.context()
    if not context:
        return
    plan = bench.plan
    longest = plan.with_documents(
        bench.documents, new_salt(), before=plan.changed_line, after=plan.changed_line
    )
    tokens = bench.count_tokens(longest)
    if tokens is not None and tokens + plan.kb_max_tokens > context:
        raise ConfigError(
            too_long_words(
                f"the longest prompt (with {len(bench.documents)} documents and "
                f"{plan.kb_max_tokens} tokens to answer)",
                tokens + plan.kb_max_tokens,
                context,
            )
        )


def context_size(props: Reply) -> int:
    """Tokens of context per slot by /props; 0 where it does not say."""
    body = props.json()
    try:
        return int(body["default_generation_settings"]["n_ctx"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0
