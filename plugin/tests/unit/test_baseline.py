"""The rule for ratios beside a baseline: its bounds, its noise, and what it will not judge."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_llm_latency.compare.baseline import Measured, compare
from pytest_llm_latency.compare.noise import change, side, spread
from pytest_llm_latency.compare.ratios import Length, Ratio
from pytest_llm_latency.verdicts.verdict import Cause, Verdict


def is_worse(
    here: Sequence[float],
    there: Sequence[float],
    tolerance: float = 0.25,
    spread_of_one: float | None = None,
) -> bool:
    found, base = side(here, spread_of_one), side(there, spread_of_one)
    assert found is not None
    assert base is not None
    return change(found, base, tolerance).is_worse


def test_the_spread_is_that_of_the_logarithms() -> None:
    assert spread([1.0, 1.0, 1.0]) == 0.0
    assert spread([0.1, 0.2]) is None
    assert spread([]) is None
    draw = random.Random(1)
    many = [math.exp(draw.gauss(0.0, 0.1)) for _ in range(2000)]
    assert spread(many) == pytest.approx(0.1, rel=0.1)
    # In which unit does not matter.
    assert spread([7.0 * value for value in many]) == pytest.approx(spread(many))


@pytest.mark.parametrize(
    ("rounds", "tolerance", "at_most", "from_"),
    [
        (5, 0.25, 1.37, 1.39),
        (5, 0.0, 1.10, 1.11),
        (5, 1.0, 2.20, 2.22),
        (3, 0.25, 1.69, 1.71),
        (4, 0.25, 1.62, 1.64),
        (20, 0.25, 1.31, 1.32),
    ],
)
def test_rounds_that_agree_still_have_some_noise(
    rounds: int, tolerance: float, at_most: float, from_: float
) -> None:
    """The floor of the noise, and the tolerance, are what a change must be above."""
    assert not is_worse([at_most] * rounds, [1.0] * rounds, tolerance)
    assert is_worse([from_] * rounds, [1.0] * rounds, tolerance)
    assert not is_worse([1.0] * rounds, [from_] * rounds, tolerance)


def test_one_sample_shows_only_a_gross_change() -> None:
    assert side([0.5], None) is None
    assert side([], 0.1) is None
    assert not is_worse([40.0], [1.0], spread_of_one=0.05)
    assert is_worse([50.0], [1.0], spread_of_one=0.05)
    assert not is_worse([50.0], [1.0], spread_of_one=0.5)
    # Two rounds say no more of their noise than one, and five beside one not much.
    assert side([0.5, 0.5], None) is None
    assert not is_worse([5.0] * 5, [1.0], spread_of_one=0.05)


def test_zeros_are_no_error() -> None:
    assert not is_worse([0.0] * 5, [0.0] * 5)
    assert not is_worse([0.0] * 5, [1.0] * 5)
    assert is_worse([1.0] * 5, [0.0] * 5)


def test_every_round_must_be_worse_but_a_stray_of_six() -> None:
    there = [1.0, 1.02, 0.98, 1.01, 0.99]
    assert is_worse([3.0, 3.1, 2.9, 3.05, 2.95], there)
    assert not is_worse([3.0, 3.1, 1.2, 3.05, 2.95], there)
    assert not is_worse([3.0, 3.1, 2.9, 3.05, 2.95], [*there[:4], 2.5])
    assert is_worse([3.0, 3.1, 1.2, 3.05, 2.95, 3.0, 3.1], [*there, 2.5])


def test_wild_noise_is_no_fault() -> None:
    draw = random.Random(2)

    def rounds(ratio: float, noise: float) -> list[float]:
        return [ratio * math.exp(draw.gauss(0.0, noise)) for _ in range(5)]

    for noise in (0.05, 0.2, 0.5, 1.0):
        false = sum(is_worse(rounds(1.0, noise), rounds(1.0, noise)) for _ in range(1000))
        assert false <= (noise > 0.3)
    assert all(is_worse(rounds(3.0, 0.05), rounds(1.0, 0.05)) for _ in range(200))


# --- the verdicts ---

HELD = Verdict("cache", "second < first in ttft", "holds", "10 ms against 300 ms")
CAUSE = Cause("any", "words")
RATIO = Ratio("cached / cold ttft", (0.03,) * 5, 0.0003, Length("cold prompts", 1000, 4000))


def run(
    ratio: Ratio | str | None = RATIO,
    verdicts: Sequence[Verdict] = (HELD,),
    spread_of_one: float | None = None,
) -> Measured:
    return Measured(verdicts, ratio, lambda: spread_of_one)


def last(here: Measured, there: Measured | str, tolerance: float = 0.25) -> Verdict:
    return compare("cache", here, there, tolerance)[-1]


def test_a_ratio_that_is_the_same_holds() -> None:
    verdicts = compare("cache", run(), run(), 0.25)
    assert [verdict.outcome for verdict in verdicts] == ["holds", "holds"]
    assert verdicts[1].relation == "cached / cold ttft is no worse than in the baseline"
    assert verdicts[1].numbers == "0.03 against 0.03: x1.00 (noise x1.10, tolerance x1.25)"


@pytest.mark.parametrize(
    ("step", "reasons"),
    [
        ("ttft", ("before the first text got slower", "generation got faster")),
        ("prefill", ("prefill got slower", "generation got faster")),
        ("cache", ("the cached prompt got slower", "a cold prompt got faster")),
        ("sentence", ("before the first sentence is complete got slower", "the rest of the answer got faster")),
    ],
)  # fmt: skip
def test_a_worse_one_says_the_numbers_and_both_reasons(step: str, reasons: tuple[str, str]) -> None:
    verdict = compare(step, run(replace(RATIO, rounds=(0.09,) * 5)), run(), 0.25)[-1]
    assert verdict.outcome == "broken"
    assert verdict.numbers == "0.09 against 0.03: x3.00 (noise x1.10, tolerance x1.25)"
    assert verdict.cause is not None
    assert verdict.cause.code == "worse-than-baseline"
    for words in ("x3.00 what it was", "x1.10", "x1.25 is tolerated", *reasons):
        assert words in verdict.cause.sentence


def of(**fields: object) -> Measured:
    return run(replace(RATIO, rounds=(0.09,) * 5, **fields))  # type: ignore[arg-type]


WORSE = of()
BROKEN = replace(HELD, relation="another", outcome="broken", cause=CAUSE)
UNCLEAR = replace(HELD, outcome="inconclusive", cause=CAUSE)


@pytest.mark.parametrize(
    ("here", "there", "code", "words"),
    [
        (WORSE, "run.json: the run has not measured the step 'cache'", "no-baseline", "run.json: the run has not measured the step 'cache'"),
        (run("the files alone do not say how long a token takes to generate"), run(), "no-ratio", "the files alone do not say how long a token takes to generate"),
        (run(), run("the files alone do not say how long a token takes to generate"), "no-ratio", "the files alone do not say how long a token takes to generate"),
        (run(WORSE.ratio, [HELD, BROKEN]), run(), "step-does-not-hold", "does not hold here"),
        (WORSE, run(verdicts=[HELD, BROKEN]), "step-does-not-hold", "does not hold in the baseline"),
        (run(WORSE.ratio, [UNCLEAR]), run(), "step-does-not-hold", "does not hold here"),
        (of(text=("A.", "A. B.")), run(), "another-text", '{"temperature": 0}'),
        (of(length=Length("cold prompts", 1112, 4000)), run(), "another-length", "1,112 tokens here, 1,000 in the baseline"),
        (of(length=Length("cold prompts", 899, 4000)), run(), "another-length", "899 tokens here"),
        (of(length=Length("cold prompts", None, 4000)), run(), "another-length", "are counted in the baseline, and not here"),
        (WORSE, run(replace(RATIO, length=Length("cold prompts", None, 4000))), "another-length", "are counted here, and not in the baseline"),
        (of(length=Length("answers", None, 100)), run(replace(RATIO, length=Length("answers", None, 120))), "another-length", "100 characters here, 120 in"),
        (of(length=Length("answers", None, None)), run(replace(RATIO, length=Length("answers", None, 120))), "another-length", "not known on both sides"),
        (of(resolution=0.06), run(), "within-jitter", "the stamps' own error"),
        (WORSE, run(replace(RATIO, resolution=0.06)), "within-jitter", "the stamps' own error"),
        (run(replace(RATIO, rounds=(0.09, 0.03, 0.3, 0.09, 0.02))), run(), "noise", "5 rounds here, 5 there"),
        (run(replace(RATIO, rounds=(0.09,))), run(), "noise-unknown", "not known here"),
        (WORSE, run(replace(RATIO, rounds=(0.03, 0.03))), "noise-unknown", "not known in the baseline"),
        (run(replace(RATIO, rounds=(0.09,)), spread_of_one=0.1), run(), "noise", "1 rounds here, 5 there"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_not_judged(
    here: Measured, there: Measured | str, code: str, words: str
) -> None:
    verdict = last(here, there)
    assert verdict.outcome == "not judged"
    assert verdict.cause is not None
    assert verdict.cause.code == code
    assert words in verdict.cause.sentence


@pytest.mark.parametrize("tokens", [1110, 901])
def test_a_tenth_more_or_less_is_the_same_length(tokens: int) -> None:
    assert last(of(length=Length("cold prompts", tokens, None)), run()).outcome == "broken"


def test_a_lost_cache_shows_in_one_sample() -> None:
    here, there = (run(replace(RATIO, rounds=(value,)), spread_of_one=0.1) for value in (1.0, 0.01))
    assert last(here, there).outcome == "broken"


def test_the_noise_of_one_is_asked_for_only_where_it_is_needed() -> None:
    def refuse() -> float:
        raise AssertionError("five more requests for nothing")

    assert last(Measured([HELD], RATIO, refuse), Measured([HELD], RATIO, refuse)).outcome == "holds"


def test_a_relation_that_held_and_is_broken_now() -> None:
    now = replace(HELD, outcome="broken", numbers="300 ms against 301 ms", cause=CAUSE)
    lost, ratio = compare("cache", run(verdicts=[now]), run(), 0.25)
    assert (lost.outcome, ratio.outcome) == ("broken", "not judged")
    assert lost.relation == "what held in the baseline is not broken"
    assert lost.numbers == (
        "second < first in ttft: 10 ms against 300 ms there, 300 ms against 301 ms here"
    )
    assert lost.cause is not None
    assert lost.cause.code == "held-in-baseline"
    assert "10 ms against 300 ms" in lost.cause.sentence


@pytest.mark.parametrize(
    ("here", "there", "outcomes"),
    [
        ([BROKEN], [replace(BROKEN)], []),
        ([replace(BROKEN, relation=UNCLEAR.relation)], [UNCLEAR], []),
        ([HELD, BROKEN], [HELD, BROKEN], ["holds"]),
        ([BROKEN], [HELD, BROKEN], ["not judged"]),
        ([UNCLEAR], [HELD], ["not judged"]),
        ([], [HELD], ["not judged"]),
    ],
)
def test_what_did_not_hold_there_was_not_lost(
    here: list[Verdict], there: list[Verdict], outcomes: list[str]
) -> None:
    verdicts = compare("server", run(None, here), run(None, there), 0.25)
    assert [verdict.outcome for verdict in verdicts] == outcomes
