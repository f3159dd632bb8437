"""What the cache step gives, derived from its recordings. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ArtifactError
from ...evidence.activity import answer_of
from ...evidence.artifacts import Cache, CacheLeg
from ...evidence.timeline import COLD_SHARE, Timeline
from ...verdicts.decision import RATIO, ROUNDS_AT_MOST, Decision
from ..answers import known_ms, usable
from ..legs import Recordings, check_asked, counting, leg_of, salt_in
from ..medians import decided_by, jitter_ms_of, median_count, median_prefilled_ms, ratios_of

# The changed suffix comes while the slot still holds the prompt that it shares its front with.
CACHE_LEGS = ("first", "second", "changed_suffix", "changed_prefix")
CACHE_COLD = ("first", "changed_prefix")
CACHE_LOOK = "slots"
REPLAY_SHARE = 0.1
REPLAY_OF_AT_LEAST_MS = 50.0


@dataclass(frozen=True)
class CacheResult:
    """Step 5. `legs` are the timelines by name, one a round, `clearing` those of the short
    requests before; empty where only the file is there. `others`: while nothing was asked here,
    the server worked on requests. `why`: of the file alone, the Cause of a miss, as its
    numbers tell it."""

    cache: Cache
    legs: Mapping[str, Sequence[Timeline]]
    clearing: Sequence[Timeline] = ()
    others: bool = False
    why: Any = None

    @property
    def sometimes(self) -> bool:
        """Whether the counts show a hit in some rounds and none in others."""
        return len({leg.cold for leg in self.legs.get("second", ())}) > 1

    @property
    def jitter_ms(self) -> float:
        """What two of its times can differ by for nothing."""
        return jitter_ms_of(self.legs.values())

    def prefilled_ms(self, leg: str) -> float:
        """When the prompt of a leg was done with, the median of the rounds; of the file alone,
        TTFT."""
        if not self.legs:
            return float(getattr(self.cache, leg).ttft_ms)
        return median_prefilled_ms(self.legs[leg])

    @property
    def missed(self) -> tuple[Timeline, Timeline]:
        """First and second leg of the round that tells most of a miss: one in which the same
        prompt had another length the second time (where it is rewritten, it may have the same by
        chance), else the last."""
        pairs = list(zip(self.legs["first"], self.legs["second"]))
        differing = (pair for pair in pairs if len({leg.prompt_total for leg in pair} - {None}) > 1)
        return next(differing, pairs[-1])

    @property
    def elsewhere(self) -> bool:
        """Whether the prompt that follows the second, with another end, was reused each time."""
        rounds = self.legs.get("changed_suffix", ())
        return bool(rounds) and all(leg.cold is False for leg in rounds)

    def hits_by_time(self) -> bool | None:
        """Whether the times alone show a cached second leg, as they never do of a dead cache;
        None: they may, after further rounds."""
        decided = set(self.decided().values())
        never = any(max(self.ratios(name)) < RATIO for name in CACHE_COLD)
        if never or "broken" in decided or len(self.legs["second"]) >= ROUNDS_AT_MOST:
            return decided == {"holds"}
        return True if decided == {"holds"} else None

    @property
    def replayed(self) -> bool:
        """Whether every second answer is the first one's text, and came in a tenth of the time
        that it takes to generate it, or less."""
        pairs = list(zip(self.legs.get("first", ()), self.legs.get("second", ())))
        return bool(pairs) and all(_is_replay(made, again) for made, again in pairs)

    def ratios(self, cold: str) -> list[float]:
        """Prefill of the leg `cold` over that of the cached one, by round."""
        return ratios_of(self.legs[cold], self.legs["second"]) if self.legs else []

    def decided(self) -> dict[str, Decision]:
        """Whether times alone show that the cached leg was the faster, by cold leg. Where it took
        as long as one of them, and the noise hides whether as long as the other, it was not
        cached: both are the same prompt, processed."""
        found = {name: decided_by(self.legs[name], self.legs["second"]) for name in CACHE_COLD}
        hidden = [name for name, decision in found.items() if decision is None]
        near = all(statistics.median(self.ratios(name)) < RATIO for name in hidden)
        if "broken" in found.values() and "holds" not in found.values() and near:
            return dict.fromkeys(found, "broken")
        return found

    def visible(self) -> list[float]:
        """Prefill of the cold long prompt over that of the short one before, by round."""
        return ratios_of(self.legs["first"], self.clearing) if self.legs else []

    def is_visible(self) -> bool:
        """Whether times alone show prefill at all: the long prompt against the short one."""
        return decided_by(self.legs["first"], self.clearing) == "holds"

    @property
    def counted(self) -> bool:
        """Whether the server counts all that is compared."""
        legs = (self.cache.first, self.cache.second, self.cache.changed_prefix)
        return all(leg.prompt_n is not None for leg in legs)

    def reused(self, leg: str) -> int | None:
        """Prompt tokens that a leg took from the cache, the median of its rounds; None where it
        is not told."""
        rounds = self.legs.get(leg, ())
        return median_count([one.cache_n for one in rounds]) if rounds else None

    def hits(self, cold: str) -> bool:
        """Whether the counts show that the second leg was cached and the leg `cold` was not: a
        front that all prompts share, the template's, is no hit."""
        second, other = self.cache.second.prompt_n, getattr(self.cache, cold).prompt_n
        if second is None or other is None or second >= other:
            return False
        if not self.legs:  # a directory made by hand does not tell the whole of a prompt
            return bool(second < COLD_SHARE * other)
        return not any(leg.cold for leg in self.legs.get("second", ()))


def _is_replay(made: Timeline, again: Timeline) -> bool:
    spans = [leg.pieces[-1].t_ms - known_ms(leg.ttft_ms) for leg in (made, again)]
    return (
        made.text == again.text
        and spans[0] > max(REPLAY_OF_AT_LEAST_MS, made.jitter_ms)
        and spans[1] < REPLAY_SHARE * spans[0]
    )


def cache_result(recordings: Recordings) -> CacheResult:
    """From the recordings "first-1", "second-1", …, the number behind the dash the round."""
    legs, salted = counting(recordings, f"{CACHE_LEGS[-1]}-1")
    rounds = len([name for name in legs if name.startswith("first-")])
    if not rounds:
        raise ArtifactError("the evidence has no request of the cache step")
    found = {
        name: [leg_of(legs, f"{name}-{number}") for number in range(1, rounds + 1)]
        for name in CACHE_LEGS
    }
    check_asked(
        {f"{name}-{i}": one for name in CACHE_LEGS for i, one in enumerate(found[name], 1)},
        cache_prompt=True,
    )
    timelines = {name: list(map(usable, found[name])) for name in CACHE_LEGS}
    cache = Cache(
        **{
            name: CacheLeg(
                median_count([leg.prompt_n for leg in timelines[name]]),
                statistics.median(known_ms(leg.ttft_ms) for leg in timelines[name]),
            )
            for name in CACHE_LEGS
        },
        salt=salt_in(found["first"][0], salted),
    )
    clearing = [usable(leg_of(legs, f"clearing-{number}")) for number in range(1, rounds + 1)]
    return CacheResult(cache, timelines, clearing, _others(recordings))


def _others(recordings: Recordings) -> bool:
    """Whether the answers of /slots "slots-1", "slots-2", …, between which nothing was asked here,
    show a task after another."""
    looks = [r for name, r in recordings.items() if name.startswith(f"{CACHE_LOOK}-")]
    tasks = {answer_of(look.status or 0, look.body).task for look in looks} - {None}
    return len(tasks) > 1
