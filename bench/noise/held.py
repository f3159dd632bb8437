"""How often a stream that nothing held is said to have been, and a hold is seen, by recorded noise.

`python bench/noise/held.py bench/noise/streams.json` judges the recorded streams (`streams.py`) as
they are, and with a hold made in each: pieces that come when the last of them came, or, trickling,
a millisecond apart from then on. Three in a row is what a run needs to be broken.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from pytest_llm_latency.evidence.run_index import Outcome
from pytest_llm_latency.evidence.timeline import Piece, Timeline
from pytest_llm_latency.verdicts.stream import comes_as_made, ttft_below_total

Judge = Callable[[Timeline], Outcome]
TRICKLE_MS = 1.0
# Pieces held, where, whether they trickle.
HOLDS = [
    *((count, where, False) for count in (8, 16, 32) for where in ("start", "middle", "end")),
    *((32, where, True) for where in ("start", "middle", "end")),
]
IN_A_ROW = 3


def timeline_of(row: dict[str, Any]) -> Timeline:
    """The stream of a row."""
    moments = [tenths / 10.0 for tenths in accumulate(row["gaps"])]
    return Timeline(
        pieces=tuple(Piece(t_ms, "w ") for t_ms in moments),
        total_ms=row["total_ms"],
        timings={name: row[name] for name in ("predicted_n", "predicted_ms")},
        finish_reason="length",
        done=True,
        jitter_ms=row["jitter_ms"],
        cpu_wait_ms=row["cpu_wait_ms"],
    )


def with_hold(timeline: Timeline, count: int, where: str, trickles: bool) -> Timeline:
    """Some of its pieces held until the last of them was there."""
    moments = [piece.t_ms for piece in timeline.pieces]
    begin = {"start": 0, "middle": (len(moments) - count) // 2, "end": len(moments) - count}[where]
    released_ms = moments[begin + count - 1]
    for i in range(count):
        moments[begin + i] = released_ms + (TRICKLE_MS * i if trickles else 0.0)
    last_ms = 0.0
    for i, t_ms in enumerate(moments):
        last_ms = moments[i] = max(t_ms, last_ms)
    pieces = tuple(replace(piece, t_ms=t_ms) for piece, t_ms in zip(timeline.pieces, moments))
    return replace(timeline, pieces=pieces, total_ms=max(timeline.total_ms or 0.0, last_ms))


def uncounted(timeline: Timeline) -> Timeline:
    """The same from a server that says no times."""
    return replace(timeline, timings={})


def judged(timelines: Iterable[Timeline]) -> list[Outcome]:
    """What is worst of both relations."""
    worst: list[Outcome] = []
    for timeline in timelines:
        outcomes = {comes_as_made(timeline).outcome, ttft_below_total(timeline).outcome}
        worst.append(
            "broken" if "broken" in outcomes
            else "inconclusive" if "inconclusive" in outcomes
            else "holds"
        )  # fmt: skip
    return worst


def shown(outcomes: list[Outcome]) -> str:
    """Broken, and inconclusive."""
    counts = Counter(outcomes)
    return f"{counts['broken']}, {counts['inconclusive']}"


def in_a_row(outcomes: list[Outcome]) -> int:
    """How often three that follow each other are all broken."""
    runs = zip(*(outcomes[start:] for start in range(IN_A_ROW)))
    return sum(all(outcome == "broken" for outcome in run) for run in runs)


def main() -> None:
    """Both tables."""
    recorded = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    streams = {load: [timeline_of(row) for row in rows] for load, rows in recorded.items()}
    print("| spinning | server's times | streams | broken, inconclusive | three in a row broken |")
    print("|---|---|---|---|---|")
    for load, timelines in streams.items():
        for told, made in (("yes", timelines), ("no", [uncounted(t) for t in timelines])):
            found = judged(made)
            print(f"| {load} | {told} | {len(found)} | {shown(found)} | {in_a_row(found)} |")
    print("\n| held | server's times |", " | ".join(f"{load} spinning" for load in streams), "|")
    print("|---|---|" + "---|" * len(streams))
    for count, where, trickles in HOLDS:
        name = f"{count} at the {where}" if where != "middle" else f"{count} in the middle"
        name += ", trickling" if trickles else ""
        for told in ("yes", "no"):
            cells = []
            for timelines in streams.values():
                made = [with_hold(timeline, count, where, trickles) for timeline in timelines]
                made = made if told == "yes" else [uncounted(timeline) for timeline in made]
                cells.append(shown(judged(made)))
            print(f"| {name} | {told} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
