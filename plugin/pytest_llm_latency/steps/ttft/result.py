"""What the ttft step gives, derived from its recordings. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ...errors import ArtifactError
from ...evidence.artifacts import Ttft, TtftRun
from ...evidence.timeline import Timeline
from ...plan import Plan
from ..answers import known_ms, usable
from ..legs import Recordings, check_asked, counting, leg_of, salt_in


@dataclass(frozen=True)
class TtftResult:
    """Step 3. `timelines` are the runs; none where only the file is there."""

    ttft: Ttft
    timelines: tuple[Timeline, ...] = ()


def ttft_result(recordings: Recordings) -> TtftResult:
    """From the recordings "1", "2", …; "1.2" is the second attempt of the first run."""
    legs, salted = counting(recordings)
    last = {name.partition(".")[0]: name for name in sorted(legs)}
    if not last:
        raise ArtifactError("the evidence has no request of the ttft step")
    ordered = [leg_of(legs, last.get(str(n), str(n))) for n in range(1, len(last) + 1)]
    check_asked(legs, cache_prompt=False)
    timelines = tuple(map(usable, ordered))
    runs = tuple(
        TtftRun(known_ms(leg.ttft_ms), known_ms(leg.total_ms), leg.tokens) for leg in timelines
    )
    ttft = Ttft(
        runs,
        statistics.median(run.ttft_ms for run in runs),
        statistics.median(run.total_ms for run in runs),
        salt_in(ordered[0], salted),
    )
    return TtftResult(ttft, timelines)


def run_numbers(plan: Plan) -> list[str]:
    """The runs of the ttft step."""
    return [str(number) for number in range(1, plan.ttft_runs + 1)]
