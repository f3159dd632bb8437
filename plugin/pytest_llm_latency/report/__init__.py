"""What people see of a run."""

from __future__ import annotations

from pathlib import Path

from ..evidence.files import Directory

MADE_BY = '<meta name="generator" content="pytest-llm-latency">'


def is_page(path: Path) -> bool:
    """Whether the file is a page of ours: a report.html may be another tool's. Raises
    ArtifactError where it is no file."""
    return MADE_BY.encode() in Directory(path.parent).head(path.name, 1_000)
