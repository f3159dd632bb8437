"""What a recording says: pieces, their moments, counts and times, as one timeline. Pure.

The numbers are derived in `derive.py`; nothing is compared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import sse

# Of prose in the languages that tokenizers know best 4 to 6; no prose has so many on an average.
CHARACTERS_A_TOKEN = 4
COLD_SHARE = 0.9
# What a chat template puts before every prompt (Llama 3's has dates), in whole blocks of a cache.
HEADER_TOKENS_AT_MOST = 64
COUNTS_AGREE_SHARE = 0.02
# Where servers say how many tokens of the prompt came from a cache: OpenAI's, vLLM's and SGLang's
# place; Moonshot's (Kimi); DeepSeek's; Anthropic's, as LiteLLM passes it on.
_CACHED_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_INPUT_NAMES = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
CACHED_NAMES = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk's text and the moment of the read that completed its event; `size_bytes` is what the
    event takes on the wire at least, 0: not known."""

    t_ms: float
    text: str
    size_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Timeline:
    """One answer, derived. Times are milliseconds from just before the request was sent.

    `token_ms` are the moments of deltas of any channel (reasoning, tool call, answer);
    `contents` are the pieces of text as they were sent, `pieces` those of the answer: without the
    reasoning that a model writes into its text between tags (`thought_tag`, None: it does not).
    `reasoning_field` is the name under which reasoning came, None: none did. `repeats`: every
    delta held all text so far. `unended` is the start of the last event, which no blank line
    ended; `no_blank_lines`: none did. `clock_off_ms`: how far another clock of the system
    disagreed with ours over this request, 0: it did not. `limited`: what to tell of a limit
    that refused the request, None: none did.
    `timings` and `usage` are the last the server sent, empty if none. `error` is the server's
    words for a failure, or ours for bytes that are no answer. `total_ms` is the last read (the one
    with `[DONE]`, where it came); None: nothing came. `connect_ms` is what opening the connection
    took before all that. Times that are less than `jitter_ms` apart
    are the same as far as this reader can say; `cpu_wait_ms` is how long it had to wait for a
    core. `prompt` is what was asked, as text; `prompt_characters` how long its text is (an image
    is none, and of the same character many times in a row only some count).
    """

    pieces: tuple[Piece, ...] = ()
    contents: tuple[Piece, ...] = field(default=(), repr=False)
    token_ms: tuple[float, ...] = field(default=(), repr=False)
    reasoning_field: str | None = None
    total_ms: float | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    done: bool = False
    closed_at_ms: float | None = None
    connect_ms: float | None = None
    error: str | None = None
    jitter_ms: float = 0.0
    cpu_wait_ms: float | None = None
    prompt: str = field(default="", repr=False)
    prompt_characters: int = 0
    thought_tag: str | None = None
    repeats: bool = False
    clock_off_ms: float = 0.0
    unended: str | None = None
    no_blank_lines: bool = False
    limited: str | None = None

    @property
    def sent(self) -> tuple[Piece, ...]:
        """All text as it was sent, reasoning between tags included."""
        return self.contents or self.pieces

    @property
    def first_token_ms(self) -> float | None:
        """The first token of any channel; None where there is none."""
        return self.token_ms[0] if self.token_ms else None

    @property
    def reasoning(self) -> str | None:
        """The field in which reasoning came, or the tag in the text; "hidden" where only counts
        tell of it; None: none."""
        if self.reasoning_field is not None:
            return self.reasoning_field
        if self.thought_tag is not None:
            return f"{self.thought_tag} in the text"
        details = sse.mapping(self.usage, "completion_tokens_details")
        counted = any(count_in(one, "reasoning_tokens") for one in (details, self.usage))
        silent = not self.pieces and bool(self.tokens) and self.finish_reason == "length"
        return "hidden" if counted or silent else None

    @property
    def ttft_ms(self) -> float | None:
        """The moment of the first piece with text; None where there is none."""
        return self.pieces[0].t_ms if self.pieces else None

    @property
    def prefilled_ms(self) -> float | None:
        """When the prompt was done with: the first token of any channel, since reasoning is
        generated, too; None where nothing came."""
        return self.ttft_ms if self.first_token_ms is None else self.first_token_ms

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def arrivals(self) -> tuple[tuple[Piece, ...], ...]:
        """The text by what became readable together: no more than `jitter_ms` apart."""
        groups: list[list[Piece]] = []
        for piece in self.sent:
            if groups and piece.t_ms - groups[-1][-1].t_ms <= self.jitter_ms:
                groups[-1].append(piece)
            else:
                groups.append([piece])
        return tuple(map(tuple, groups))

    @property
    def _cached_tokens(self) -> int | None:
        for name in _CACHED_DETAILS:
            counted = count_in(sse.mapping(self.usage, name), "cached_tokens")
            if counted is not None:
                return counted
        told = (count_in(self.usage, name) for name in CACHED_NAMES)
        return next((counted for counted in told if counted is not None), None)

    @property
    def _counts(self) -> tuple[int | None, int | None, int | None]:
        """(all, processed now, reused) prompt tokens as the server says them. No prompt of a
        chat has none: a 0 is a field that is filled and not counted."""
        reused = count_in(self.timings, "cache_n")
        reused = self._cached_tokens if reused is None else reused
        processed = count_in(self.timings, "prompt_n")
        if processed == 0 and not reused:
            processed = reused = None
        return self._prompt_tokens, processed, reused

    @property
    def _prompt_tokens(self) -> int | None:
        """As OpenAI's API says them, else as Anthropic's, which leaves out what was cached."""
        told = count_in(self.usage, "prompt_tokens")
        if told is None:
            counts = [count_in(self.usage, name) for name in _INPUT_NAMES]
            told = sum(filter(None, counts)) if counts[0] is not None else None
        return told or None

    @property
    def counts_conflict(self) -> str | None:
        """How the server's counts of the prompt contradict each other; None: they do not."""
        total, processed, reused = self._counts
        pairs = []
        if total is not None and processed is not None and reused is not None:
            pairs.append(("prompt_n + cache_n", processed + reused, "prompt_tokens", total))
        if self._cached_tokens is not None and reused is not None:
            pairs.append(("cached_tokens", self._cached_tokens, "cache_n", reused))
        for name, one, other_name, other in pairs:
            if abs(one - other) > COUNTS_AGREE_SHARE * max(one, other, 100):
                return f"{name} = {one}, {other_name} = {other}"
        if total is not None and reused is not None and reused > total:
            return f"{reused} of {total} prompt tokens were reused"
        return None

    @property
    def prompt_total(self) -> int | None:
        """All tokens of the prompt, reused or not; None where the server does not say, or
        contradicts itself."""
        total, processed, reused = self._counts
        if self.counts_conflict is not None:
            return None
        if total is None and processed is not None and reused is not None:
            total = processed + reused
        return total

    @property
    def cache_n(self) -> int | None:
        """Prompt tokens reused from the cache; None as in `prompt_total`."""
        return None if self.counts_conflict is not None else self._counts[2]

    @property
    def prompt_n(self) -> int | None:
        """Prompt tokens processed for this request, reused ones excluded; None as in
        `prompt_total`."""
        if self.counts_conflict is not None:
            return None
        total, processed, reused = self._counts
        if processed is None and total is not None and reused is not None:
            processed = total - reused
        return processed

    @property
    def cold(self) -> bool | None:
        """Whether at least nine tenths of the prompt were processed now; None: not said.

        Not all of it: the chat template's own header may be reused under any prompt.
        """
        if self.prompt_n is None or self.prompt_total is None:
            return None
        return self.prompt_n >= COLD_SHARE * self.prompt_total

    @property
    def warm(self) -> bool:
        """Whether it is known that more was reused than a header that all prompts share; of a
        short one that is more than a tenth."""
        if self.prompt_n is None or self.prompt_total is None or self.cold is not False:
            return False
        reused = self.prompt_total - self.prompt_n
        return reused > min(HEADER_TOKENS_AT_MOST, self.prompt_total / 2)

    @property
    def prompt_ms(self) -> float | None:
        """The server's own prompt processing time; None where it does not say."""
        return _time(self.timings, "prompt_ms")

    @property
    def tokens(self) -> int | None:
        """Generated tokens by the server's count, never by counting pieces; None: not said."""
        predicted = count_in(self.timings, "predicted_n")
        names = ("completion_tokens", "output_tokens")
        told = (predicted, *(count_in(self.usage, name) for name in names))
        return next((counted for counted in told if counted is not None), None)

    @property
    def predicted_ms(self) -> float | None:
        """The server's own generation time; None where it does not say."""
        return _time(self.timings, "predicted_ms")

    @property
    def drafted(self) -> bool:
        """Whether tokens were drafted (speculative decoding), and so made several at a time."""
        return bool(count_in(self.timings, "draft_n"))

    @property
    def cut_short(self) -> bool:
        """The stream ended, not by us, with neither `[DONE]` nor a finish reason."""
        return not self.done and self.finish_reason is None and self.closed_at_ms is None


LARGEST = 2**53  # a number beyond is no count and no time, and no float holds it exactly


def count_in(mapping: Mapping[str, Any], key: str) -> int | None:
    """The count of that name in a server's answer; None where there is none."""
    value = mapping.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < LARGEST else None


def answer_limit(body: Mapping[str, Any]) -> int:
    """How many tokens a chat request lets be generated; 0 where it does not say."""
    return count_in(body, "max_tokens") or count_in(body, "max_completion_tokens") or 0


def _time(mapping: Mapping[str, Any], key: str) -> float | None:
    value = mapping.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < LARGEST else None
