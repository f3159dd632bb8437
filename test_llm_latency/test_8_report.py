"""Step 8: the numbers side by side."""

from __future__ import annotations

import pytest

from pytest_llm_latency import relations
from pytest_llm_latency.results import Lab
from pytest_llm_latency.session import Expect

pytestmark = [
    pytest.mark.llm_latency(step="report"),
    pytest.mark.order(8),
]


def test_report(llm_lab: Lab, llm_expect: Expect) -> None:
    """Every value of the report is a copy from the file of its step."""
    llm_expect(*relations.report(llm_lab.report()))
