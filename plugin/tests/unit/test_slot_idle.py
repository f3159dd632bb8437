"""The table by which a close is judged: each row has a close that it alone decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_llm_latency.evidence.artifacts import Cancel
from pytest_llm_latency.steps.cancel.case import CancelCase
from pytest_llm_latency.steps.cancel.result import CancelResult
from pytest_llm_latency.steps.cancel.slot_idle import (
    TABLE,
    Closes,
    deciding_row,
    judge_slot_idle,
)

# A close in generation that the server's own state proves to have stopped it.
GOOD = CancelCase(
    name="close-at",
    phase="generation",
    stop="stopped",
    proof="slots",
    seen_busy=True,
    max_tokens=256,
    received_tokens=18,
    closed_at_ms=500.0,
    idle_after_ms=40.0,
    resolution_ms=5.0,
    waited_ms=40.0,
    tokens_after_close=2,
    prompt_processed=None,
    prompt_tokens=None,
    log_line=None,
    log_span=None,
    shown_busy=True,
    tokens_before_close=20,
)
NEVER_IDLE: dict[str, Any] = {"idle_after_ms": None, "waited_ms": 30_000.0}
RAN_ON: dict[str, Any] = {"stop": "ran on", "tokens_after_close": 200, "waited_ms": 9_000.0}
BY_TIME: dict[str, Any] = {"proof": "time", "stop": "unknown", "tokens_after_close": None}


def closes(*cases: CancelCase, **of_result: Any) -> Closes:
    """What is known of the cases, the first of them the contract's."""
    idle_ms = cases[0].idle_after_ms if cases else of_result.pop("idle_ms")
    result = CancelResult(Cancel(256, 18, 500.0, idle_ms), cases, "/slots", None, None, None, None)
    return Closes(replace(result, **of_result), cases[0] if cases else None)


ROWS: list[tuple[int, str | None, Closes]] = [
    (
        0,
        "no-slots",
        closes(GOOD, watched_by=None, unwatched="the server offers no /slots: HTTP 501"),
    ),
    (0, "no-slots", closes(idle_ms=None)),
    (1, "unanswered", closes(replace(GOOD, waited_ms=None))),
    (1, "unanswered", closes(replace(GOOD, idle_after_ms=None, waited_ms=999.0))),
    (2, None, closes(idle_ms=40.0)),
    (3, "gauge-never-idle", closes(replace(GOOD, **NEVER_IDLE), watched_by="/metrics")),
    (4, "others-use-the-server", closes(replace(GOOD, **NEVER_IDLE, others=True))),
    (4, "others-use-the-server", closes(replace(GOOD, **RAN_ON, others=True))),
    (5, "cancel-ignored", closes(replace(GOOD, **RAN_ON))),
    (5, "cancel-ignored", closes(replace(GOOD, **NEVER_IDLE))),
    (6, "slots-blind", closes(replace(GOOD, seen_busy=False))),
    (6, "slots-blind", closes(replace(GOOD, **BY_TIME, shown_busy=False))),
    (7, "others-use-the-server", closes(replace(GOOD, others=True))),
    (8, "cancel-late", closes(replace(GOOD, tokens_after_close=100))),
    (9, "cancel-late", closes(*[replace(GOOD, late=True)] * 2)),
    (10, "cancel-unproven", closes(replace(GOOD, late=True))),
    (10, "cancel-unproven", closes(replace(GOOD, **BY_TIME))),
    (11, None, closes(GOOD)),
]


@pytest.mark.parametrize(("row", "code", "known"), ROWS)
def test_the_row_that_decides(row: int, code: str | None, known: Closes) -> None:
    assert TABLE.index(deciding_row(known)) == row
    verdict = judge_slot_idle(known.result, known.case)
    assert verdict.outcome == TABLE[row].outcome
    assert (verdict.cause.code if verdict.cause is not None else None) == code


def test_every_row_has_its_close() -> None:
    assert {row for row, _, _ in ROWS} == set(range(len(TABLE)))
