"""Step 6: when is the first sentence complete, so that a voice can begin?"""

from __future__ import annotations

import pytest

from pytest_llm_latency import relations
from pytest_llm_latency.results import Lab
from pytest_llm_latency.session import Expect

pytestmark = [
    pytest.mark.llm_latency(step="sentence"),
    pytest.mark.order(6),
]


@pytest.mark.usefixtures("llm_ready")
def test_sentence(llm_lab: Lab, llm_expect: Expect) -> None:
    """The first sentence ends between the first text and the end."""
    llm_expect(*relations.sentence(llm_lab.sentence()))
