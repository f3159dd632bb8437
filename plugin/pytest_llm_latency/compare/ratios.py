"""Numbers of one run to put beside those of another: of each step its ratio, in every round that
it was measured in, and what it depends on. Pure; compared in `baseline.py`.

A ratio of two times of one run travels between machines; milliseconds do not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..evidence.timeline import Timeline
from ..steps.cache.result import CacheResult
from ..steps.prefill.result import PrefillResult
from ..steps.sentence.result import SentenceResult
from ..steps.ttft.result import TtftResult

# What is compared between targets, by the file it stands in; the names are those of report.json
# where it has them.
FIGURES: Mapping[str, Mapping[str, Callable[[Any], float | None]]] = {
    "ttft.json": {
        "ttft_p50_ms": lambda ttft: ttft.ttft_p50,
        "total_p50_ms": lambda ttft: ttft.total_p50,
    },
    "prefill.json": {"ttft_12docs_ms": lambda rows: rows[-1].ttft_ms},
    "cache.json": {
        "cold_ttft_ms": lambda cache: cache.first.ttft_ms,
        "cache_ttft_ms": lambda cache: cache.second.ttft_ms,
    },
    "sentence.json": {
        "first_sentence_ms": lambda sentence: sentence.first_sentence_ms,
        "sentence_total_ms": lambda sentence: sentence.total_ms,
    },
    "cancel.json": {"cancel_idle_ms": lambda cancel: cancel.slot_idle_after_ms},
}

SMALLEST_MS = 0.001
# Of fewer generated tokens, what comes with the first one is too large a part.
DECODED_AT_LEAST = 8


@dataclass(frozen=True)
class Length:
    """How long what the ratio depends on was: the median of `tokens`, None where the server does
    not count them, and of `characters`, None where only a file is there."""

    what: str
    tokens: float | None
    characters: float | None


@dataclass(frozen=True)
class Ratio:
    """One number of a step, larger is worse. `rounds` has it by round; `resolution` is what the
    stamps' own error can make of it. It can be compared where `length`
    is about the same and `text`, unless it is empty, is the same."""

    name: str
    rounds: tuple[float, ...]
    resolution: float
    length: Length | None = None
    text: tuple[str, ...] = ()


def ttft_ratio(result: TtftResult) -> Ratio:
    """ttft / total of the runs; it depends on how long the answers are."""
    runs = result.ttft.runs
    return Ratio(
        "ttft / total",
        tuple(_over(run.ttft_ms, run.total_ms) for run in runs),
        _over(_late_ms(result.timelines), result.ttft.total_p50),
        Length(
            "answers",
            _median([run.tokens for run in runs]),
            _median([len(leg.text) for leg in result.timelines]),
        ),
    )


def cache_ratio(result: CacheResult) -> Ratio:
    """TTFT of the cached prompt over that of the cold one, by round."""
    first, second = result.cache.first, result.cache.second
    cold, cached = (result.legs.get(name, ()) for name in ("first", "second"))
    return Ratio(
        "cached / cold ttft",
        tuple(1.0 / ratio for ratio in result.ratios("first"))
        or (_over(second.ttft_ms, first.ttft_ms),),
        _over(_late_ms(cached), first.ttft_ms),
        _prompt_length(cold) if cold else Length("cold prompts", first.prompt_n, None),
    )


def prefill_ratio(result: PrefillResult) -> Ratio | str:
    """Milliseconds a prompt token, between the fewest documents and the most, over those a
    generated token, by round; or why there is none."""
    if not result.legs:
        return "the files alone do not say how long a token takes to generate"
    few, many = result.legs[min(result.legs)], result.legs[max(result.legs)]
    more = [_grown(short, long) for short, long in zip(few, many)]
    decode = list(map(_decode_ms, zip(*result.legs.values())))
    if any(tokens is None or tokens < 1 for tokens in more):
        return "the server does not count the tokens of the prompts"
    if any(ms is None for ms in decode):
        return (
            f"it takes answers of at least {DECODED_AT_LEAST} counted tokens to say how long one "
            "takes to generate"
        )
    beats_ms = [tokens * ms for tokens, ms in zip(more, decode) if tokens and ms]
    jitter_ms = result.jitter_ms
    return Ratio(
        "prompt / generated token",
        tuple(
            # What noise has turned round is as small as can be told.
            _over(max(_prefilled_ms(long) - _prefilled_ms(short), jitter_ms), beat_ms)
            for short, long, beat_ms in zip(few, many, beats_ms)
        ),
        _over(_late_ms([*few, *many]), statistics.median(beats_ms)),
        _prompt_length(many),
    )


def _prefilled_ms(leg: Timeline) -> float:
    return leg.prefilled_ms or 0.0


def sentence_ratio(result: SentenceResult) -> Ratio:
    """First sentence / total of the answers with the same text: another has another sentence."""
    sentence = result.sentence
    same = [one for one in result.rounds or (sentence,) if one.text == sentence.text]
    late_ms = _late_ms([result.timeline] if result.timeline is not None else [])
    return Ratio(
        "first sentence / total",
        tuple(_over(one.first_sentence_ms, one.total_ms) for one in same),
        _over(late_ms, sentence.total_ms),
        text=(sentence.first_sentence, sentence.text),
    )


RATIOS: Mapping[str, Callable[[Any], Ratio | str]] = {
    "ttft": ttft_ratio,
    "prefill": prefill_ratio,
    "cache": cache_ratio,
    "sentence": sentence_ratio,
}


def _over(numerator_ms: float, denominator_ms: float) -> float:
    """A ratio; a time of zero is as short as a stamp can tell."""
    return max(numerator_ms, SMALLEST_MS) / max(denominator_ms, SMALLEST_MS)


def _late_ms(legs: Sequence[Timeline]) -> float:
    """How late the stamps may be by the fault of this reader: the median."""
    late_ms = [leg.jitter_ms + (leg.cpu_wait_ms or 0.0) for leg in legs]
    return statistics.median(late_ms) if late_ms else 0.0


def _median(values: Sequence[int | None]) -> float | None:
    """The median where all are known, and there are any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def _prompt_tokens(leg: Timeline) -> int | None:
    """Of a cold prompt: where the server does not tell what was reused, all of it was processed."""
    return leg.prompt_total if leg.prompt_n is None else leg.prompt_n


def _prompt_length(legs: Sequence[Timeline]) -> Length:
    return Length(
        "cold prompts",
        _median([_prompt_tokens(leg) for leg in legs]),
        _median([len(leg.prompt) for leg in legs]),
    )


def _grown(short: Timeline, long: Timeline) -> int | None:
    """How many tokens more the long prompt has; None where they are not counted."""
    few, many = _prompt_tokens(short), _prompt_tokens(long)
    return many - few if few is not None and many is not None else None


def _decode_ms(legs: Sequence[Timeline]) -> float | None:
    """Milliseconds a generated token: the median of answers that are long enough; None: none is,
    or they came too close together to tell."""
    found = []
    for leg in legs:
        tokens = leg.tokens or 0
        if tokens < DECODED_AT_LEAST:
            continue
        if leg.predicted_ms is not None:
            found.append(leg.predicted_ms / tokens)
        elif leg.first_token_ms is not None and leg.total_ms is not None:
            found.append((leg.total_ms - leg.first_token_ms) / (tokens - 1))
    known = [ms for ms in found if ms > 0]
    return statistics.median(known) if known else None
