"""What the report step gives. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...evidence.artifacts import Report

SOURCES = ("ttft.json", "prefill.json", "cache.json", "sentence.json", "cancel.json")


@dataclass(frozen=True)
class ReportResult:
    """Step 8: the file as it is, and what its sources say."""

    report: Report
    expected: Report
