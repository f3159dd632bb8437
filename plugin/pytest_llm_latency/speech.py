"""Would a voice that speaks the answer as it comes fall silent in the middle? Pure.

Each sentence's speaking time is set against the moment the next one is complete. It knows rates,
not voices, and judges nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .sentences import Rule, all_ends
from .timeline import Piece

# A rule of thumb: news is read at some 250 characters a minute in Chinese, at 150 words in English.
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


def speech(pieces: Sequence[Piece], rule: Rule, words_per_minute: float) -> Speech:
    """How an answer would be spoken. `pieces` must not be empty."""
    text = "".join(piece.text for piece in pieces)
    moments: list[float] = []
    spoken_ms: list[float] = []
    for start, end, known in all_ends(text, rule):
        moments.append(_moment(pieces, known))
        spoken_ms.append(_words_in(text[start:end]) * 60_000.0 / words_per_minute)
    silent_ms, silent_before, delay_ms = 0.0, None, 0.0
    done_ms, needed_ms = moments[0], moments[0]
    for number, (ready_ms, before_ms) in enumerate(zip(moments[1:], spoken_ms), 2):
        done_ms += before_ms
        needed_ms += before_ms
        if ready_ms - done_ms > silent_ms:
            silent_ms, silent_before = ready_ms - done_ms, number
        delay_ms = max(delay_ms, ready_ms - needed_ms)
        done_ms = max(done_ms, ready_ms)
    return Speech(
        words_per_minute, len(moments), round(silent_ms, 3), silent_before, round(delay_ms, 3)
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
