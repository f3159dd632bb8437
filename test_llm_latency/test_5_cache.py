"""Step 5: what is the same from the front is not computed again."""

from __future__ import annotations

import pytest

from pytest_llm_latency.lab.protocol import Lab
from pytest_llm_latency.session.base import Expect
from pytest_llm_latency.steps.cache import judge as relations

pytestmark = [
    pytest.mark.llm_latency(step="cache"),
    pytest.mark.order(5),
]


@pytest.mark.usefixtures("llm_ready")
def test_cache(llm_lab: Lab, llm_expect: Expect) -> None:
    """The repeated prompt is cheaper than the cold one and than one changed at its front."""
    llm_expect(*relations.judge_cache(llm_lab.cache()))
