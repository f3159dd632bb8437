"""What the sentence step gives, derived from its recordings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...evidence.artifacts import Sentence
from ...evidence.derive import derive
from ...evidence.timeline import Piece, Timeline
from ..answers import is_usable, known_ms, usable
from ..legs import Recordings, leg_of
from .sentences import Rule, first_end
from .speech import WORDS_PER_MINUTE, Speech, speech

SENTENCE_AGAIN = "again-"


@dataclass(frozen=True)
class SentenceResult:
    """Step 6. `timeline` and `speech` are None where only the file is there; `rounds` then has
    nothing, else `sentence` and what further answers gave."""

    sentence: Sentence
    timeline: Timeline | None = None
    speech: Speech | None = None
    rounds: tuple[Sentence, ...] = ()


def sentence_result(
    recordings: Recordings, rule: Rule = "plain", words_per_minute: float = WORDS_PER_MINUTE
) -> SentenceResult:
    """From the last of the recordings "stream-1", "stream-2", … (see `sse_result`), and the
    further rounds "again-2", "again-3", …, of which those that failed are left out."""
    again = [leg for name, leg in recordings.items() if name.startswith(SENTENCE_AGAIN)]
    timeline = usable(leg_of(recordings, f"stream-{max(len(recordings) - len(again), 1)}"))
    sentence = _sentence(timeline, rule)
    return SentenceResult(
        sentence,
        timeline,
        speech(timeline.pieces, rule, words_per_minute),
        (sentence, *(_sentence(derive(leg), rule) for leg in again if is_usable(leg))),
    )


def _sentence(timeline: Timeline, rule: Rule) -> Sentence:
    sentence, sentence_ms = first_sentence(timeline.pieces, rule)
    return Sentence(
        known_ms(timeline.ttft_ms),
        sentence_ms,
        known_ms(timeline.total_ms),
        sentence,
        timeline.text,
    )


def first_sentence(pieces: Sequence[Piece], rule: Rule = "plain") -> tuple[str, float]:
    """The first sentence of the joined text and the moment (ms) it was known to be complete.

    That is the moment of the piece with the character by which `rule` knows the end (see
    `sentences.py`). Without an end the whole text is the sentence, complete with the last
    piece. `pieces` must not be empty.
    """
    text = "".join(piece.text for piece in pieces)
    end = first_end(text, rule)
    if end is None:
        return text, pieces[-1].t_ms
    length, known = end
    seen = 0
    for piece in pieces:
        seen += len(piece.text)
        if seen > known:
            return text[:length], piece.t_ms
    raise AssertionError("the end of the sentence lies in no piece")
