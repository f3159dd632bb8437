"""What run.json says of a run, and what grading a copy of it says."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import Fault

from pytest_llm_latency.errors import LatencyError
from pytest_llm_latency.lab.graded import GradedLab
from pytest_llm_latency.steps.judges import JUDGES, is_supporting

Found = dict[str, dict[str, Any]]
Servers = Callable[[Fault], tuple[str, Path]]


def causes_of(entry: dict[str, Any]) -> set[str]:
    """ "outcome: code" of what does not hold in a step, and is no row that only supports others."""
    return {
        f"{verdict['outcome']}: {verdict['cause']['code']}"
        for verdict in entry.get("verdicts", [])
        if verdict["outcome"] != "holds"
        and not (verdict["outcome"] == "not measurable" and is_supporting(verdict["relation"]))
    }


def split(cause: str) -> tuple[str, str]:
    """Outcome and code."""
    outcome, _, code = cause.partition(": ")
    return outcome, code


def check(found: Found, told: dict[str, str | None], words: str) -> None:
    """Exactly the steps of `told` failed, and each says what it must, and nothing else."""
    shown = {step: entry.get("error") or causes_of(entry) for step, entry in found.items()}
    assert {step for step, entry in found.items() if entry["outcome"] != "passed"} == set(told), (
        shown
    )
    for step, expected in told.items():
        if expected is None:
            assert words in found[step]["error"]
        else:
            causes = causes_of(found[step])
            broken = {code for outcome, code in map(split, causes) if outcome == "broken"}
            # What does not follow for the same cause is no other one.
            causes -= {f"inconclusive: {code}" for code in broken}
            assert causes in [set(one.split(" and ")) for one in expected.split(" or ")], shown


def graded(directory: Path, neutral: Path) -> dict[str, set[str]]:
    """The same by grading a copy of the directory; nothing for a step that cannot be derived."""
    shutil.copytree(directory, neutral)
    lab = GradedLab(neutral, 256 * 1024 * 1024)
    found: dict[str, set[str]] = defaultdict(set)
    for step, judge in JUDGES.items():
        with contextlib.suppress(LatencyError):
            verdicts = [dataclasses.asdict(verdict) for verdict in judge(getattr(lab, step)())]
            found[step] = causes_of({"verdicts": verdicts})
    return found
