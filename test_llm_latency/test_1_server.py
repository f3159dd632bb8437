"""Step 1: is the server there, and what does it serve?"""

from __future__ import annotations

import pytest

from pytest_llm_latency.lab.protocol import Lab
from pytest_llm_latency.session.base import Expect
from pytest_llm_latency.steps.server import judge as relations

pytestmark = [
    pytest.mark.llm_latency(step="server"),
    pytest.mark.order(1),
]


@pytest.mark.usefixtures("llm_ready")
def test_server(llm_lab: Lab, llm_expect: Expect) -> None:
    """/health says ok; /props has the model's path, its context and its slots."""
    llm_expect(*relations.judge_server(llm_lab.server()))
