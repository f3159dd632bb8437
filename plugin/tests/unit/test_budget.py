"""Where the time goes: the parts of a request, the line of prefill, what would save time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from pytest_llm_latency.compare.numbers import flat, numbers
from pytest_llm_latency.evidence.artifacts import Cache, CacheLeg, PrefillRow, Sentence
from pytest_llm_latency.evidence.timeline import Piece, Timeline
from pytest_llm_latency.report.budget import budget, budgets, levers
from pytest_llm_latency.steps.cache.result import CacheResult
from pytest_llm_latency.steps.prefill.fit import fit
from pytest_llm_latency.steps.prefill.result import PrefillResult
from pytest_llm_latency.steps.sentence.result import SentenceResult

ANSWER = Timeline(
    pieces=(Piece(130.0, "One."), Piece(150.0, " Two."), Piece(170.0, " Three.")),
    token_ms=(130.0, 150.0, 170.0),
    total_ms=171.0,
    timings={"prompt_ms": 100.0, "prompt_n": 50},
    connect_ms=2.0,
    done=True,
)


def parts(timeline: Timeline) -> dict[str, tuple[float, float]]:
    found = budget("it", timeline)
    assert found is not None
    return {part.phase: (part.start_ms, part.end_ms) for part in found.parts}


def test_a_request_is_cut_into_its_parts() -> None:
    assert parts(ANSWER) == {
        "connect": (-2.0, 0.0),
        "prefill": (0.0, 100.0),
        "first token": (100.0, 130.0),
        "first sentence": (130.0, 150.0),
        "rest": (150.0, 171.0),
    }


def test_reasoning_is_a_part_of_its_own() -> None:
    reasoned = replace(ANSWER, token_ms=(110.0, 130.0, 150.0, 170.0), reasoning_field="reasoning")
    assert parts(reasoned)["first token"] == (100.0, 110.0)
    assert parts(reasoned)["reasoning"] == (110.0, 130.0)


def test_without_the_servers_time_prefill_is_all_until_the_first_token() -> None:
    found = budget("it", replace(ANSWER, timings={}))
    assert found is not None
    assert not found.prefill_known
    assert found.ms("prefill") == 130.0
    assert found.ms("first token") == 0.0


def test_a_server_whose_clock_is_ahead_makes_no_gap_and_no_overlap() -> None:
    found = budget("it", replace(ANSWER, timings={"prompt_ms": 500.0}))
    assert found is not None
    ends = [(part.start_ms, part.end_ms) for part in found.parts]
    assert all(a[1] == b[0] for a, b in pairwise(ends))
    assert found.parts[-1].end_ms == 171.0


def test_one_sentence_has_no_rest_but_the_end_of_the_stream() -> None:
    one = replace(ANSWER, pieces=(Piece(130.0, "Only one."),), total_ms=130.0)
    assert "rest" not in parts(one)
    assert parts(one)["first sentence"] == (130.0, 130.0)


def test_an_answer_without_text_has_no_budget() -> None:
    assert budget("it", Timeline(total_ms=3.0)) is None
    assert budgets(None, None) == []


def leg(prompt_n: int | None, ttft_ms: float) -> Timeline:
    timings = {} if prompt_n is None else {"prompt_n": prompt_n, "cache_n": 0}
    return Timeline(pieces=(Piece(ttft_ms, "x"),), token_ms=(ttft_ms,), timings=timings)


def prefill(*points: tuple[int | None, float]) -> PrefillResult:
    rows = tuple(PrefillRow(docs, n, None, ms) for docs, (n, ms) in enumerate(points))
    return PrefillResult(rows, {docs: [leg(n, ms)] for docs, (n, ms) in enumerate(points)})


def test_the_line_of_points_that_lie_on_one() -> None:
    line = fit(prefill((100, 250.0), (200, 450.0), (300, 650.0)))
    assert line is not None
    assert (line.ms_per_token, line.fixed_ms) == pytest.approx((2.0, 50.0))
    assert line.r_squared == pytest.approx(1.0)
    assert line.ttft_ms(1000) == pytest.approx(2050.0)
    assert line.longest == 300


def test_the_line_says_how_well_it_fits() -> None:
    line = fit(prefill((100, 250.0), (200, 150.0), (300, 650.0)))
    assert line is not None
    # By hand: slope 2, so 400 of 1400 between the outer points' means; R² = 80000 / 140000.
    assert line.ms_per_token == pytest.approx(2.0)
    assert line.r_squared == pytest.approx(80_000 / 140_000)


def test_no_line_without_counts_or_of_one_length() -> None:
    assert fit(prefill((None, 10.0), (None, 20.0))) is None
    assert fit(prefill((5, 10.0), (5, 20.0))) is None
    flat_line = fit(prefill((5, 10.0), (9, 10.0)))
    assert flat_line is not None
    assert flat_line.r_squared == 1.0


def test_what_saves_most_stands_first() -> None:
    cache = CacheResult(
        Cache(CacheLeg(1, 1000.0), CacheLeg(1, 40.0), CacheLeg(1, 1100.0), CacheLeg(1, 60.0)), {}
    )
    sentence = SentenceResult(Sentence(100.0, 300.0, 400.0, "A.", "A. B."))
    found = levers(cache, prefill((100, 250.0), (300, 650.0)), sentence)
    assert [round(one.saves_ms) for one in found] == [1040, 960, 300, 100]
    assert found[0].name == "what changes stands at the end of the prompt, not at its front"
    assert [one.what for one in found].count("first sentence") == 1


def test_every_number_has_the_name_of_its_place() -> None:
    found = numbers("prefill", prefill((100, 250.0), (300, 650.0)))
    assert found["prefill[1].ttft_ms"] == 650.0
    assert found["prefill[0].prompt_ms"] is None
    assert found["prefill.fit.ms_per_token"] == pytest.approx(2.0)
    assert not [name for name in found if name.endswith("salt")]
    assert dict(flat({"a": (1, {"b": 2.5}), "c": "text", "d": True, "e": None}, "x")) == {
        "x.a[0]": 1,
        "x.a[1].b": 2.5,
        "x.e": None,
    }
