"""Step 2: read the event stream by hand."""

from __future__ import annotations

import pytest

from pytest_llm_latency import relations
from pytest_llm_latency.results import Lab
from pytest_llm_latency.session import Expect

pytestmark = [
    pytest.mark.llm_latency(step="sse"),
    pytest.mark.order(2),
]


@pytest.mark.usefixtures("llm_ready")
def test_sse(llm_lab: Lab, llm_expect: Expect) -> None:
    """The stream ends with [DONE], and the pieces are its content, each with its moment."""
    llm_expect(*relations.sse_stream(llm_lab.sse()))
