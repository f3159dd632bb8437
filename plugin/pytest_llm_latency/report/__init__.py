"""What people see of a run."""

from __future__ import annotations

from pathlib import Path

MADE_BY = '<meta name="generator" content="pytest-llm-latency">'


def is_page(path: Path) -> bool:
    """Whether the file is a page of ours: a report.html may be another tool's. Raises OSError."""
    with path.open("rb") as file:
        return MADE_BY.encode() in file.read(1_000)
