"""Step 7: when the listener interrupts, does the server stop?"""

from __future__ import annotations

import pytest

from pytest_llm_latency.lab.protocol import Lab
from pytest_llm_latency.session.base import Expect
from pytest_llm_latency.steps.cancel import judge as relations

pytestmark = [
    pytest.mark.llm_latency(step="cancel"),
    pytest.mark.order(7),
]


@pytest.mark.usefixtures("llm_ready")
def test_cancel(llm_lab: Lab, llm_expect: Expect) -> None:
    """A close stops the generation: the slot goes idle, and the log says so."""
    llm_expect(*relations.judge_cancel(llm_lab.cancel()))
