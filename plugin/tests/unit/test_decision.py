"""The rule that decides by times alone: clear cases, dead ones, noise, and its error rates."""

from __future__ import annotations

import math
import random

import pytest

from pytest_llm_latency.verdicts.decision import (
    ROUNDS_AT_MOST,
    Decision,
    decide,
    decide_pairs,
    enough,
)


def simulate(ratio: float, noise: float, seed: int) -> tuple[str | None, int]:
    """(verdict, rounds) with log-normal noise on each leg."""
    generator = random.Random(seed)
    ratios: list[float] = []
    for _ in range(ROUNDS_AT_MOST):
        legs = [generator.gauss(0.0, noise) for _ in range(2)]
        ratios.append(ratio * math.exp(legs[0] - legs[1]))
        verdict = decide(ratios)
        if verdict is not None:
            return verdict, len(ratios)
    return None, ROUNDS_AT_MOST


def share(verdict: str, ratio: float, noise: float, runs: int = 60) -> float:
    return sum(simulate(ratio, noise, seed)[0] == verdict for seed in range(runs)) / runs


def test_one_round_decides_nothing() -> None:
    assert decide([100.0]) is None
    assert decide([]) is None


@pytest.mark.parametrize(("ratio", "right"), [(20.0, "holds"), (1.0, "broken")])
@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_clear_cases_are_decided_and_rightly(ratio: float, right: str, noise: float) -> None:
    wrong = {"holds": "broken", "broken": "holds"}[right]
    assert share(right, ratio, noise) > 0.97
    assert share(wrong, ratio, noise) == 0


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_wild_noise_is_rather_undecided_than_wrong(noise: float) -> None:
    assert share("holds", 1.0, noise) <= 0.01
    assert share("broken", 20.0, noise) == 0


def test_one_ruined_round_does_not_carry_the_verdict() -> None:
    assert decide([1.0, 1.01, 20.0]) != "holds"
    assert decide([20.0, 21.0, 1.0]) != "broken"


@pytest.mark.parametrize("counted", [True, False])
def test_rounds_that_are_wanted_in_any_case(counted: bool) -> None:
    """Beyond what decides, and beyond what would be enough for a rule that never decides."""
    assert enough([20.0] * 4, counted)
    assert not enough([20.0] * 4, counted, 5)
    assert enough([20.0] * 5, counted, 5)
    assert not enough([1.2] * ROUNDS_AT_MOST, counted, ROUNDS_AT_MOST + 1)
    assert enough([1.2] * (ROUNDS_AT_MOST + 1), counted, ROUNDS_AT_MOST + 1)


def noisy_pairs(ratio: float, noise: float, seed: int) -> Decision:
    """All rounds, each time with a noise of its own."""
    draw = random.Random(seed)
    slow = [ratio * math.exp(draw.gauss(0.0, noise)) for _ in range(ROUNDS_AT_MOST)]
    return decide_pairs(slow, [math.exp(draw.gauss(0.0, noise)) for _ in range(ROUNDS_AT_MOST)])


def test_a_five_fold_effect_shows_in_noise_that_nearly_doubles_a_ratio() -> None:
    """The typical round misses it by x1.88; the ratios alone leave most runs undecided."""
    noise = math.log(1.88) / 0.6745 / math.sqrt(2.0)
    assert sum(noisy_pairs(5.6, noise, seed) == "holds" for seed in range(200)) > 110
    assert sum(noisy_pairs(1.0, noise, seed) == "holds" for seed in range(500)) <= 3


def test_ranks_speak_after_the_last_round_alone() -> None:
    slow = [2.1, 4.0, 3.0, 9.0, 2.3, 8.0, 2.5, 6.0]
    fast = [0.9, 0.8, 2.2, 0.2, 1.5, 0.1, 1.7, 0.3]
    assert decide([a / b for a, b in zip(slow, fast)]) is None
    assert decide_pairs(slow, fast) == "holds"
    assert decide_pairs(slow[:-1], fast[:-1]) is None
