"""A line through the prompts of the prefill step: milliseconds a token, and what is fixed. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from .result import PrefillResult


@dataclass(frozen=True)
class Fit:
    """TTFT as a line over the tokens of the prompt: `ms_per_token`, the fixed part, and how much
    of what the points differ by the line explains (R²)."""

    ms_per_token: float
    fixed_ms: float
    r_squared: float
    points: tuple[tuple[int, float], ...]  # (prompt_n, ttft_ms)

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt that was measured."""
        return max(n for n, _ in self.points)

    def ttft_ms(self, tokens: float) -> float:
        """What a prompt of so many tokens would take by the line."""
        return self.fixed_ms + self.ms_per_token * tokens


def fit(result: PrefillResult) -> Fit | None:
    """The line through all rounds of step 4 (through its rows, where only the file is there);
    None where the server counts no tokens, or they do not differ."""
    legs = [leg for rounds in result.legs.values() for leg in rounds]
    numbers: list[tuple[int | None, float | None]] = (
        [(leg.prompt_n, leg.ttft_ms) for leg in legs]
        if legs
        else [(row.prompt_n, row.ttft_ms) for row in result.rows]
    )
    points = tuple((n, ms) for n, ms in numbers if n is not None and ms is not None)
    if len({n for n, _ in points}) < 2:
        return None
    tokens, times = [float(n) for n, _ in points], [ms for _, ms in points]
    slope, intercept = statistics.linear_regression(tokens, times)
    if len(set(times)) == 1:
        return Fit(slope, intercept, 1.0, points)
    return Fit(slope, intercept, statistics.correlation(tokens, times) ** 2, points)
