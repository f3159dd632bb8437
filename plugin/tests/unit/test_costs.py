"""What a run asks for, and where it stops."""

from __future__ import annotations

import pytest

from pytest_llm_latency.errors import ConfigError
from pytest_llm_latency.evidence.recording import End, Recording, Request
from pytest_llm_latency.plan import Plan
from pytest_llm_latency.sse import Read
from pytest_llm_latency.steps.planned import planned
from pytest_llm_latency.wire.costs import Costs
from pytest_llm_latency.wire.dialect import Dialect

DOCUMENTS = ["x" * 400] * 12
BODY = {"messages": [{"role": "user", "content": "x" * 380}], "max_tokens": 100}  # 200 in all


def test_the_selected_steps_are_counted() -> None:
    look = planned(Plan(), DOCUMENTS, ())
    assert look == (1, pytest.approx(36, abs=12))
    requests, tokens = planned(Plan(), DOCUMENTS, ("prefill",))
    assert requests == 1 + 3
    assert 16 * 100 < tokens - look[1] < 16 * 100 + 3 * 80
    assert planned(Plan(), DOCUMENTS, ("report",))[0] == 1 + 5 + 3 + 5 + 1 + 4
    assert planned(Plan(), DOCUMENTS, ("report", "ttft")) == planned(Plan(), DOCUMENTS, ("report",))
    several = planned(Plan(), DOCUMENTS, ("prefill", "cache", "sentence", "ttft"), 5)
    assert several[0] == 1 + 6 * 3 + 6 * 5 + 5 + 5
    assert planned(Plan(), DOCUMENTS, ("test_own.py::test_one",)) == look


def test_a_budget_stops_before_the_request_that_would_exceed_it() -> None:
    costs = Costs(500, "LLM_BUDGET")
    costs.check(2, 500)
    with pytest.raises(
        ConfigError, match=r"LLM_BUDGET: 500 tokens are too few: .* at least 501 in 3"
    ):
        costs.check(3, 501)
    for _ in range(2):
        costs.spend(BODY)
    with pytest.raises(
        ConfigError, match=r"a request of about 200 tokens: 400 of 500 are spent in 2"
    ):
        costs.spend(BODY)
    assert (costs.requests, costs.tokens) == (2, 400)
    Costs(None, "").spend(BODY)


def test_the_server_s_own_count_replaces_the_estimate() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":7}}\n\ndata: [DONE]\n\n'
    costs = Costs(500, "LLM_BUDGET")
    costs.spend(BODY)
    recording = Recording(
        "x", Request("POST", "", {}, BODY), 200, (), 0.1, 1.0, (Read(1.0, usage),), End("eof", 1.0)
    )
    costs.settle(recording)
    assert costs.tokens == 27


def test_a_dialect_shapes_the_body() -> None:
    body = {"messages": [], "max_tokens": 8, "cache_prompt": True, "stream": True}
    dialect = Dialect("small", {"seed": 1}, ("cache_prompt",), "max_completion_tokens")
    assert dialect.body(body) == {
        "messages": [], "max_completion_tokens": 8, "stream": True, "seed": 1, "model": "small",
    }  # fmt: skip
    assert Dialect().body(body) == body
