"""Step 4: the longer the prompt, the later the first text."""

from __future__ import annotations

import pytest

from pytest_llm_latency.lab.protocol import Lab
from pytest_llm_latency.session.base import Expect
from pytest_llm_latency.steps.prefill import judge as relations

pytestmark = [
    pytest.mark.llm_latency(step="prefill"),
    pytest.mark.order(4),
]


@pytest.mark.usefixtures("llm_ready")
def test_prefill(llm_lab: Lab, llm_expect: Expect) -> None:
    """Prompt tokens and TTFT grow with 0, 4 and 12 documents."""
    llm_expect(*relations.judge_prefill(llm_lab.prefill()))
