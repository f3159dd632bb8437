"""The table of doubts of the cache step: each row has a result that it alone puts in doubt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llm_latency.steps.cache.doubts import DOUBTS, doubt_of


def leg(**said: Any) -> SimpleNamespace:
    """A leg as the table sees it."""
    nothing = {
        "cold": True,
        "warm": False,
        "prompt_n": 1300,
        "cache_n": 0,
        "prompt_total": 1300,
        "prompt_ms": None,
        "ttft_ms": 100.0,
        "text": "x",
        "prompt": "x",
        "counts_conflict": None,
        "reasoning": None,
    }
    return SimpleNamespace(**{**nothing, **said})


WARM = leg(cold=False, warm=True, prompt_n=4, cache_n=1296)


def result(first: Any = None, changed: Any = None, **said: Any) -> Any:
    """A result of a cache that works, but for what is said."""
    legs = {"first": [first or leg()], "second": [WARM], "changed_prefix": [changed or leg()]}
    nothing = {
        "legs": legs,
        "cache": SimpleNamespace(first=SimpleNamespace(prompt_n=1300), second=SimpleNamespace(prompt_n=4)),
        "counted": True, "sometimes": False, "others": False, "replayed": False,
        "hits": lambda _: True, "hits_by_time": lambda: None,
        "prefilled_ms": lambda _: 10.0, "ratios": lambda _: [1.0],
    }  # fmt: skip
    return SimpleNamespace(**{**nothing, **said})


def misses(_: str) -> bool:
    return False


ROWS = [
    (0, "cold-leg-was-warm", result(first=WARM)),
    (1, "cache-sometimes", result(sometimes=True)),
    (2, "others-use-the-server", result(others=True, hits=misses)),
    (3, "replayed-answer", result(replayed=True, hits=misses)),
    (3, "replayed-answer", result(replayed=True, counted=False)),
    (4, "counts-against-times", result(hits=misses, hits_by_time=lambda: True)),
    (5, "changed-prefix-hit", result(changed=leg(warm=True, prompt_n=40, cache_n=1260))),
]


@pytest.mark.parametrize(("row", "code", "known"), ROWS)
def test_the_doubt_that_fits(row: int, code: str, known: Any) -> None:
    doubt = doubt_of(known)
    assert doubt is DOUBTS[row]
    assert doubt.cause(known).code == code
    assert doubt.numbers(known)


def test_every_doubt_has_its_result() -> None:
    assert {row for row, _, _ in ROWS} == set(range(len(DOUBTS)))


@pytest.mark.parametrize(
    "known",
    [
        result(),
        result(others=True),  # the counts show hits: others did not matter
        result(replayed=True),  # the counts decide
        result(counted=False, hits_by_time=lambda: True),  # nothing contradicts the times
        result(hits=misses, hits_by_time=lambda: False),
    ],
)
def test_no_doubt(known: Any) -> None:
    assert doubt_of(known) is None
