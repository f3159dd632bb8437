"""Measures the sentence step."""

from __future__ import annotations

from ...errors import StreamError
from ...evidence.derive import derive
from ...evidence.recording import Recording
from ..bench import Bench
from ..rounds import Legs, as_made
from .result import SENTENCE_AGAIN, SentenceResult, sentence_result


def measure_sentence(bench: Bench) -> SentenceResult:
    """Step 6: when could a voice begin to speak?"""
    bench.progress("sentence")
    legs: Legs = {}

    def ask(leg: str) -> Recording:
        legs[leg] = bench.ask("sentence", leg)
        return legs[leg]

    as_made(bench, "sentence", lambda attempt: ask(f"stream-{attempt}"), derive)
    for number in range(2, bench.rounds + 1):
        bench.progress(f"sentence, round {number}")
        try:
            ask(f"{SENTENCE_AGAIN}{number}")
        except StreamError as error:  # the first one was good
            bench.note("sentence", f"a further round is left out: {error}")
    result = sentence_result(legs, bench.sentence_rule, bench.words_per_minute)
    if result.speech is not None:
        bench.note("sentence", result.speech.words())
    return result
