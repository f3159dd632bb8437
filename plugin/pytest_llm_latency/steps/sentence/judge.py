"""Judges the sentence step: the first sentence. Pure."""

from __future__ import annotations

from itertools import accumulate

from ...verdicts.causes import clock_off, hold_of
from ...verdicts.verdict import Cause, Verdict, holds_if, milliseconds, outcome_of
from .result import SentenceResult


def judge_sentence(result: SentenceResult) -> list[Verdict]:
    """Step 6."""
    artifact = result.sentence
    held = _sentence_hold(result)
    in_order = artifact.ttft_ms <= artifact.first_sentence_ms <= artifact.total_ms
    text, cut = artifact.text, artifact.first_sentence
    if result.timeline is None:  # by hand: white space around either is no matter
        text, cut = text.strip(), cut.strip()
    is_prefix = text.startswith(cut)
    relation = "ttft <= first sentence <= total"
    times = (artifact.ttft_ms, artifact.first_sentence_ms, artifact.total_ms)
    numbers = " <= ".join(map(milliseconds, times))
    order = Cause("order", "the times are not in order")
    return [
        Verdict("sentence", relation, outcome_of(held), numbers, held)
        if held is not None
        else holds_if("sentence", relation, in_order, numbers, order),
        holds_if(
            "sentence",
            "first_sentence is a prefix of text",
            is_prefix and bool(artifact.first_sentence),
            f"{len(artifact.first_sentence)} of {len(artifact.text)} characters",
            Cause("not-a-prefix", "the sentence was not cut from this text"),
        ),
    ]


def _sentence_hold(result: SentenceResult) -> Cause | None:
    """Why the first text or the first sentence came later than it was made, if it did."""
    timeline = result.timeline
    if timeline is None or not timeline.pieces:
        return None
    off = clock_off([timeline])
    if off is not None:
        return off
    lengths = accumulate(len(piece.text) for piece in timeline.pieces)
    sentence = len(result.sentence.first_sentence)
    last = next((i for i, seen in enumerate(lengths) if seen > sentence), -1)
    return hold_of(timeline, 0) or hold_of(timeline, last)
