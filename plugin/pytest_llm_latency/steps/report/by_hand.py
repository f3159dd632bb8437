"""Checks of the report step's files where they were made by hand. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ...evidence.artifacts import report_of
from ..by_hand import Given, Problem


def copied(given: Given) -> Problem:
    sources = (given.ttft, given.prefill, given.cache, given.sentence, given.cancel)
    if given.report is None or any(source is None for source in sources):
        return None
    expected: Mapping[str, Any] = vars(report_of(*sources))  # type: ignore[arg-type]
    for key, value in vars(given.report).items():
        if value == expected[key]:
            continue
        which = _source_of(value, given)
        also = "" if which is None else f": {value:.6g} is {which}"
        if which is None and isinstance(value, float) and round(value) == round(expected[key] or 0):
            also = ": it is rounded; copy it as it is"
        return (
            "copy-differs",
            f"report.json: {key}: found {value}, expected {expected[key]}, because it is "
            f"{_PLACES[key]}{also}",
        )
    return None


_PLACES = {
    "ttft_p50_ms": "ttft.json's ttft_p50",
    "total_p50_ms": "ttft.json's total_p50",
    "ttft_12docs_ms": "the last ttft_ms of prefill.json",
    "prompt_n_12docs": "the last prompt_n of prefill.json",
    "cache_ttft_ms": "cache.json's second.ttft_ms, the cached leg's",
    "first_sentence_ms": "sentence.json's first_sentence_ms",
    "cancel_idle_ms": "cancel.json's slot_idle_after_ms",
}


def _source_of(value: Any, given: Given) -> str | None:
    """Which other number of the directory a value is."""
    assert given.ttft is not None
    assert given.cache is not None
    assert given.sentence is not None
    assert given.cancel is not None
    rows = given.prefill or ()
    named: list[tuple[str, Any]] = [
        ("cache.json's first.ttft_ms, the cold leg's", given.cache.first.ttft_ms),
        ("cache.json's second.ttft_ms, the cached leg's", given.cache.second.ttft_ms),
        ("cache.json's changed_prefix.ttft_ms", given.cache.changed_prefix.ttft_ms),
        *((f"the prompt_n of {row.docs} documents", row.prompt_n) for row in rows),
        *((f"the ttft_ms of {row.docs} documents", row.ttft_ms) for row in rows),
        *((f"the prompt_ms of {row.docs} documents", row.prompt_ms) for row in rows),
        ("ttft.json's ttft_p50", given.ttft.ttft_p50),
        ("ttft.json's total_p50", given.ttft.total_p50),
        ("the mean of ttft_ms", statistics.fmean(run.ttft_ms for run in given.ttft.runs)),
        ("sentence.json's ttft_ms", given.sentence.ttft_ms),
        ("sentence.json's first_sentence_ms", given.sentence.first_sentence_ms),
        ("sentence.json's total_ms", given.sentence.total_ms),
        ("cancel.json's closed_at_ms", given.cancel.closed_at_ms),
        ("cancel.json's slot_idle_after_ms", given.cancel.slot_idle_after_ms),
    ]
    if value is None:
        return None
    for unit, factor in (("", 1.0), (" in seconds", 1000.0)):
        for name, other in named:
            if other is not None and abs(value * factor - other) <= 1e-9 * abs(other):
                return name + unit
    return None
