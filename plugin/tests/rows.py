"""What a step's judge says, without the rows that only say why a supporting one is not measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_llm_latency.relations import Verdict, is_supporting


def told(judge: Callable[[Any], list[Verdict]], result: Any) -> list[Verdict]:
    """The rows that decide: all of them, where nothing but supporting ones is left."""
    rows = judge(result)
    return [
        row for row in rows if row.outcome != "not measurable" or not is_supporting(row.relation)
    ] or rows
