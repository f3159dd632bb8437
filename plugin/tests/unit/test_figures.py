"""The ratio of every step: from recordings, from files alone, and where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_llm_latency.compare.ratios import (
    Length,
    Ratio,
    cache_ratio,
    prefill_ratio,
    sentence_ratio,
    ttft_ratio,
)
from pytest_llm_latency.evidence.artifacts import (
    Cache,
    CacheLeg,
    PrefillRow,
    Sentence,
    Ttft,
    TtftRun,
)
from pytest_llm_latency.evidence.timeline import Piece, Timeline
from pytest_llm_latency.steps.cache.result import CacheResult
from pytest_llm_latency.steps.prefill.result import PrefillResult
from pytest_llm_latency.steps.sentence.result import SentenceResult
from pytest_llm_latency.steps.ttft.result import TtftResult


def answer(
    ttft: float,
    total: float,
    *,
    prompt_n: int | None = 100,
    tokens: int | None = 11,
    **fields: object,
) -> Timeline:
    timings = {"prompt_n": prompt_n, "cache_n": 0, "predicted_n": tokens}
    return Timeline(
        pieces=(Piece(ttft, "x" * 40),),
        token_ms=(ttft,),
        total_ms=total,
        timings={key: value for key, value in timings.items() if value is not None},
        done=True,
        prompt="p" * 400,
        **fields,  # type: ignore[arg-type]
    )


def found(ratio: Ratio | str) -> Ratio:
    assert isinstance(ratio, Ratio), ratio
    return ratio


def test_ttft() -> None:
    legs = tuple(answer(10.0 * n, 100.0, jitter_ms=0.5, cpu_wait_ms=0.25 * n) for n in (1, 2, 3))
    runs = tuple(TtftRun(10.0 * n, 100.0, 10 + n) for n in (1, 2, 3))
    ratio = ttft_ratio(TtftResult(Ttft(runs, 20.0, 100.0), legs))
    assert ratio.rounds == (0.1, 0.2, 0.3)
    assert ratio.resolution == pytest.approx(0.01)  # of the jitter and the wait for a core
    assert ratio.length == Length("answers", 12, 40)
    by_hand = ttft_ratio(TtftResult(Ttft((*runs, TtftRun(0.0, 0.0, None)), 15.0, 100.0)))
    assert by_hand.length == Length("answers", None, None)
    assert by_hand.rounds[3] == 1.0


def test_cache() -> None:
    legs = {
        "first": [answer(300.0, 400.0, prompt_n=1000), answer(200.0, 400.0, prompt_n=1010)],
        "second": [answer(30.0, 100.0, prompt_n=1, jitter_ms=0.25), answer(40.0, 100.0)],
    }
    cache = Cache(CacheLeg(1005, 250.0), CacheLeg(1, 35.0), CacheLeg(1005, 250.0))
    ratio = cache_ratio(CacheResult(cache, legs))
    assert ratio.rounds == pytest.approx((0.1, 0.2))
    assert ratio.resolution == pytest.approx(0.125 / 250)
    assert ratio.length == Length("cold prompts", 1005, 400)
    by_hand = cache_ratio(CacheResult(cache, {}))
    assert by_hand.rounds == (0.14,)
    assert by_hand.length == Length("cold prompts", 1005, None)


def prefill(*legs: tuple[Timeline, Timeline]) -> PrefillResult:
    rows = tuple(PrefillRow(docs, 1, 1.0, 1.0) for docs in (0, 12))
    return PrefillResult(rows, {0: [leg[0] for leg in legs], 12: [leg[1] for leg in legs]})


def test_prefill_by_what_its_own_answers_took() -> None:
    """100 and 1,100 tokens in 20 and 520 ms: 0.5 ms each; 10 further tokens in 50 ms: 5 ms."""
    short, long = answer(20.0, 70.0, jitter_ms=0.5), answer(520.0, 570.0, prompt_n=1100)
    ratio = found(prefill_ratio(prefill((short, long), (short, replace(long, jitter_ms=1.5)))))
    assert ratio.rounds == pytest.approx((0.1, 0.1))
    assert ratio.resolution == pytest.approx(0.5 / 5000)
    assert ratio.length == Length("cold prompts", 1100, 400)


def test_prefill_by_the_server_s_own_generation_time() -> None:
    def timed(leg: Timeline) -> Timeline:
        return replace(leg, timings={**leg.timings, "predicted_ms": 110.0})

    short, long = timed(answer(20.0, 70.0)), timed(answer(520.0, 570.0, prompt_n=1100))
    assert found(prefill_ratio(prefill((short, long)))).rounds == pytest.approx((0.05,))


def test_reasoning_is_no_prefill() -> None:
    """The answer's first text may come whenever it likes: prefill ends with the first token."""
    short, long = answer(320.0, 370.0), answer(600.0, 650.0, prompt_n=1100)
    legs = replace(short, token_ms=(20.0,)), replace(long, token_ms=(520.0,))
    # 500 ms for 1,000 tokens, and 24 ms a generated one: (350 + 130) ms for 20
    assert found(prefill_ratio(prefill(legs))).rounds == pytest.approx((0.5 / 24.0,))


def test_prefill_by_usage_alone() -> None:
    usage = [{"prompt_tokens": n, "completion_tokens": 11} for n in (100, 1100)]
    short, long = (
        replace(answer(ttft, ttft + 50.0), timings={}, usage=one)
        for ttft, one in zip((20.0, 520.0), usage)
    )
    assert found(prefill_ratio(prefill((short, long)))).rounds == pytest.approx((0.1,))


def test_prefill_that_noise_has_turned_round_is_as_small_as_can_be_told() -> None:
    legs = answer(30.0, 80.0, jitter_ms=2.0), answer(20.0, 70.0, prompt_n=1100)
    assert found(prefill_ratio(prefill(legs))).rounds == pytest.approx((2.0 / 5000,))


@pytest.mark.parametrize(
    ("short", "long", "words"),
    [
        (answer(20.0, 70.0, prompt_n=None), answer(520.0, 570.0), "does not count the tokens of the prompts"),
        (answer(20.0, 70.0), answer(520.0, 570.0), "does not count the tokens of the prompts"),
        (answer(20.0, 70.0, tokens=7), answer(520.0, 570.0, prompt_n=1100, tokens=7), "answers of at least 8 counted tokens"),
        (answer(20.0, 70.0, tokens=None), answer(520.0, 570.0, prompt_n=1100, tokens=None), "answers of at least 8 counted tokens"),
        (answer(20.0, 20.0), answer(520.0, 520.0, prompt_n=1100), "answers of at least 8 counted tokens"),
    ],
)  # fmt: skip
def test_prefill_without_counts(short: Timeline, long: Timeline, words: str) -> None:
    ratio = prefill_ratio(prefill((short, long)))
    assert isinstance(ratio, str)
    assert words in ratio


def test_prefill_by_files_alone() -> None:
    assert "the files alone" in str(prefill_ratio(PrefillResult(prefill().rows, {})))


def test_a_sentence_is_that_of_one_text() -> None:
    first = Sentence(10.0, 30.0, 100.0, "A.", "A. B.")
    rounds = (first, replace(first, first_sentence_ms=40.0), replace(first, text="A. C."))
    timeline = answer(10.0, 100.0, jitter_ms=1.0)
    ratio = sentence_ratio(SentenceResult(first, timeline, None, rounds))
    assert ratio.rounds == (0.3, 0.4)
    assert ratio.text == ("A.", "A. B.")
    assert ratio.resolution == pytest.approx(0.01)
    assert sentence_ratio(SentenceResult(first)).rounds == (0.3,)
