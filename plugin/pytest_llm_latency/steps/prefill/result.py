"""What the prefill step gives, derived from its recordings. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...errors import ArtifactError
from ...evidence.artifacts import PrefillRow
from ...evidence.timeline import Timeline
from ...verdicts.decision import Decision
from ...verdicts.prompts import stalled
from ..answers import known_ms, usable
from ..legs import Recordings, check_asked, counting, leg_of, salt_in
from ..medians import (
    decided_by,
    jitter_ms_of,
    median_count,
    median_of,
    median_prefilled_ms,
    ratios_of,
)


@dataclass(frozen=True)
class PrefillResult:
    """Step 4. `legs` are the timelines by number of documents, one a round; empty where only
    the file is there."""

    rows: tuple[PrefillRow, ...]
    legs: Mapping[int, Sequence[Timeline]]

    @property
    def jitter_ms(self) -> float:
        """What two of its times can differ by for nothing."""
        return jitter_ms_of(self.legs.values())

    @property
    def counted(self) -> bool:
        """Whether the server counts the tokens of every prompt."""
        return all(row.prompt_n is not None for row in self.rows)

    @property
    def stalled(self) -> tuple[int, int, int] | None:
        """The first two prompts that do not grow with their documents: the tokens of both, and
        how many characters were added (0 where only the file is there). None: they grow, or the
        server does not say how long they are."""
        for few, many in pairwise(self.rows):
            added = self._characters(many) - self._characters(few)
            found = stalled(
                (few.prompt_n, many.prompt_n), (self._tokens(few), self._tokens(many)), added
            )
            if found is not None:
                return found
        return None

    def _tokens(self, row: PrefillRow) -> int | None:
        """All of the prompt; where the server does not say, those to process: of a cold one that
        is the same."""
        totals = [leg.prompt_total for leg in self.legs.get(row.docs, ())]
        total = median_count(totals) if totals else None
        return row.prompt_n if total is None else total

    def _characters(self, row: PrefillRow) -> int:
        return self.legs[row.docs][0].prompt_characters if self.legs else 0

    def prefilled_ms(self) -> list[float]:
        """When the prompts were done with, the medians of the rounds; of the file alone, TTFT."""
        if not self.legs:
            return [row.ttft_ms for row in self.rows]
        return [median_prefilled_ms(self.legs[row.docs]) for row in self.rows]

    @property
    def in_order(self) -> bool:
        """Whether prefill took longer with every more documents, by more than the jitter."""
        return all(b - a > self.jitter_ms for a, b in pairwise(self.prefilled_ms()))

    def ratios(self) -> list[float]:
        """Prefill with the most documents over prefill with the fewest, by round."""
        return ratios_of(self.legs[max(self.legs)], self.legs[min(self.legs)]) if self.legs else []

    def decided(self) -> Decision:
        """Whether times alone show that prefill took longer with the most documents."""
        return decided_by(self.legs[max(self.legs)], self.legs[min(self.legs)])


def prefill_result(recordings: Recordings) -> PrefillResult:
    """From the recordings "0docs-1", "4docs-1", …, the number behind the dash the round."""
    legs, salted = counting(recordings)
    rounds: dict[int, list[Timeline]] = {}
    for name, recording in legs.items():
        match = re.fullmatch(r"(\d+)docs-\d+", name)
        if match is not None:
            rounds.setdefault(int(match.group(1)), []).append(usable(recording))
    if len(rounds) < 2:
        raise ArtifactError("the evidence has fewer than two prompts of the prefill step")
    check_asked(legs, cache_prompt=False)
    salt = salt_in(leg_of(legs, f"{min(rounds)}docs-1"), salted)
    rows = tuple(
        PrefillRow(
            docs,
            median_count([leg.prompt_n for leg in rounds[docs]]),
            median_of([leg.prompt_ms for leg in rounds[docs]]),
            statistics.median(known_ms(leg.ttft_ms) for leg in rounds[docs]),
            salt,
        )
        for docs in sorted(rounds)
    )
    return PrefillResult(rows, rounds)
