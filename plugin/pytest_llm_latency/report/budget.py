"""Where the time until the first sentence goes, and what would save some of it. Pure.

Everything is arithmetic on one run's own numbers; nothing is judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..evidence.timeline import Timeline
from ..steps.cache.result import CacheResult
from ..steps.prefill.fit import fit
from ..steps.prefill.result import PrefillResult
from ..steps.sentence.result import SentenceResult, first_sentence
from ..steps.sentence.sentences import Rule

Phase = Literal["connect", "prefill", "first token", "reasoning", "first sentence", "rest"]
PHASES: tuple[Phase, ...] = (
    "connect",
    "prefill",
    "first token",
    "reasoning",
    "first sentence",
    "rest",
)
PROMPT_TOKENS = (1_000, 4_000, 8_000)


@dataclass(frozen=True)
class Part:
    """A stretch of a request's time, from `start_ms` (0: the request is sent; a connection is
    opened before that) to `end_ms`."""

    phase: Phase
    start_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        return self.end_ms - self.start_ms


@dataclass(frozen=True)
class Budget:
    """One request from its connection to its end, cut into parts without gaps. Where the server
    does not say how long it worked on the prompt (`prefill_known` is false), "prefill" is all
    until the first token."""

    name: str
    parts: tuple[Part, ...]
    prefill_known: bool

    def ms(self, phase: Phase) -> float:
        """How long a phase took; 0 where the request had none."""
        return sum((part.ms for part in self.parts if part.phase == phase), 0.0)

    @property
    def first_sentence_ms(self) -> float:
        """From the request to the moment when a voice can begin."""
        return next(part.end_ms for part in self.parts if part.phase == "first sentence")


def budget(name: str, timeline: Timeline, rule: Rule = "plain") -> Budget | None:
    """The parts of a whole answer; None where it has no text."""
    if timeline.ttft_ms is None or timeline.total_ms is None or timeline.first_token_ms is None:
        return None
    token_ms, ttft_ms = timeline.first_token_ms, timeline.ttft_ms
    prompt_ms = timeline.prompt_ms
    # A server's clock that disagrees with ours is judged elsewhere; here it must not overlap.
    prefill_ms = token_ms if prompt_ms is None else min(prompt_ms, token_ms)
    _, sentence_ms = first_sentence(timeline.pieces, rule)
    ends: tuple[tuple[Phase, float], ...] = (
        ("prefill", prefill_ms),
        ("first token", token_ms),
        ("reasoning", ttft_ms),
        ("first sentence", sentence_ms),
        ("rest", timeline.total_ms),
    )
    parts = []
    if timeline.connect_ms is not None:
        parts.append(Part("connect", -timeline.connect_ms, 0.0))
    start_ms = 0.0
    for phase, end_ms in ends:
        if end_ms > start_ms or phase == "first sentence":
            parts.append(Part(phase, start_ms, max(start_ms, end_ms)))
            start_ms = max(start_ms, end_ms)
    return Budget(name, tuple(parts), prompt_ms is not None)


def budgets(
    sentence: SentenceResult | None, cache: CacheResult | None, rule: Rule = "plain"
) -> list[Budget]:
    """Of the answer in sentences, and of the long prompt cold and cached; those that are there,
    and have recordings."""
    found = []
    if sentence is not None and sentence.timeline is not None:
        found.append(budget("short prompt", sentence.timeline, rule))
    if cache is not None and cache.legs:
        for leg, name in (
            ("first", "all documents, cold"),
            ("second", "all documents, again"),
        ):
            found.append(budget(name, _typical(cache.legs[leg]), rule))
    return [one for one in found if one is not None]


def _typical(rounds: Sequence[Timeline]) -> Timeline:
    """The round with the median time to first text."""
    return sorted(rounds, key=lambda leg: leg.ttft_ms or 0.0)[(len(rounds) - 1) // 2]


@dataclass(frozen=True)
class Lever:
    """Something that would let `what` (the first text, the first sentence) come sooner, by this
    run's numbers."""

    name: str
    what: Literal["first text", "first sentence"]
    before_ms: float
    after_ms: float

    @property
    def saves_ms(self) -> float:
        return self.before_ms - self.after_ms


def levers(
    cache: CacheResult | None, prefill: PrefillResult | None, sentence: SentenceResult | None
) -> list[Lever]:
    """What this run has measured of the ways to a sooner voice, the most saved first; what would
    save nothing is left out."""
    found: list[Lever] = []
    if cache is not None:
        legs = cache.cache
        found.append(
            Lever(
                "the prompt is in the cache", "first text", legs.first.ttft_ms, legs.second.ttft_ms
            )
        )
        if legs.changed_suffix is not None:
            found.append(
                Lever(
                    "what changes stands at the end of the prompt, not at its front",
                    "first text",
                    legs.changed_prefix.ttft_ms,
                    legs.changed_suffix.ttft_ms,
                )
            )
    if prefill is not None:
        line, longest = fit(prefill), prefill.rows[-1]
        if line is not None and longest.prompt_n is not None:
            found.append(
                Lever(
                    "the long prompt is half as long",
                    "first text",
                    longest.ttft_ms,
                    longest.ttft_ms - line.ms_per_token * longest.prompt_n / 2,
                )
            )
    if sentence is not None:
        spoken = sentence.sentence
        found.append(
            Lever(
                "the first sentence is half as long",
                "first sentence",
                spoken.first_sentence_ms,
                (spoken.ttft_ms + spoken.first_sentence_ms) / 2,
            )
        )
    found = [lever for lever in found if lever.saves_ms > 0.0]
    return sorted(found, key=lambda lever: -lever.saves_ms)
