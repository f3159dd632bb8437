"""Would a voice that speaks the answer as it comes fall silent in the middle? Pure.

Each sentence's speaking time is set against the moment the next one is complete. It knows rates,
not voices, and judges nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...evidence.timeline import Piece
from .sentences import Rule, all_ends

# A rule of thumb: news is read at some 250 characters a minute in Chinese, at 150 words in English.
WORDS_PER_MINUTE = 150.0
CHARACTERS_A_WORD = 1.65
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


@dataclass(frozen=True)
class Speech:
    """An answer spoken at `words_per_minute` from its first sentence on. `underrun_ms` is the
    longest silence, before the sentence `underrun_sentence` (from 1; None: there is no silence);
    a voice that begins `start_delay_ms` later has none."""

    words_per_minute: float
    sentences: int
    underrun_ms: float
    underrun_sentence: int | None
    start_delay_ms: float

    def words(self) -> str:
        """For people."""
        begun = f"at {self.words_per_minute:g} words a minute a voice"
        if self.underrun_sentence is None:
            number = "1 sentence" if self.sentences == 1 else f"{self.sentences} sentences"
            return f"{begun} speaks {number} without a pause"
        return (
            f"{begun} falls silent for {self.underrun_ms:.0f} ms before sentence "
            f"{self.underrun_sentence} of {self.sentences}; beginning {self.start_delay_ms:.0f} ms "
            "later, it would not"
        )


@dataclass(frozen=True)
class Utterance:
    """One sentence as it is spoken: complete at `ready_ms`, spoken from `start_ms` to `end_ms`."""

    text: str
    ready_ms: float
    start_ms: float
    end_ms: float


def utterances(
    pieces: Sequence[Piece], rule: Rule, words_per_minute: float
) -> tuple[Utterance, ...]:
    """The sentences of an answer, each spoken as soon as it is complete and the one before is
    over. `pieces` must not be empty."""
    text = "".join(piece.text for piece in pieces)
    spoken: list[Utterance] = []
    for start, end, known in all_ends(text, rule):
        ready_ms = _moment(pieces, known)
        start_ms = max(ready_ms, spoken[-1].end_ms) if spoken else ready_ms
        end_ms = start_ms + _words_in(text[start:end]) * 60_000.0 / words_per_minute
        spoken.append(Utterance(text[start:end], ready_ms, start_ms, end_ms))
    return tuple(spoken)


def speech(pieces: Sequence[Piece], rule: Rule, words_per_minute: float) -> Speech:
    """How an answer would be spoken. `pieces` must not be empty."""
    spoken = utterances(pieces, rule, words_per_minute)
    silent_ms, silent_before, delay_ms = 0.0, None, 0.0
    needed_ms = spoken[0].ready_ms
    for number, (before, one) in enumerate(pairwise(spoken), 2):
        if one.start_ms - before.end_ms > silent_ms:
            silent_ms, silent_before = one.start_ms - before.end_ms, number
        needed_ms += before.end_ms - before.start_ms
        delay_ms = max(delay_ms, one.ready_ms - needed_ms)
    return Speech(
        words_per_minute, len(spoken), round(silent_ms, 3), silent_before, round(delay_ms, 3)
    )


def _words_in(text: str) -> float:
    """How many words' time a text takes."""
    wide = len(_WIDE.findall(text))
    words = _WIDE.sub(" ", text).split()
    return sum(any(map(str.isalnum, word)) for word in words) + wide / CHARACTERS_A_WORD


def _moment(pieces: Sequence[Piece], index: int) -> float:
    """When the character at `index` had come; the last piece's moment beyond the end."""
    seen = 0
    for piece in pieces:
        seen += len(piece.text)
        if seen > index:
            return piece.t_ms
    return pieces[-1].t_ms
