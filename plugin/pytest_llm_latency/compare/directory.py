"""An earlier run's directory, opened to stand beside this run. It is only read.

It finds what `baseline.py` compares, and gives what run.json keeps of it; it judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import ArtifactError, ConfigError, LatencyError
from ..evidence.run_index import RUN_FILE
from ..lab.graded import GradedLab
from ..lab.protocol import Lab
from ..proof.verdicts import NONSENSE
from ..sse import shown_words
from ..steps.judges import JUDGES
from ..steps.ttft.result import TtftResult
from ..verdicts.verdict import Verdict
from .baseline import Measured, compare, measured
from .ratios import Ratio


class Baseline:
    """The baseline of a run."""

    def __init__(
        self, directory: Path, source: str, tolerance: float, max_bytes: int, other: Path
    ) -> None:
        """Raises ConfigError, which names `source`, where `directory` is no run's, or the same as
        `other`, which is graded or written."""
        if not directory.is_dir():
            raise ConfigError(f"{source}: {directory} is not a directory")
        if directory.resolve() == other.resolve():
            # It could be read before it is overwritten; but then nobody could see any more what
            # the run was compared with.
            raise ConfigError(
                f"{source}: {directory} is this run's own directory: copy it first, or write to "
                "another one (--llm-artifacts=DIR)"
            )
        try:
            self._lab = GradedLab(directory, max_bytes)
        except ArtifactError as error:
            raise ConfigError(f"{source}: {directory}: {error}") from None
        if self._lab.level != "evidence":
            raise ConfigError(f"{source}: {directory} has no {RUN_FILE}: it is no run's directory")
        self.directory = directory
        self._tolerance = tolerance

    def header(self) -> str:
        """A line for the top of the run."""
        return (
            f"llm-latency: baseline: {self.directory}; its ratios may be worse here by "
            f"{self._tolerance:.0%}, and by noise"
        )

    def compare(
        self, step: str, lab: Lab, verdicts: Sequence[Verdict]
    ) -> tuple[list[Verdict], dict[str, Any]]:
        """(verdicts, what run.json keeps) on a step of `lab`; `verdicts` are those on itself.
        A step that is none of the eight gives none."""
        if step not in JUDGES or lab.known(step) is None:
            return [], {}
        here, there = self._measured(step, lab, verdicts), self._there(step)
        found = compare(step, here, there, self._tolerance)
        return found, {
            "run": self._lab.run_of(step),
            "tolerance": self._tolerance,
            "here": _ratio(here),
            "there": _ratio(there),
            "verdicts": [asdict(verdict) for verdict in found],
        }

    def _there(self, step: str) -> Measured | str:
        """What the baseline has of the step, or why it cannot be used."""
        try:
            problem = self._lab.problem(step)
            if problem is not None:
                return problem
            return self._measured(step, self._lab, None)
        except LatencyError as error:
            return str(error)
        except NONSENSE as error:
            return f"the step's files make no sense: {error!r}"

    def _measured(self, step: str, lab: Lab, verdicts: Sequence[Verdict] | None) -> Measured:
        result = getattr(lab, step)()

        def ttft() -> TtftResult | None:
            found: TtftResult | None = lab.known("ttft")
            if found is None or (lab is self._lab and self._lab.problem("ttft") is not None):
                return None
            # Another run's noise is another one.
            return found if lab.run_of("ttft") == lab.run_of(step) else None

        judged = JUDGES[step](result) if verdicts is None else verdicts
        return measured(step, result, judged, ttft)


def _ratio(run: Measured | str) -> Any:
    """The ratio of a run as plain data, long text cut; a sentence where there is none."""
    ratio = run if isinstance(run, str) else run.ratio
    if not isinstance(ratio, Ratio):
        return ratio
    return asdict(replace(ratio, text=tuple(map(shown_words, ratio.text))))
