"""run.json: which run measured which step, and which files belong to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from ..errors import ArtifactError
from .files import parts_of
from .strictjson import load_json

RUN_FILE = "run.json"
EVIDENCE = "evidence"
FORMAT = "pytest-llm-latency/run"
VERSION = 1
SECTIONS = ("runs", "steps", "failures", "artifacts")
# Beyond, run.json is none: it has a few hundred bytes for each test and file.
MAX_RUN_BYTES = 64 * 1024 * 1024
DEEPEST = 100


class RunIndex:
    """A run.json that is read, to grade the directory by it."""

    def __init__(self, index: Mapping[str, Any]) -> None:
        self._index = index

    @classmethod
    def parse(cls, text: str) -> RunIndex:
        """Raises ArtifactError if this is no run.json of this version."""
        index = load_json(text, RUN_FILE)
        if not is_index(index):
            raise ArtifactError(
                f"{RUN_FILE}: expected {FORMAT!r} version {VERSION}, with the objects "
                + ", ".join(SECTIONS)
            )
        return cls(index)

    def has(self, step: str) -> bool:
        """Whether the run has measured the step."""
        return step in self._index["steps"]

    def step(self, step: str) -> Mapping[str, Any]:
        """The step's entry. Raises ArtifactError if the run has none."""
        entry: Mapping[str, Any] | None = self._index["steps"].get(step)
        if entry is None:
            raise ArtifactError(f"{RUN_FILE}: the run has not measured the step {step!r}")
        return entry

    def steps(self) -> list[str]:
        """The steps that were measured."""
        return list(self._index["steps"])

    def failures(self) -> Mapping[str, Mapping[str, Any]]:
        """The entries of the steps that a later run failed to measure."""
        failures: Mapping[str, Mapping[str, Any]] = self._index["failures"]
        return failures

    def newest(self) -> Mapping[str, Any]:
        """The facts of the newest run, its id first."""
        run = str(self._index.get("run"))
        return {"run": run, **self._index["runs"].get(run, {})}

    def facts(self, run: str) -> Mapping[str, Any] | None:
        """What is told of a run; None: there is none of this id."""
        facts: Mapping[str, Any] | None = self._index["runs"].get(run)
        return facts

    def artifacts(self) -> Mapping[str, Mapping[str, Any]]:
        """The entries of all files, by name."""
        artifacts: Mapping[str, Mapping[str, Any]] = self._index["artifacts"]
        return artifacts

    def name(self, entry: Mapping[str, Any]) -> str:
        """The run that made an entry: its id, and the server's URL where it is told."""
        server = self._index["runs"].get(entry["run"], {}).get("server")
        url = server.get("url") if isinstance(server, dict) else None
        return f"{entry['run']}, {url}" if url else str(entry["run"])

    def option(self, step: str, name: str) -> Any:
        """An option of the run that measured the step; None where it is not told."""
        options = self._index["runs"].get(self.step(step)["run"], {}).get("options")
        return options.get(name) if isinstance(options, dict) else None

    def names(self, step: str) -> list[str]:
        """The files of a step, evidence included."""
        artifacts = self._index["artifacts"]
        return sorted(name for name, entry in artifacts.items() if entry.get("step") == step)

    def problem(
        self, step: str, expected: Iterable[str], read: Callable[[str], bytes]
    ) -> str | None:
        """What is wrong with the step's files; None: they are unchanged and of its run."""
        entry = self.step(step)
        run = entry["run"]
        if step in self._index["failures"]:
            return f"{RUN_FILE}: a later run failed to measure the step {step!r}"
        outcome = entry.get("outcome")
        # A step that failed by its verdicts says so itself; beside a baseline it may fail alone.
        judged = _outcomes(entry.get("verdicts")) | _outcomes(entry.get("compared"))
        if outcome not in ("passed", "skipped") and not (
            outcome == "failed" and judged.intersection(FAILING)
        ):
            return f"{RUN_FILE}: the outcome of the step was {entry.get('outcome')!r}"
        unlisted = sorted(set(expected) - set(self.names(step)))
        if unlisted:
            return f"{unlisted[0]}: is not listed in {RUN_FILE}"
        for name in self.names(step):
            entry = self._index["artifacts"][name]
            if entry["run"] != run:
                return f"{name}: made by run {entry['run']}, the step by {run}"
            if hashlib.sha256(read(name)).hexdigest() != entry.get("sha256"):
                return f"{name}: changed since the run (its SHA-256 is another)"
        return None

    def mixed(self, names: Iterable[str]) -> str | None:
        """What is wrong if these files are not all of one run."""
        runs = {name: self._index["artifacts"].get(name, {}).get("run") for name in names}
        if len(set(runs.values())) == 1 and None not in runs.values():
            return None
        facts = self._index["runs"]
        cut_off = {run for run in runs.values() if not facts.get(run, {}).get("ended")}
        return "; ".join(
            f"{name}: run {run}{' (which was cut off)' if run in cut_off else ''}"
            for name, run in runs.items()
        )


def depth_of(value: Any) -> int:
    """How deeply JSON data is nested, counted without recursion."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, (dict, list))]:
        depth += 1
        level = [
            inner for one in level for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


def is_index(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and (found.get("format"), found.get("version")) == (FORMAT, VERSION)
        and all(isinstance(found.get(name), dict) for name in SECTIONS)
        and all(isinstance(entry, dict) for name in SECTIONS for entry in found[name].values())
        and all(
            isinstance(entry.get("run"), str)
            for name in SECTIONS
            if name != "runs"
            for entry in found[name].values()
        )
        and all(
            isinstance(entry.get(key), str)
            for entry in found["artifacts"].values()
            for key in ("step", "sha256")
        )
        and all(_is_inside(name) for name in found["artifacts"])
    )


def _outcomes(verdicts: Any) -> set[str]:
    """The outcomes of a step's verdicts, or of those beside a baseline."""
    if isinstance(verdicts, dict):
        verdicts = verdicts.get("verdicts")
    rows = verdicts if isinstance(verdicts, list) else []
    return {str(row.get("outcome")) for row in rows if isinstance(row, dict)}


def _is_inside(name: str) -> bool:
    """Whether a file's name stays in the directory: a run.json may come from anywhere."""
    try:
        parts_of(name)
    except ArtifactError:
        return False
    return True


# "not judged": beside a baseline that says nothing of it; it neither fails nor skips a test.
Outcome = Literal["broken", "inconclusive", "not measurable", "not judged", "holds"]
FAILING: tuple[Outcome, ...] = ("broken", "inconclusive")
