"""The error of the stamps, and differences that are smaller than it."""

from __future__ import annotations

import pytest
from rows import told

from pytest_llm_latency.evidence.artifacts import Cache, CacheLeg, PrefillRow
from pytest_llm_latency.evidence.timeline import Piece, Timeline
from pytest_llm_latency.steps.cache.judge import judge_cache
from pytest_llm_latency.steps.cache.result import CacheResult
from pytest_llm_latency.steps.prefill.judge import judge_prefill
from pytest_llm_latency.steps.prefill.result import PrefillResult
from pytest_llm_latency.verdicts.stream import ttft_below_total
from pytest_llm_latency.wire import stamps


def test_the_jitter_is_that_of_the_delays() -> None:
    steady = stamps._stamp_error([0.1] * 40)
    assert (steady.jitter_ms, steady.delay_p50_ms, steady.delay_max_ms) == (0.0, 0.1, 0.1)
    # One late wake-up in forty is no rule; one in four is.
    assert stamps._stamp_error([0.1] * 39 + [50.0]).jitter_ms == 0.0
    assert stamps._stamp_error([0.1] * 30 + [50.1] * 10).jitter_ms == 50.0


def test_it_is_measured_with_the_client_that_measures() -> None:
    found = stamps.measure_stamps()
    assert found is not None
    assert found.pieces > 1
    assert 0 < found.delay_p50_ms <= found.delay_max_ms
    assert 0 < found.jitter_ms <= found.delay_max_ms
    assert 0 < found.resolution_ms < 0.1


def test_no_loopback_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("no sockets here")

    monkeypatch.setattr(stamps.socket, "create_server", refused)
    assert stamps.measure_stamps() is None


def leg(ttft_ms: float, jitter_ms: float, prompt_n: int, cache_n: int = 0) -> Timeline:
    return Timeline(
        pieces=(Piece(ttft_ms, "a"), Piece(ttft_ms + 10, "b")),
        total_ms=ttft_ms + 10,
        timings={"prompt_n": prompt_n, "cache_n": cache_n},
        done=True,
        jitter_ms=jitter_ms,
    )


@pytest.mark.parametrize(("jitter_ms", "outcome"), [(9.0, "holds"), (10.0, "inconclusive"), (50.0, "inconclusive")])  # fmt: skip
def test_an_answer_within_the_jitter_proves_no_stream(jitter_ms: float, outcome: str) -> None:
    verdict = ttft_below_total(leg(5.0, jitter_ms, 10))
    assert verdict.outcome == outcome


@pytest.mark.parametrize(("jitter_ms", "outcome"), [(1.0, "holds"), (20.0, "inconclusive")])
def test_times_that_differ_less_than_the_jitter_do_not_confirm(
    jitter_ms: float, outcome: str
) -> None:
    short, long = leg(10.0, jitter_ms, 10), leg(25.0, jitter_ms, 100)
    rows = (PrefillRow(0, 10, 1.0, 10.0), PrefillRow(12, 100, 1.0, 25.0))
    verdicts = told(judge_prefill, PrefillResult(rows, {0: [short], 12: [long]}))
    assert [verdict.outcome for verdict in verdicts] == ["holds", outcome]
    hit = leg(10.0, jitter_ms, 10, 90)
    legs = {"first": [long], "second": [hit], "changed_prefix": [long], "changed_suffix": [long]}
    cold, cached = CacheLeg(100, 25.0), CacheLeg(10, 10.0)
    result = CacheResult(Cache(cold, cached, cold), legs)
    assert [verdict.outcome for verdict in told(judge_cache, result)] == ["holds", outcome] * 2
