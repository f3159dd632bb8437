"""What a step's judge says, without the rows that only say why a supporting one is not measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_llm_latency.relations import SUPPORTING, Verdict


def told(judge: Callable[[Any], list[Verdict]], result: Any) -> list[Verdict]:
    """The rows that decide."""
    return [
        row
        for row in judge(result)
        if row.outcome != "not measurable" or row.relation not in SUPPORTING
    ]
