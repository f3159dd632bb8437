"""Step 2: read the event stream by hand."""

from __future__ import annotations

import pytest

from pytest_llm_latency.lab.protocol import Lab
from pytest_llm_latency.session.base import Expect
from pytest_llm_latency.steps.sse import judge as relations

pytestmark = [
    pytest.mark.llm_latency(step="sse"),
    pytest.mark.order(2),
]


@pytest.mark.usefixtures("llm_ready")
def test_sse(llm_lab: Lab, llm_expect: Expect) -> None:
    """The stream ends with [DONE], and the pieces are its content, each with its moment."""
    llm_expect(*relations.judge_sse(llm_lab.sse()))
