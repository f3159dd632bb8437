"""TODO"""

from __future__ import annotations

from dataclasses import dataclass

from ...evidence.artifacts import Report


@dataclass(frozen=True)
class ReportResult:
    """Step 8: the file as it is, and what its sources say."""

    report: Report
    expected: Report
