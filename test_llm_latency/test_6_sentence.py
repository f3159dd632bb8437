"""Step 6: when is the first sentence complete, so that a voice can begin?"""

from __future__ import annotations

import pytest

from pytest_llm_latency.lab.protocol import Lab
from pytest_llm_latency.session.base import Expect
from pytest_llm_latency.steps.sentence import judge as relations

pytestmark = [
    pytest.mark.llm_latency(step="sentence"),
    pytest.mark.order(6),
]


@pytest.mark.usefixtures("llm_ready")
def test_sentence(llm_lab: Lab, llm_expect: Expect) -> None:
    """The first sentence ends between the first text and the end."""
    llm_expect(*relations.judge_sentence(llm_lab.sentence()))
