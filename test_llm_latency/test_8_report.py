"""Step 8: the numbers side by side."""

from __future__ import annotations

import pytest

from pytest_llm_latency.lab.protocol import Lab
from pytest_llm_latency.session.base import Expect
from pytest_llm_latency.steps.report import judge as relations

pytestmark = [
    pytest.mark.llm_latency(step="report"),
    pytest.mark.order(8),
]


def test_report(llm_lab: Lab, llm_expect: Expect) -> None:
    """Every value of the report is a copy from the file of its step."""
    llm_expect(*relations.judge_report(llm_lab.report()))
