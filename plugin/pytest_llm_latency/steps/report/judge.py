"""Judges the report step: the report. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...verdicts.verdict import Cause, Verdict, holds_if
from .result import ReportResult


def judge_report(result: ReportResult) -> list[Verdict]:
    """Step 8: every value equals its source."""
    values: Mapping[str, Any] = vars(result.report)
    differing = [name for name, value in vars(result.expected).items() if values[name] != value]
    return [
        holds_if(
            "report",
            "every value equals its source",
            not differing,
            f"{len(values) - len(differing)} of {len(values)} values",
            Cause("copy-differs", f"{', '.join(differing)} differ from their files"),
        )
    ]
