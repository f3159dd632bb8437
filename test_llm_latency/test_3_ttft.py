"""Step 3: how long until the first text, five times, without the cache?"""

from __future__ import annotations

import pytest

from pytest_llm_latency.lab.protocol import Lab
from pytest_llm_latency.session.base import Expect
from pytest_llm_latency.steps.ttft import judge as relations

pytestmark = [
    pytest.mark.llm_latency(step="ttft"),
    pytest.mark.order(3),
]


@pytest.mark.usefixtures("llm_ready")
def test_ttft(llm_lab: Lab, llm_expect: Expect) -> None:
    """The first text comes before the end; the medians are the third of five."""
    llm_expect(*relations.judge_ttft(llm_lab.ttft()))
