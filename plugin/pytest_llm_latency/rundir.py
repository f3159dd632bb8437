"""The directory of a run: its lock, whole files or none, and run.json that ties them together.

It knows names, hashes and run ids, and nothing of what the artifacts mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import ArtifactError, ConfigError
from .recording import Recording
from .recording import dump as dump_recording
from .relations import FAILING
from .sse import json_text

RUN_FILE = "run.json"
EVIDENCE = "evidence"
FORMAT = "pytest-llm-latency/run"
VERSION = 1
SECTIONS = ("runs", "steps", "failures", "artifacts")
REPORT_SOURCES = ("ttft.json", "prefill.json", "cache.json", "sentence.json", "cancel.json")


def new_run_id() -> str:
    """Unique, and sorted by time of start (UTC)."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(4)


class RunIndex:
    """A run.json that is read, to grade the directory by it."""

    def __init__(self, index: Mapping[str, Any]) -> None:
        self._index = index

    @classmethod
    def parse(cls, text: str) -> RunIndex:
        """Raises ArtifactError if this is no run.json of this version."""
        try:
            index = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{RUN_FILE}: not JSON: {error}") from None
        if not _is_index(index):
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


class RunDirectory:
    """The open directory of this run. Everything that is written goes through it."""

    def __init__(
        self, path: Path, facts: Mapping[str, Any], source: str = "--llm-artifacts"
    ) -> None:
        """Create and lock `path`. Raises ConfigError, which names `source`, if it cannot be
        used or is in use."""
        self.path = path.absolute()
        self.run_id = new_run_id()
        self._lock = _lock(self.path, source)
        try:
            self._index = _read_index(self.path / RUN_FILE)
        except BaseException:
            self.close()
            raise
        self._ours: dict[str, dict[str, Any]] = {}  # the entries of the steps of this run
        self._staged: dict[str, dict[str, Any]] = {}  # files of steps under way, by step
        self._pending: dict[str, dict[str, bytes]] = {}  # their artifacts, until commit_step
        self._index["run"] = self.run_id
        self._index["runs"][self.run_id] = dict(facts)

    def close(self) -> None:
        """Give the directory free."""
        os.close(self._lock)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of this run: versions, options, server. Saved by `save`."""
        facts: dict[str, Any] = self._index["runs"][self.run_id]
        return facts

    def note(self, step: str, text: str) -> None:
        """Keep a remark that changes no verdict."""
        self._entry(step)["notes"].append(text)

    def notes(self) -> list[tuple[str, str]]:
        """(step, remark) of this run."""
        return [(step, note) for step, entry in self._ours.items() for note in entry["notes"]]

    def begin_step(self, step: str) -> None:
        """Begin to measure a step anew. What an earlier run left of it stays until
        `commit_step`, so that a measurement that fails loses nothing."""
        self._ours[step] = {"run": self.run_id, "notes": []}
        self._staged[step] = {}
        self._pending[step] = {}
        shutil.rmtree(self.path / self._staging(step), ignore_errors=True)

    def commit_step(self, step: str) -> None:
        """Replace what an earlier run left of the step by what this one measured."""
        write_all({self.path / name: data for name, data in self._pending[step].items()})
        staged = self._staged.pop(step)
        final = f"{EVIDENCE}/{step}"
        for name in self.names(step):
            del self._index["artifacts"][name]
            if name not in staged and not name.startswith(f"{final}/"):
                (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / final, ignore_errors=True)
        if (self.path / self._staging(step)).exists():
            (self.path / self._staging(step)).rename(self.path / final)
        self._index["artifacts"].update(staged)
        self._index["failures"].pop(step, None)
        self._index["steps"][step] = self._ours[step]

    def fail_step(self, step: str, error: str, limited: bool = False) -> None:
        """Keep what was recorded of a step that could not be measured beside what an earlier
        run left of it; `limited`: because the server limits how often it is asked."""
        self._staged.pop(step)
        failed = self.path / EVIDENCE / f"{step}.failed"
        shutil.rmtree(failed, ignore_errors=True)
        if (self.path / self._staging(step)).exists():
            (self.path / self._staging(step)).rename(failed)
        self._ours[step] |= {"error": error, "rate_limited": limited}
        self._index["failures"][step] = self._ours[step]

    def finish_step(self, step: str, **fields: Any) -> None:
        """Add `fields` (outcome, facts) to the step's entry."""
        self._entry(step).update(fields)

    def forget_verdicts(self, step: str) -> None:
        """Drop what was judged in a step, whose test runs again."""
        self._ours.get(step, {}).pop("verdicts", None)

    def add_verdicts(self, step: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Add verdicts to the step's entry."""
        self._entry(step).setdefault("verdicts", []).extend(verdicts)

    def _entry(self, step: str) -> dict[str, Any]:
        """This run's entry of a step. One that no lab step announced (a user's own test) goes
        into run.json as it is."""
        if step not in self._ours:
            self._ours[step] = {"run": self.run_id, "notes": []}
            self._index["steps"][step] = self._ours[step]
        return self._ours[step]

    def _staging(self, step: str) -> str:
        return f"{EVIDENCE}/{step}.new"

    def names(self, step: str) -> list[str]:
        """The files of a step in run.json."""
        artifacts = self._index["artifacts"]
        return [name for name, entry in artifacts.items() if entry["step"] == step]

    def write(self, name: str, data: str | bytes, step: str) -> None:
        """Write an artifact whole or not at all. Raises ArtifactError."""
        content = data.encode("utf-8") if isinstance(data, str) else data
        staged = self._staged.get(step)
        evidence = f"{EVIDENCE}/{step}/"
        if staged is None:
            write_all({self.path / name: content})
        elif name.startswith(evidence):
            place = f"{self._staging(step)}/{name.removeprefix(evidence)}"
            write_all({self.path / place: content})
        else:
            self._pending[step][name] = content
        entries = self._index["artifacts"] if staged is None else staged
        entries[name] = {
            "run": self.run_id,
            "step": step,
            "sha256": hashlib.sha256(content).hexdigest(),
        }

    def keep(self, recording: Recording) -> None:
        """Write a recording's evidence file, named after its label."""
        self.keep_text(f"{recording.label}.jsonl", dump_recording(recording))

    def keep_text(self, label: str, text: str) -> None:
        """Write an evidence file; `label` begins with the step's name."""
        step = label.partition("/")[0]
        if step not in self._ours:
            # A user's own test, which no lab step announced: its evidence begins anew.
            self._entry(step)
            shutil.rmtree(self.path / EVIDENCE / step, ignore_errors=True)
            for name in self.names(step):
                del self._index["artifacts"][name]
        self.write(f"{EVIDENCE}/{label}", text, step)

    def owns(self, name: str) -> bool:
        """Whether this run made the artifact."""
        entry = self._index["artifacts"].get(name)
        return entry is not None and entry["run"] == self.run_id

    def read(self, name: str) -> str:
        """The text of an artifact. Raises ArtifactError."""
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"cannot read {self.path / name}: {error}") from None

    def of_one_run(self, names: Iterable[str]) -> str | None:
        """The run that made all of these files, None if one is missing, changed or another's."""
        runs = set()
        for name in names:
            entry = self._index["artifacts"].get(name)
            if entry is None:
                return None
            try:
                content = (self.path / name).read_bytes()
            except OSError:
                return None
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                return None
            runs.add(entry["run"])
        return runs.pop() if len(runs) == 1 else None

    def save(self) -> None:
        """Write run.json. Facts of runs of which nothing is left are dropped."""
        sections = (self._index[name] for name in ("steps", "failures", "artifacts"))
        alive = {entry["run"] for section in sections for entry in section.values()}
        alive.add(self.run_id)
        runs = {run: facts for run, facts in self._index["runs"].items() if run in alive}
        self._index["runs"] = runs
        text = json_text(self._index, indent=2) + "\n"
        write_all({self.path / RUN_FILE: text.encode("utf-8")})


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write the files whole or not at all: all beside their places first, then renamed.

    Raises ArtifactError, and then none of them has changed.
    """
    parts = {path: path.with_name(f".{path.name}.part") for path in files}
    path = Path()
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with parts[path].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            part.replace(path)
    except OSError as error:
        # A full disk's error names no file.
        raise ArtifactError(f"cannot write {error.filename or path}: {error.strerror}") from None
    finally:
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _lock(path: Path, source: str) -> int:
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except FileExistsError:
        raise ConfigError(f"{source}: {path} is not a directory") from None
    except NotADirectoryError as error:
        raise ConfigError(f"{source}: {error.filename} lies below a file") from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot write into {path}: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"{source}: another run is using {path}; wait for it, or name another directory"
        ) from None
    return handle


def _read_index(path: Path) -> dict[str, Any]:
    """The run.json of the directory; a fresh one where it has none that can be read."""
    index: dict[str, Any] = {"format": FORMAT, "version": VERSION, "run": ""}
    index |= {name: {} for name in SECTIONS}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return index
    return found if _is_index(found) else index


def _is_index(found: Any) -> bool:
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
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
