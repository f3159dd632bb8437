"""The checks of a directory that was made by hand, by step. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..verdicts.verdict import Cause, Verdict
from .by_hand import Given, Problem
from .cache.by_hand import cache_unit, changed_cold, first_cold
from .cancel.by_hand import cancelled_task, close_moment, limit_of_tokens, log_is_there
from .prefill.by_hand import prefill_cold, prefill_times
from .report.by_hand import copied
from .sentence.by_hand import ends_at_first, sentence_moment, sentence_unit
from .sse.by_hand import each_has_its_moment, stream_unit
from .ttft.by_hand import tokens_at_most, ttft_unit

FILES_OF: Mapping[str, tuple[str, ...]] = {
    "server": ("health.json", "props.json"),
    "sse": ("sse.py", "sse_raw.txt", "chunks.jsonl"),
    "ttft": ("ttft.json",),
    "prefill": ("prefill.json",),
    "cache": ("cache.json",),
    "sentence": ("sentence.json",),
    "cancel": ("cancel.json",),
    "report": ("report.json",),
}


def checks(step: str, given: Given) -> list[Verdict]:
    """The verdicts that a step's files allow beside its relations."""
    return [_verdict(step, relation, find(given)) for relation, find in _CHECKS.get(step, ())]


def _verdict(step: str, relation: str, problem: Problem) -> Verdict:
    if problem is None:
        return Verdict(step, relation, "holds", "they agree")
    code, words = problem
    return Verdict(step, relation, "broken", words, Cause(code, words))


_CHECKS: Mapping[str, Sequence[tuple[str, Callable[[Given], Problem]]]] = {
    "sse": (
        ("each piece has its own moment, from the request on", each_has_its_moment),
        ("t_ms are milliseconds, and agree with the server's timings", stream_unit),
    ),
    "ttft": (
        ("its times agree with those of the sse step (30 times at most)", ttft_unit),
        ("at most 64 tokens", tokens_at_most),
    ),
    "prefill": (
        ("ttft_ms >= prompt_ms in every row (less 5 %)", prefill_times),
        ("the longest prompt was processed whole (nine tenths)", prefill_cold),
    ),
    "cache": (
        ("the first leg was cold (nine tenths)", first_cold),
        ("the changed prefix was cold (nine tenths)", changed_cold),
        ("its times agree with those of the prefill step (30 times at most)", cache_unit),
    ),
    "sentence": (
        ("it ends at the first .!? before white space", ends_at_first),
        ("first_sentence_ms is the sentence's own moment", sentence_moment),
        ("its times are milliseconds", sentence_unit),
    ),
    "cancel": (
        ("max_tokens is 256", limit_of_tokens),
        ("closed half a second after the request", close_moment),
        ("server.log is there", log_is_there),
        ("the cancelled task is the one that was closed", cancelled_task),
    ),
    "report": (("each value is that of its source", copied),),
}
