"""What a step's judge says, without the rows that only say why a supporting one is not measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_llm_latency.steps.judges import is_supporting
from pytest_llm_latency.verdicts.verdict import Verdict


def told(judge: Callable[[Any], list[Verdict]], result: Any) -> list[Verdict]:
    """The rows that decide: all of them, where nothing but supporting ones is left."""
    rows = judge(result)
    return [
        row for row in rows if row.outcome != "not measurable" or not is_supporting(row.relation)
    ] or rows
