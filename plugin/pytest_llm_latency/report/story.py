"""What the page tells, read from a directory's files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ..errors import ArtifactError, LatencyError
from ..evidence.run_index import RUN_FILE, Outcome, RunIndex
from ..lab.graded import GradedLab
from ..steps.cache.result import CacheResult
from ..steps.cancel.result import CancelResult
from ..steps.prefill.result import PrefillResult
from ..steps.sentence.result import SentenceResult
from ..steps.sentence.sentences import Rule
from ..steps.server.result import ServerResult
from ..steps.sse.result import SseResult
from ..steps.ttft.result import TtftResult
from ..verdicts.verdict import Cause, Verdict

STEPS: Mapping[str, str] = {
    "server": "Server",
    "sse": "The stream",
    "ttft": "Time to first token",
    "prefill": "Prefill",
    "cache": "KV cache",
    "sentence": "First sentence",
    "cancel": "Cancel",
    "report": "Report",
}
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
NO_ERRORS: Mapping[str, str] = {}


@dataclass(frozen=True)
class StepView:
    """What the page says of a step before its numbers. `error` is why the newest run could not
    measure it; `earlier` names the run that did, where that is not the newest."""

    name: str
    title: str
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = ()
    error: str | None = None
    earlier: str | None = None


@dataclass(frozen=True)
class Story:
    """All that the page tells, as the files have it: a step's result is None where they do not.
    `facts` are those of the newest run."""

    steps: Sequence[StepView]
    facts: Mapping[str, Any]
    rule: Rule
    words_per_minute: float
    server: ServerResult | None = None
    sse: SseResult | None = None
    ttft: TtftResult | None = None
    prefill: PrefillResult | None = None
    cache: CacheResult | None = None
    sentence: SentenceResult | None = None
    cancel: CancelResult | None = None


def read(
    directory: Path,
    max_bytes: int,
    verdicts: Sequence[Verdict] | None = None,
    errors: Mapping[str, str] = NO_ERRORS,
) -> Story:
    """What the files of a directory tell. Raises ArtifactError where it has no run.json that can
    be read, and no verdicts are given."""
    lab = GradedLab(directory, max_bytes)
    index = lab.index
    if index is None and verdicts is None:
        raise ArtifactError(f"{RUN_FILE}: is missing")
    failed = dict(errors)
    if index is not None:
        failed |= {step: str(entry.get("error")) for step, entry in index.failures().items()}
    told = frozenset(failed)  # that there was a failure; else a step is only not there
    # What an earlier run left of a step that the newest could not measure would mislead.
    measured = [step for step in STEPS if step not in failed]
    results = {step: _result(getattr(lab, step), step, failed) for step in measured}
    results.pop("report", None)
    judged = stored_verdicts(index) if verdicts is None and index is not None else verdicts or ()
    names = dict.fromkeys([*STEPS, *failed, *(verdict.step for verdict in judged)])
    steps = [
        _step(step, [v for v in judged if v.step == step], index, failed, told) for step in names
    ]
    return Story(
        [step for step in steps if step is not None],
        index.newest() if index is not None else {},
        *lab.spoken_by(),
        **results,
    )


def _result(ask: Callable[[], Any], step: str, errors: dict[str, str]) -> Any:
    try:
        return ask()
    except LatencyError as error:
        errors[step] = str(error)
        return None


def _step(
    step: str,
    verdicts: Sequence[Verdict],
    index: RunIndex | None,
    errors: Mapping[str, str],
    told: frozenset[str],
) -> StepView | None:
    """None where the directory has nothing of the step, and nothing is `told` of it."""
    title, error = STEPS.get(step, step), errors.get(step)
    if index is None:
        return StepView(step, title, verdicts, error=None if verdicts else error)
    if step in told:
        return StepView(step, title, error=error)
    if not index.has(step):
        return StepView(step, title, verdicts) if verdicts else None
    entry = index.step(step)
    notes = [str(note) for note in entry.get("notes", ())]
    is_new = entry["run"] == index.newest()["run"]
    return StepView(step, title, verdicts, notes, error, None if is_new else index.name(entry))


def stored_verdicts(index: RunIndex) -> list[Verdict]:
    """The verdicts of a run.json, those beside a baseline after the step's own. Raises
    ArtifactError where they are none."""
    found = []
    for step in index.steps():
        entry = index.step(step)
        compared = entry.get("compared") or {}
        for row in [*(entry.get("verdicts") or ()), *(compared.get("verdicts") or ())]:
            try:
                cause = row["cause"] and Cause(row["cause"]["code"], row["cause"]["sentence"])
                found.append(
                    Verdict(row["step"], row["relation"], row["outcome"], row["numbers"], cause)
                )
                OUTCOMES.index(found[-1].outcome)
            except (TypeError, ValueError, LookupError) as error:
                raise ArtifactError(f"{RUN_FILE}: verdicts of {step}: {error!r}") from None
    return found
